"""Importing a module from its source, and telling what went wrong in it."""

from __future__ import annotations

import errno
import importlib.util
import re
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelevo_evaluator.messages.runner import Failed

if TYPE_CHECKING:
    from types import ModuleType

    from kernelevo_evaluator.messages.runner import LimitReached

_LIMITS: dict[int | None, LimitReached] = {
    errno.EFBIG: "file_size",
    errno.EMFILE: "open_files",
    errno.EAGAIN: "processes",
    errno.ENOSPC: "temporary_files",
    errno.EDQUOT: "temporary_files",
}
"""EAGAIN: nothing that blocks is read without blocking here, so it is a process or thread that could not be started."""
_NO_THREAD = re.compile("can't start new thread")
_MESSAGE_CHARACTERS = 4000
_TRACEBACK_CHARACTERS = 8000


def import_source(source: str, name: str) -> ModuleType:
    """Import `source` as module `name`. It gets a real file, since `inspect.getsource` (Triton's) needs one."""
    folder = Path(tempfile.mkdtemp(prefix="kernelevo-"))
    path = folder / f"{name}.py"
    path.write_text(source, encoding="utf-8")
    code = compile(source, str(path), "exec", dont_inherit=True)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    exec(code, module.__dict__)  # noqa: S102 - running this source is what a sandboxed runner is for
    return module


def _text(value: Any, limit: int) -> str:
    try:
        # A plain string of valid characters, whatever a `__str__` returned.
        text = "".join(str(value)).encode(errors="backslashreplace").decode()
    except BaseException as error:  # a hostile __str__
        text = f"<{type(error).__name__} while it was turned into text>"
    return text if len(text) <= limit else text[:limit] + f"… ({len(text)} characters)"


def failed(nonce: int, kind: str, error: BaseException, module_name: str) -> Failed:
    """What happened, with the frames of the module alone and the line in it that was last reached."""
    line: int | None = None
    frames = ""
    try:
        if isinstance(error, SyntaxError):
            line = error.lineno
        own = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).name == f"{module_name}.py"]
        if own:
            line = own[-1].lineno
        frames = "".join(f"  line {f.lineno}, in {f.name}\n    {(f.line or '').strip()[:200]}\n" for f in own[-12:])[
            :_TRACEBACK_CHARACTERS
        ]
    except BaseException:
        frames = "<no traceback could be made>"
    return Failed(
        nonce=nonce,
        kind=kind,
        error=_text(type(error).__name__, 200),
        message=_text(error, _MESSAGE_CHARACTERS),
        traceback=frames,
        line=line if isinstance(line, int) else None,
        limit=_limit_of(error),
    )


def _limit_of(error: BaseException) -> LimitReached:
    """Which limit of the sandbox says no in this error, or in one that it came from."""
    seen: BaseException | None = error
    try:
        for _ in range(8):
            if isinstance(seen, OSError) and seen.errno in _LIMITS:
                return _LIMITS[seen.errno]
            if isinstance(seen, RuntimeError) and _NO_THREAD.search(_text(seen, _MESSAGE_CHARACTERS)):
                return "processes"
            seen = seen.__cause__ or seen.__context__ if seen is not None else None
    except BaseException:  # a hostile error, as above
        return ""
    return ""
