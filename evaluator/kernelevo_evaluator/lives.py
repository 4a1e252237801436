"""How many lives of this evaluator ended while it ran something: what takes the whole host down must not be begun for ever.

What runs leaves a mark in the state folder, on disk before it begins, and takes it away at its end. A mark that is there at the
start is of a life that ended without warning: by the power, an operator, want of memory, or what ran. Once may be anything. What
two lives were lost with runs alone from then on, and what the next one is lost with is not begun again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import time
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

MOST = 3
"""Lives that may be lost while one piece of work runs, the last of them while nothing else did."""
_FORGET_S = 7 * 86_400.0
_FOLDER = "running"

_log = structlog.get_logger("kernelevo.evaluator")


class Lives:
    """Marks of what runs, and what they say of earlier lives. Made by `Lives.begin`; belongs to one event loop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lost: dict[str, int] = {}
        self._running: Counter[str] = Counter()

    @classmethod
    def begin(cls, state_dir: Path) -> Lives:
        """Read what the last life left, and count it. Blocks. The state folder is this server's own.

        Raises:
            OSError: the folder cannot be read or written.
        """
        lives = cls(state_dir / _FOLDER)
        lives._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in lives._folder.iterdir():
            if path.suffix:  # half written: the mark that it was to replace is there, or nothing had begun
                path.unlink()
                continue
            try:
                mark = json.loads(path.read_text())
                what, lost, running = str(mark["what"]), int(mark["lost"]), bool(mark["running"])
            except (ValueError, KeyError, TypeError) as error:
                # A disk that broke is no reason not to serve; what it stood for is counted anew.
                _log.warning("a mark of what ran cannot be read", mark=path.name, message=str(error))
                path.unlink()
                continue
            if running:
                lives._lost[path.name] = lost + 1
                lives._write(path.name, what=what, running=False)
                _log.warning("an earlier life ended while this ran", what=what, lives=lost + 1)
            elif path.stat().st_mtime < time.time() - _FORGET_S:
                path.unlink()
            else:
                lives._lost[path.name] = lost
        return lives

    def lost(self, key: str) -> int:
        """Lives that ended while work of this key ran, since it last came to an end."""
        return self._lost.get(_name(key), 0)

    def is_to_run_alone(self, key: str) -> bool:
        """Whether the next life that is lost with it is to be laid to it."""
        return self.lost(key) == MOST - 1

    def why_not(self, key: str) -> str:
        """Why work of this key is not begun again; empty where it may be."""
        lost = self.lost(key)
        if lost < MOST:
            return ""
        return f"the evaluator was lost {lost} times while it ran this, the last time while it did nothing else"

    def forgive(self, key: str) -> None:
        """Count from nothing again."""
        name = _name(key)
        if self._lost.pop(name, 0) and not self._running[name]:
            (self._folder / name).unlink(missing_ok=True)

    @asynccontextmanager
    async def running(self, key: str, what: str) -> AsyncIterator[None]:
        """While work of this key runs. That it came to an end, well or not, says that it takes nothing down; that it was stopped
        says nothing.

        Args:
            what: for the log of the life that finds the mark.
        """
        name = _name(key)
        self._running[name] += 1
        marking = asyncio.ensure_future(asyncio.to_thread(self._mark, name, what))
        try:
            # On disk first. That costs some milliseconds, while another candidate has the device.
            await asyncio.shield(marking)
            try:
                yield
            except Exception:
                self._lost.pop(name, None)
                raise
            self._lost.pop(name, None)
        finally:
            self._running[name] -= 1
            marking.add_done_callback(lambda _: self._unmark(name, what))

    def _mark(self, name: str, what: str) -> None:
        try:
            self._write(name, what=what, running=True)
        except OSError as error:
            # The store, on the same disk, will have more to say of it.
            _log.warning("what runs is not marked", what=what, message=str(error))

    def _unmark(self, name: str, what: str) -> None:
        if self._running[name]:
            return
        del self._running[name]
        with contextlib.suppress(OSError):
            if name in self._lost:
                self._write(name, what=what, running=False)
            else:
                (self._folder / name).unlink(missing_ok=True)

    def _write(self, name: str, *, what: str, running: bool) -> None:
        """Whole or not at all, and on disk when this returns."""
        mark = {"what": what, "lost": self._lost.get(name, 0), "running": running}
        half = self._folder / f"{name}.new"
        with half.open("w") as file:
            file.write(json.dumps(mark))
            file.flush()
            os.fsync(file.fileno())
        half.replace(self._folder / name)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _name(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
