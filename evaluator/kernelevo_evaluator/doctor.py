"""What this host can really do for an evaluator, found by trying it, and how to get what is missing."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from kernelevo_evaluator.doctor_gpus import examine_gpus
from kernelevo_evaluator.lanes.runners import shown_to_runners
from kernelevo_evaluator.settings import GIB, EvaluatorSettings, host_memory_bytes
from kernelevo_sandbox import SandboxError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelevo_sandbox import Guarantee

_IMPORT_S = 180.0
_LEAST_MEMORY = 2 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One fact about this host."""

    group: str
    name: str
    holds: bool
    evidence: str
    remedy: str = ""
    essential: bool = True
    """Without it the evaluator does not start."""


async def examine(settings: EvaluatorSettings) -> tuple[Check, ...]:
    """Try everything; never raises for what a host lacks."""
    sandbox, *others = await asyncio.gather(
        _sandbox(settings), _torch(), _compiler(), _state(settings), _gpus(settings)
    )
    return (*_host(), *(check for group in others for check in group), *sandbox)


def sound(checks: Sequence[Check]) -> bool:
    """Whether an evaluator starts here."""
    return all(check.holds for check in checks if check.essential)


def _host() -> list[Check]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = host_memory_bytes()
    return [
        Check(
            group="host",
            name="system",
            holds=sys.platform.startswith("linux"),
            evidence=f"{platform.system()} {platform.release()} {platform.machine()}, Python {platform.python_version()}",
            remedy="run the evaluator on Linux; the searcher may run anywhere",
        ),
        Check(
            group="host",
            name="cores",
            holds=cores >= 2,
            evidence=f"{cores} usable",
            remedy="with one core, timings wander: the reference and the candidate share it",
            essential=False,
        ),
        Check(
            group="host",
            name="memory",
            holds=memory >= _LEAST_MEMORY,
            evidence=f"{memory / GIB:.1f} GiB",
            remedy="two runners and a referee import torch; give the host at least 2 GiB",
            essential=False,
        ),
    ]


async def _torch() -> list[Check]:
    code = "import torch; print(torch.__version__, 'cuda' if torch.cuda.is_available() else 'cpu')"
    status, said = await _command([sys.executable, "-c", code], _IMPORT_S)
    checks = [
        Check(
            group="toolchain",
            name="torch",
            holds=status == 0,
            evidence=said.splitlines()[-1] if said else "nothing",
            remedy="pip install 'kernelevo[evaluator]'",
        )
    ]
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = ""
    checks.append(
        Check(
            group="toolchain",
            name="triton",
            holds=bool(triton),
            evidence=triton or "not installed",
            remedy="pip install 'kernelevo[triton]', for candidates in triton",
            essential=False,
        )
    )
    return checks


async def _gpus(settings: EvaluatorSettings) -> list[Check]:
    return [_check(one, "gpu") for one in await examine_gpus(settings)]


async def _compiler() -> list[Check]:
    found = shutil.which("g++") or shutil.which("c++")
    remedy = "install g++ (apt install g++), for candidates in cpp_inline"
    if found is None:
        return [Check(group="toolchain", name="g++", holds=False, evidence="not found", remedy=remedy, essential=False)]
    with tempfile.TemporaryDirectory(prefix="kernelevo-doctor-") as folder:
        source = os.path.join(folder, "probe.cpp")  # noqa: PTH118
        with open(source, "w", encoding="utf-8") as file:  # noqa: PTH123, ASYNC230
            file.write('#include <cmath>\nextern "C" double probe(double x) { return std::sqrt(x); }\n')
        status, said = await _command([found, "-shared", "-fPIC", source, "-o", f"{source}.so"], 60.0)
    _, name = await _command([found, "--version"], 10.0)
    evidence = name.partition("\n")[0] if status == 0 else said[-200:]
    return [Check(group="toolchain", name="g++", holds=status == 0, evidence=evidence, remedy=remedy, essential=False)]


async def _state(settings: EvaluatorSettings) -> list[Check]:
    folder = settings.state_dir
    # Where it will be made, if it is not there yet: looking changes nothing.
    present = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=present):
            free = shutil.disk_usage(present).free
    except OSError as error:
        return [
            Check(
                group="host",
                name="state folder",
                holds=False,
                evidence=f"{folder}: {error}",
                remedy="name one that can be written with --state-dir",
            )
        ]
    shown = shown_to_runners(folder) if settings.sandbox != "none" else None
    if shown is not None:
        return [
            Check(
                group="host",
                name="state folder",
                holds=False,
                evidence=f"{folder} lies in {shown}, which every candidate sees",
                remedy="name one elsewhere with --state-dir",
            )
        ]
    return [
        Check(
            group="host",
            name="state folder",
            holds=free > GIB // 4,
            evidence=f"{folder}, {free / GIB:.1f} GiB free",
            remedy="free some space, or name another folder with --state-dir",
            essential=False,
        )
    ]


async def _sandbox(settings: EvaluatorSettings) -> list[Check]:
    name = settings.sandbox
    group = f"sandbox {name}"
    try:
        sandbox = settings.open_sandbox()
        try:
            guarantees = await sandbox.probe()
        finally:
            await sandbox.close()
    except SandboxError as error:
        return [
            Check(
                group=group,
                name="starts",
                holds=False,
                evidence=str(error),
                remedy="see above; --sandbox none runs without isolation, for code that one wrote oneself",
            )
        ]
    return [_check(one, group, essential=name != "none") for one in guarantees]


def _check(one: Guarantee, group: str, *, essential: bool = True) -> Check:
    """`essential`: whether the guarantee is as essential here as it says itself."""
    return Check(
        group=group,
        name=one.name,
        holds=one.holds,
        evidence=one.evidence,
        remedy=one.remedy,
        essential=one.essential and essential,
    )


async def _command(argv: Sequence[str], seconds: float) -> tuple[int, str]:
    """Exit status and everything that was said; 127 where it cannot be started, 124 where it does not end."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as error:
        return 127, str(error)
    try:
        async with asyncio.timeout(seconds):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return 124, f"did not end within {seconds:g} s"
    return process.returncode or 0, output.decode("utf-8", "replace").strip()
