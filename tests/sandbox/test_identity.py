"""Who a sandboxed program is outside, and that a passing failure does not decide it for good."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kernelevo_sandbox import BubblewrapSandbox, EndKind, Limits, SandboxSpec, SandboxUnavailable
from kernelevo_sandbox.bubblewrap import Identity, backend, find_bwrap

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has a choice")

SPEC = SandboxSpec(argv=("/bin/true",), env={}, limits=Limits(memory_bytes=64 << 20))


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A bubblewrap that fails for every uid from the one in this file on, while it is there."""
    real = find_bwrap()
    with tempfile.TemporaryDirectory(prefix="kernelevo-test-") as name:  # where every uid can read it, unlike pytest's
        folder = Path(name)
        folder.chmod(0o755)
        uids = folder / "uids"
        fails = f'[ "$1" != --version ] && [ -e {uids} ] && [ "$(id -u)" -ge "$(cat {uids})" ] && exit 1'
        script = f'#!/bin/sh\n{fails}\nexec {real} "$@"\n'
        (folder / "bwrap").write_text(script)
        (folder / "bwrap").chmod(0o755)
        monkeypatch.setenv("PATH", name, prepend=":")
        yield uids


@pytest.fixture
async def sandbox(failing: Path) -> AsyncIterator[BubblewrapSandbox]:
    sandbox = BubblewrapSandbox()
    try:
        if await sandbox.identity(SPEC) is not Identity.DROPPED:
            pytest.skip("no user namespaces here")
    finally:
        await sandbox.close()
    sandbox = BubblewrapSandbox()
    yield sandbox
    await sandbox.close()


async def test_a_passing_failure_is_forgotten(
    sandbox: BubblewrapSandbox, failing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of who drops its rights first, but not of root: sandboxes keep the host's user namespace, for a while."""
    failing.write_text("1")
    assert await sandbox.identity(SPEC) is Identity.INSIDE
    assert (await (await sandbox.start(SPEC)).wait()).kind is EndKind.EXITED
    failing.unlink()
    assert await sandbox.identity(SPEC) is Identity.INSIDE  # still believed: no start pays for a trial
    monkeypatch.setattr(backend, "REFUSAL_SECONDS", 0.0)
    sandbox._refused.clear()
    failing.write_text("1")
    assert await sandbox.identity(SPEC) is Identity.INSIDE
    failing.unlink()
    assert await sandbox.identity(SPEC) is Identity.DROPPED
    assert (await (await sandbox.start(SPEC)).wait()).kind is EndKind.EXITED


async def test_where_nothing_can_be_made_the_next_start_tries_all_anew(
    sandbox: BubblewrapSandbox, failing: Path
) -> None:
    failing.write_text("0")
    with pytest.raises(SandboxUnavailable, match="cannot create the namespaces"):
        await sandbox.start(SPEC)
    failing.unlink()
    assert await sandbox.identity(SPEC) is Identity.DROPPED
    assert (await (await sandbox.start(SPEC)).wait()).exit_code == 0
