"""A host that isolates no more: its lanes are out of service, what ran gets an answer that is ours, and it comes back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from core_bench import HONEST, Bench, settings

from kernelevo_evaluator.executor import ExecutorFault, LaneState
from kernelevo_evaluator.lanes import isolation
from kernelevo_evaluator.local_executor import LocalExecutor
from kernelevo_sandbox import BubblewrapSandbox, DockerSandbox
from kernelevo_sandbox.bubblewrap import find_bwrap

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

ENGINE = Path(__file__).parents[3] / "sandbox" / "tools" / "docker_engine.py"
NEVER_ENDS = HONEST + "\nimport time\ntime.sleep(600)\n"


BUILT = (
    HONEST
    + """
from torch.utils.cpp_extension import load_inline
load_inline("built", 'extern "C" int answer() { return 42; }', is_python_module=False, no_implicit_headers=True)
"""
)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.05)


async def lost_and_found(
    executor: LocalExecutor, lose: Callable[[], Awaitable[None]], find: Callable[[], Awaitable[None]], said: str
) -> None:
    """While a candidate runs: its answer is ours, the lane is out of service and says why, and then works again."""
    bench = Bench(executor)
    job = await bench.job(NEVER_ENDS)
    assert executor.healthy and not executor.device_faults
    assert executor.sandbox is not None and all(one.holds for one in executor.sandbox.guarantees if one.essential)
    running = asyncio.create_task(executor.evaluate(job, bench.tell))
    await until(lambda: executor.lane_states == {"cpu": LaneState.PREPARING})
    await lose()
    with pytest.raises(ExecutorFault, match="isolat"):
        await running
    await until(lambda: not executor.healthy)
    assert executor.lane_states == {"cpu": LaneState.OUT_OF_SERVICE}
    assert said in executor.device_faults["cpu"] and "doctor" in executor.device_faults["cpu"]
    lost = next(one for one in executor.sandbox.guarantees if one.essential and not one.holds)
    assert said in lost.evidence and lost.remedy
    with pytest.raises(ExecutorFault, match="no device is in service"):
        await bench.judge(HONEST)
    await find()
    await until(lambda: executor.healthy)
    assert not executor.device_faults and all(one.holds for one in executor.sandbox.guarantees if one.essential)
    await bench.works()


async def test_bubblewrap_is_removed_while_a_candidate_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bwrap = tmp_path / "bin" / "bwrap"
    bwrap.parent.mkdir()
    bwrap.write_text(f'#!/bin/sh\nexec {find_bwrap()} "$@"\n')
    bwrap.chmod(0o755)
    monkeypatch.setenv("PATH", str(bwrap.parent), prepend=":")
    executor = LocalExecutor(BubblewrapSandbox(), replace(settings(tmp_path), isolation_check_s=0.3))

    async def lose() -> None:
        bwrap.rename(tmp_path / "hidden")

    async def find() -> None:
        (tmp_path / "hidden").rename(bwrap)

    try:
        await executor.start()
        await lost_and_found(executor, lose, find, "could not execute")
    finally:
        await executor.close()


def own_engine() -> Path:
    """The folder of the engine that the tests use, where it is one that may be stopped."""
    folder = Path(os.environ.get("DOCKER_HOST", "").removeprefix("unix://")).parent
    if not (folder / "daemon.json").exists() or not (folder / "pid").exists():
        pytest.skip(f"the engine is none of {ENGINE.name}'s: not ours to stop")
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("docker_engine")
async def test_an_engine_stops_while_a_candidate_runs(tmp_path: Path) -> None:
    folder = own_engine()
    sandbox = DockerSandbox()
    executor = LocalExecutor(sandbox, replace(settings(tmp_path), isolation_check_s=0.3))

    async def command(name: str) -> None:
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, ENGINE, name, folder], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr

    try:
        await executor.start()
        await lost_and_found(executor, lambda: command("halt"), lambda: command("start"), "engine")
        # Those that ended with the engine as well.
        await until(lambda: not sandbox._left)
    finally:
        if not (folder / "pid").exists():
            await command("start")
        await executor.close()


@contextlib.contextmanager
def small_file_system(place: Path) -> Iterator[None]:
    place.mkdir(parents=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", place], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted: {done.stderr}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


async def test_the_host_s_temporary_files_fill_up_while_a_candidate_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No verdict on a candidate whose object cannot be kept, nor on one that runs meanwhile."""
    place = tmp_path / "small"
    with small_file_system(place):
        monkeypatch.setattr(tempfile, "tempdir", str(place))
        monkeypatch.setattr(isolation, "LOST_SECONDS", 0.3)
        executor = LocalExecutor(BubblewrapSandbox(), replace(settings(place), isolation_check_s=600.0))
        filler = place / "filler"

        async def lose() -> None:
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            # Nobody looks at this host for ten minutes yet: it is its own failure that tells it.
            with pytest.raises(ExecutorFault, match=r"isolates no more.*No space left"):
                await executor.evaluate(await bench.job(BUILT), bench.tell)

        async def find() -> None:
            filler.unlink()

        try:
            await executor.start()
            bench = Bench(executor)
            await bench.job(BUILT)
            await lost_and_found(executor, lose, find, "No space left")
            assert not list(place.glob("artefacts/*.partial"))
        finally:
            await executor.close()
