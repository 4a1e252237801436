"""Runs an attack on one backend, with things of the host there to be taken."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))

from attack import Attack, BuildAttack, Outcome, Result, judge, judge_build, program
from targets import ALIVE_FD, host

from kernelevo_evaluator.lanes.quiet import Quiet
from kernelevo_evaluator.languages.builder import Builder
from kernelevo_evaluator.languages.toolkit import cpp_compiler, cuda_toolkit
from kernelevo_evaluator.messages.runner import BuildRequest
from kernelevo_sandbox import Limits, Mount, Sandbox, SandboxBroken, SandboxSpec, interpreter_mounts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernelevo_evaluator.languages.builder import BuildResult

USUAL: dict[str, Any] = {"memory_bytes": 256 << 20, "processes": 64, "wall_seconds": 20.0, "tmpfs_bytes": 32 << 20}
_ARCHITECTURE = "sm_90"
_PLAIN: dict[str, Any] = {
    "nonce": 1,
    "name": "kernel",
    "cpp_sources": ("",),
    "implicit_headers": False,
    "python_module": False,
}
_CLEAN_SECONDS = 60.0


class NotHere(Exception):
    """This attack cannot be tried on this backend here; says why."""


async def run(sandbox: Sandbox, attack: Attack | BuildAttack) -> Outcome:
    """Run one attack.

    Raises:
        NotHere: its tool is missing.
    """
    with host(isolated=sandbox.name != "none") as given:
        try:
            if isinstance(attack, BuildAttack):
                return await _build(sandbox, attack, given)
            return await _program(sandbox, attack, given)
        except SandboxBroken as failure:
            return Outcome(Result.NOT_CONTAINED, f"the backend broke: {failure}")


async def _program(sandbox: Sandbox, attack: Attack, given: dict[str, Any]) -> Outcome:
    told = {name: value for name, value in given.items() if isinstance(value, str | int) and name != "secret_text"}
    mounts = interpreter_mounts() if given["isolated"] else ()
    shown = Path(given["mounted"]).parent
    write = given["pipe"]
    spec = SandboxSpec(
        argv=(sys.executable, "-I", "-S", "-c", program(attack), json.dumps(told)),
        env={"LC_ALL": "C.UTF-8"},
        limits=Limits(**{**USUAL, **attack.limits}),
        fds={ALIVE_FD: write},
        mounts=(*mounts, Mount(source=shown, target=str(shown))),
    )
    process = await sandbox.start(spec)
    # The sandbox alone holds the pipe's other end now; the one in `given` is closed for good.
    closed = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(closed, write, inheritable=False)
    os.close(closed)
    try:
        return judge(attack, await process.wait(), given)
    finally:
        await process.kill()


async def _build(sandbox: Sandbox, attack: BuildAttack, given: dict[str, Any]) -> Outcome:
    """By the evaluator's own builder, with a store of its own that has other candidates' objects in it."""
    if cpp_compiler() is None:
        raise NotHere("no g++ on this host")
    if attack.cuda and cuda_toolkit() is None:
        raise NotHere("no nvcc on this host")
    cpus = frozenset(os.sched_getaffinity(0))
    builder = Builder(
        sandbox, Quiet(), Path(given["store"]), 1, cpus, architecture=_ARCHITECTURE if attack.cuda else ""
    )

    async def build(asked: Mapping[str, Any], seconds: float) -> BuildResult:
        return await builder.build(BuildRequest(**{**_PLAIN, **asked}), seconds, attack.memory_bytes)

    following = None
    if attack.after is not None:
        # Everybody can work out under which name the next one's object will be kept.
        digest = builder.recipe(BuildRequest(**{**_PLAIN, **attack.after(given)})).digest
        given["place"] = str(Path(given["store"]) / f"{digest}.so")
    result = await build(attack.asked(given), attack.seconds)
    if attack.after is not None:
        following = await build(attack.after(given), _CLEAN_SECONDS)
    return judge_build(attack, result, following, given)
