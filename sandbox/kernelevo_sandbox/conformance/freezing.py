"""Freezing, thawing, and the death of a whole tree."""

from __future__ import annotations

import asyncio
import os

from kernelevo_sandbox.conformance.kit import Counter, Kit, check, closing, readable, told
from kernelevo_sandbox.contract import EndKind


@check
async def freeze_stops_and_thaw_resumes(kit: Kit) -> None:
    with Counter() as counter:
        code = "import os\nos.fork()\n" + Counter.CODE
        async with kit.running(code, fds={5: counter.fd}) as process:
            for _ in range(5):
                await counter.moving()
                await process.freeze()
                await process.freeze()
                seen = counter.value
                await asyncio.sleep(0.03)
                assert counter.value == seen, "it went on while frozen"
                await process.thaw()
                await process.thaw()
            await counter.moving()


@check
async def freeze_holds_a_tree_that_spawns(kit: Kit) -> None:
    """Processes come and go, and a parent waits in `vfork`, at whatever moment the freeze arrives."""
    code = (
        "import mmap, os\nos.fork()\nc = memoryview(mmap.mmap(5, 4096)).cast('Q')\n"
        "while True: os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0); c[0] += 1"
    )
    with Counter() as counter:
        async with kit.running(code, fds={5: counter.fd}) as process:
            for _ in range(10):
                await counter.moving()
                async with asyncio.timeout(4.0):
                    await process.freeze()
                seen = counter.value
                await asyncio.sleep(0.01)
                assert counter.value == seen, "it went on while frozen"
                await process.thaw()
            await counter.moving()


@check
async def freeze_right_after_the_start(kit: Kit) -> None:
    with Counter() as counter:
        async with kit.running(Counter.CODE, fds={5: counter.fd}) as process:
            await process.freeze()
            seen = counter.value
            await asyncio.sleep(0.1)
            assert counter.value == seen, "it went on while frozen"
            await process.thaw()
            await counter.moving()


@check
async def kill_works_while_frozen(kit: Kit) -> None:
    with Counter() as counter:
        process = await kit.sandbox.start(kit.spec(Counter.CODE, fds={5: counter.fd}))
        await counter.moving()
        await process.freeze()
        seen = counter.value
        ending = await process.kill()
        assert ending.kind is EndKind.KILLED, told(ending)
        assert counter.value == seen, "it ran on between thaw and death"


_DAEMON = (
    "import os, time\n"
    "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
    "        os.close(1); os.close(2); os.write(5, b'alive'); time.sleep(600)\n    os._exit(0)\n"
)


@check
async def kill_ends_daemons(kit: Kit) -> None:
    read, write = os.pipe()
    with closing(read):
        with closing(write):
            process = await kit.sandbox.start(kit.spec(_DAEMON + "time.sleep(600)", fds={5: write}))
        assert await readable(read) == b"alive"
        await process.kill()
        # Nobody holds the pipe's other end any more: the daemon is gone, not merely forgotten. (It does not wait: the pipe
        # is non-blocking, and a daemon that is still ending fails this.)
        assert os.read(read, 1) == b""


@check
async def exit_ends_daemons(kit: Kit) -> None:
    read, write = os.pipe()
    with closing(read):
        with closing(write):
            process = await kit.sandbox.start(kit.spec(_DAEMON + "time.sleep(0.3)", fds={5: write}))
        ending = await process.wait()
        assert (ending.kind, ending.exit_code) == (EndKind.EXITED, 0), told(ending)
        assert await readable(read) == b"alive"
        assert os.read(read, 1) == b""


@check
async def several_run_at_once(kit: Kit) -> None:
    async def one(index: int) -> None:
        ending = await kit.run(f"import time; time.sleep(0.1); print({index})", label=f"one-{index}")
        assert ending.stdout.text() == f"{index}\n", told(ending)

    await asyncio.gather(*(one(index) for index in range(5)))
