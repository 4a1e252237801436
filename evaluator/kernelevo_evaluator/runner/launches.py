"""Launches that failed and that nobody asked about: CUDA keeps the error, and goes on.

A kernel that was refused (too much shared memory, a grid that is too large) has written nothing, and its output is what lay in
that memory. The check is the author's help, in the candidate's own process: what makes garbage a mismatch is the comparison.
"""

from __future__ import annotations

import ctypes
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_LIBRARY = re.compile(r"(/\S*/libcudart[\w.-]*\.so[\w.]*)$")


class LaunchFailed(RuntimeError):
    """A kernel was not launched."""


def checked(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, which raises `LaunchFailed` where it leaves an error of the runtime behind that it did not look at."""
    last_error = _last_error()
    if last_error is None:
        return call

    def looked_after(*arguments: Any) -> Any:
        last_error()  # what came before is not this call's
        result = call(*arguments)
        told = last_error()
        if told:
            raise LaunchFailed(f"a kernel was not launched, and the candidate did not look: {told}")
        return result

    return looked_after


@functools.cache
def _last_error() -> Callable[[], str] | None:
    """What takes the last error out of the CUDA runtime that torch uses, in words; empty where there is none."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    found = next((match[1] for line in maps.splitlines() if (match := _LIBRARY.search(line))), None)
    if found is None:
        return None
    runtime = ctypes.CDLL(found)
    runtime.cudaGetErrorString.restype = ctypes.c_char_p

    def last_error() -> str:
        code = runtime.cudaGetLastError()
        return f"{runtime.cudaGetErrorString(code).decode()} (cudaError {code})" if code else ""

    return last_error
