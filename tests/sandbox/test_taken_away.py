"""Control groups that somebody else removes: under a sandbox that runs, and before one starts."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kernelevo_sandbox import BubblewrapSandbox, EndKind, Limits, SandboxBroken, SandboxSpec, cgroups
from kernelevo_sandbox.supervision import SupervisedProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

SLEEPS = SandboxSpec(argv=("/bin/sleep", "60"), env={}, limits=Limits(memory_bytes=64 << 20))
ENDS = replace(SLEEPS, argv=("/bin/true",))


@pytest.fixture
async def sandbox() -> AsyncIterator[BubblewrapSandbox]:
    sandbox = BubblewrapSandbox(keep_spare=False)
    if sandbox.layout.version is None:
        pytest.skip("no control groups can be made here")
    try:
        yield sandbox
    finally:
        await sandbox.close()


@contextlib.contextmanager
def taken_away(folders: list[Path], *, unified: bool) -> Iterator[None]:
    """What an administrator's script can do: move the processes elsewhere, and remove their groups."""
    for folder in folders:
        # Version 2 lets no process into a group that has groups with controllers below it.
        place = folder.parent / f"elsewhere-{os.getpid()}" if unified else folder.parent
        place.mkdir(exist_ok=True)
        for pid in (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (place / "cgroup.procs").write_text(pid)
    for folder in folders:
        folder.rmdir()
    try:
        yield
    finally:
        if unified:
            place.rmdir()


async def test_a_program_that_nothing_holds_any_more_is_ended_and_the_fault_is_ours(sandbox: BubblewrapSandbox) -> None:
    process = await sandbox.start(SLEEPS)
    assert isinstance(process, SupervisedProcess)
    folders = [folder for folder in groups_of(process.pid) if folder.name.startswith("kernelevo-")]
    assert folders
    with taken_away(folders, unified=sandbox.layout.version == 2):
        with pytest.raises(SandboxBroken, match="removed by somebody else"):
            await asyncio.wait_for(process.wait(), 20)
        assert not Path(f"/proc/{process.init_pid}").exists()
    assert (await (await sandbox.start(ENDS)).wait()).kind is EndKind.EXITED


def groups_of(pid: int) -> Iterator[Path]:
    own = cgroups.paths_of(pid)
    for kind, mount, root, options in cgroups.hierarchies():
        for controller, path in own.items():
            if (controller in options) if controller else kind == "cgroup2":
                inner = path.removeprefix(root.rstrip("/")).lstrip("/")
                if (mount / inner).is_dir():
                    yield mount / inner


async def test_groups_that_are_gone_are_looked_for_anew(sandbox: BubblewrapSandbox) -> None:
    """Where they were is no more: one start fails, and says so; the next one finds another place."""
    gone = f"taken-{os.getpid()}"
    await (await sandbox.start(ENDS)).wait()
    layout = sandbox.layout
    if layout.unified is not None:
        sandbox._layout = replace(layout, unified=layout.unified / gone)
    else:
        sandbox._layout = replace(layout, split={name: place / gone for name, place in layout.split.items()})
    with pytest.raises(SandboxBroken, match="control group"):
        await sandbox.start(ENDS)
    ending = await (await sandbox.start(ENDS)).wait()
    assert ending.kind is EndKind.EXITED and ending.exit_code == 0
    assert sandbox.layout == layout
