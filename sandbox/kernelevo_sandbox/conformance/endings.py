"""How a program ends, and that its end is told as it was."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from kernelevo_sandbox.conformance.kit import MEMORY, Kit, check, eventually, told
from kernelevo_sandbox.contract import EndKind, Limits, SandboxBroken, SandboxSpec


@check
async def exit_code_is_told(kit: Kit) -> None:
    ending = await kit.run("raise SystemExit(7)")
    assert (ending.kind, ending.exit_code, ending.signal) == (EndKind.EXITED, 7, None), told(ending)


@check
async def early_exit_is_only_an_exit(kit: Kit) -> None:
    ending = await kit.run("import os; os._exit(0); print('never')")
    assert (ending.kind, ending.exit_code, ending.stdout.total_bytes) == (EndKind.EXITED, 0, 0), told(ending)


@check
async def signal_is_told(kit: Kit) -> None:
    ending = await kit.run("import os; os.kill(os.getpid(), 11)")
    assert (ending.kind, ending.signal) == (EndKind.SIGNALED, signal.SIGSEGV), told(ending)


@check
async def missing_program_is_no_success(kit: Kit) -> None:
    spec = SandboxSpec(argv=("/nowhere/program",), env={}, limits=Limits(memory_bytes=MEMORY))
    try:
        ending = await (await kit.sandbox.start(spec)).wait()
    except SandboxBroken:
        return
    assert ending.kind is EndKind.EXITED and ending.exit_code in (126, 127), told(ending)


@check
async def wait_can_be_shared_and_repeated(kit: Kit) -> None:
    process = await kit.sandbox.start(kit.spec("print('x')"))
    first, second = await asyncio.gather(process.wait(), process.wait())
    assert first is second is await process.wait()
    assert process.ended
    assert await process.kill() is first
    await process.freeze()
    await process.thaw()


@check
async def cancelled_wait_leaves_the_program_running(kit: Kit) -> None:
    async with kit.running("import time; time.sleep(30)") as process:
        waiting = asyncio.create_task(process.wait())
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert not process.ended


@check
async def kill_ends_it(kit: Kit) -> None:
    process = await kit.sandbox.start(kit.spec("import time; time.sleep(30)"))
    ending = await process.kill()
    assert ending.kind is EndKind.KILLED, told(ending)
    assert process.ended


@check
async def its_processes_are_told(kit: Kit) -> None:
    """As this host numbers them; and who ends it may say why."""
    process = await kit.sandbox.start(kit.spec("import os, time; os.fork(); print('up', flush=True); time.sleep(30)"))
    await eventually(lambda: process.output()[0].text().count("up") == 2)
    pids = process.processes()
    assert len(pids) >= 2 and all(Path(f"/proc/{pid}").exists() for pid in pids), pids
    ending = await process.kill(EndKind.OUT_OF_DEVICE_MEMORY, "had too much")
    assert (ending.kind, ending.detail) == (EndKind.OUT_OF_DEVICE_MEMORY, "had too much"), told(ending)
    assert process.processes() == ()


@check
async def close_kills_what_runs(kit: Kit) -> None:
    process = await kit.sandbox.start(kit.spec("import time; time.sleep(30)"))
    await kit.sandbox.close()
    assert (await process.wait()).kind is EndKind.KILLED
