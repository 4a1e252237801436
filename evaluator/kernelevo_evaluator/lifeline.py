"""Ends a server whose parent is gone, however the parent ended.

Not PR_SET_PDEATHSIG: that follows the thread that started the server, which may well end before its process does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

PARENT = os.getppid()
"""Who started this process, read as early as this module is imported."""
_POLL_S = 0.5


@contextlib.asynccontextmanager
async def watch_parent(gone: asyncio.Event) -> AsyncIterator[None]:
    """Set `gone` when the process that started this one has ended."""
    task = asyncio.create_task(_watch(gone))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _watch(gone: asyncio.Event) -> None:
    while os.getppid() == PARENT:
        with _process_handle(PARENT) as handle:
            if handle is None:
                await asyncio.sleep(_POLL_S)
            elif os.getppid() == PARENT:  # else the number may be another process's by now
                await _readable(handle)
    gone.set()


@contextlib.contextmanager
def _process_handle(pid: int) -> Iterator[int | None]:
    """A descriptor that becomes readable at the process's end; `None` on kernels without."""
    try:
        handle = os.pidfd_open(pid)
    except (AttributeError, OSError):
        yield None
        return
    try:
        yield handle
    finally:
        os.close(handle)


async def _readable(handle: int) -> None:
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    loop.add_reader(handle, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(handle)
    # The parent has ended, but this process is handed on to another a moment later.
    while os.getppid() == PARENT:  # noqa: ASYNC110 - the kernel tells nobody
        await asyncio.sleep(0.01)
