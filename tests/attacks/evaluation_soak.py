"""Hostile evaluations in a row through a service, and what of the host is not where it was afterwards.

Each is an attack of this folder as a candidate: a program's source runs where the candidate is imported, a build's through
`load_inline`. What it is after is there on the host meanwhile, and is looked for in everything that the service tells.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attack import Attack, BuildAttack, program
from attacks import ATTACKS
from soak import Host, device_memory_bytes, left
from targets import host, running

from kernelevo_api.types import Candidate, Effort, EvaluateRequest, Limits, Problem, Verdict
from kernelevo_sandbox import EndKind
from kernelevo_sandbox.uids import FIRST_UID, UIDS_PER_BACKEND
from kernelevo_sandbox.watchdog import descendants

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernelevo_api.client import AsyncEvaluatorClient
    from kernelevo_api.types import Evaluation

PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.randn(32, 32)]
"""
_HONEST = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def forward(self, x):
        return torch.clamp(x, min=0)
"""
_HONEST_EVERY = 10
_SECONDS = 1.5
"""What hangs is ended after this long."""
_HONEST_SECONDS = 60.0
_SETTLE_SECONDS = 40.0
_LOOK_SECONDS = 0.5
_NOT_OF_RUNNERS = frozenset({"descriptors"})
"""A runner has its channel, which it was given."""
_BY_PIPE = "outlive the sandbox as a daemon"
"""Told by a pipe that no candidate is given, and that stays open here; another daemon is told by its name."""
_OUTLIVES = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv("/bin/sleep", ["sleep", "{mark}"])
    os._exit(0)
"""


@dataclass(frozen=True, slots=True)
class Hostile:
    """One hostile candidate. `attack` is `None` for the daemon, which asks for nothing but to live on."""

    name: str
    attack: Attack | BuildAttack | None = None

    def source(self, given: Mapping[str, Any]) -> str:
        """The candidate."""
        if isinstance(self.attack, Attack):
            told = {name: value for name, value in given.items() if isinstance(value, str | int)}
            del told["secret_text"]
            lines = ["import sys", f"sys.argv = ['attack', {json.dumps(told)!r}]", f"exec({program(self.attack)!r})"]
            return "\n".join([*lines, _HONEST])
        if self.attack is None:
            return _OUTLIVES.format(mark=f"88{given['victim']}") + _HONEST
        asked = dict(self.attack.asked(given))
        names = {"cflags": "extra_cflags", "ldflags": "extra_ldflags"}
        more: dict[str, Any] = {names[name]: list(asked[name]) for name in names if name in asked}
        more |= {"is_python_module": False, "no_implicit_headers": True}
        return (
            f"{_HONEST}\nfrom torch.utils.cpp_extension import load_inline\n"
            f"load_inline('kernel', {list(asked['cpp_sources'])!r}, **{more!r})\n"
        )

    def escaped(self, evaluation: Evaluation, given: Mapping[str, Any]) -> str:
        """What it got; empty: nothing."""
        if self.attack is None:
            return "it lives on" if running(f"88{given['victim']}") else ""
        if self.attack.seen is not None and self.name != _BY_PIPE and self.attack.seen(given):
            return "its effect is seen on the host"
        said = _all_of(evaluation)
        if isinstance(self.attack, Attack):
            return next((line for line in said.splitlines() if line.startswith("GOT ")), "")
        return "what it was after was told" if any(text in said for text in self.attack.tells(given)) else ""


def candidates(*, memory: bool, builds: bool = True) -> list[Hostile]:
    """All of them; without `memory` none that fills what it may have, without `builds` none that needs C++ for a processor."""
    found = [Hostile("a daemon that outlives its evaluation")]
    for attack in ATTACKS:
        if isinstance(attack, BuildAttack):
            if builds and not attack.cuda and attack.after is None:
                found.append(Hostile(attack.name, attack))
        elif attack.kind not in _NOT_OF_RUNNERS and (memory or EndKind.OUT_OF_MEMORY not in attack.ends):
            found.append(Hostile(attack.name, attack))
    return found


@dataclass(slots=True)
class Soaked:
    """What came of a soak."""

    verdicts: Counter[str] = field(default_factory=Counter)
    escaped: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """No verdict on the candidate, or a wrong one on an honest candidate."""
    seconds: float = 0.0
    """From the first to the last that counts, honest ones between them included."""
    before: Host | None = None
    after: Host | None = None

    @property
    def left(self) -> dict[str, int]:
        """What was left behind, by how much it grew."""
        assert self.before is not None and self.after is not None
        return left(self.before, self.after)


async def soak(
    client: AsyncEvaluatorClient,
    server: int,
    count: int,
    *,
    at_once: int = 3,
    memory: bool = True,
    builds: bool = True,
    warm_up: int = 6,
) -> Soaked:
    """Evaluate `count` hostile candidates, and an honest one now and then.

    Args:
        server: pid of the service; what escapes it must come to its parent, which reaps (`tests/supervise.py`).
        at_once: evaluations under way.
        memory: with candidates that fill what memory they may have.
        builds: with candidates whose build is hostile, where `cpp_inline` is offered.
        warm_up: hostile evaluations before the host is looked at for the first time.
    """
    digest = (await client.register_problem(Problem(source=PROBLEM))).problem_digest
    hostile = candidates(memory=memory, builds=builds)
    # One that shares no factor with their number: a short soak sees every kind.
    step = next(step for step in (7, 11, 13) if len(hostile) % step)
    soaked = Soaked()

    async def judge(number: int) -> None:
        one = hostile[number * step % len(hostile)]
        with host(isolated=True) as given:
            evaluation = await _evaluated(client, digest, one.source(given), _SECONDS)
            if got := one.escaped(evaluation, given):
                soaked.escaped.append(f"{one.name}: {got}")
        _count(soaked, one.name, evaluation)

    async def honest(number: int) -> None:
        evaluation = await _evaluated(client, digest, f"{_HONEST}\n# {number}\n", _HONEST_SECONDS)
        _count(soaked, "honest", evaluation)
        if evaluation.verdict is not Verdict.PASSED:
            soaked.wrong.append(f"honest: {evaluation.message}")

    async def all_of(numbers: range) -> None:
        waiting = iter(numbers)

        async def worker() -> None:
            for number in waiting:
                await judge(number)
                if number % _HONEST_EVERY == _HONEST_EVERY - 1:
                    await honest(number)

        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(worker())

    await honest(-1)
    await all_of(range(warm_up))
    soaked.before = await _settled(server, None)
    began = time.monotonic()
    await all_of(range(warm_up, warm_up + count))
    soaked.seconds = time.monotonic() - began
    soaked.after = await _settled(server, soaked.before)
    return soaked


def _count(soaked: Soaked, name: str, evaluation: Evaluation) -> None:
    verdict = evaluation.verdict.value if evaluation.verdict is not None else "none"
    soaked.verdicts[verdict] += 1
    if evaluation.verdict in (None, Verdict.EVALUATOR_FAULT, Verdict.CANCELLED):
        soaked.wrong.append(f"{name}: {verdict}: {evaluation.message}")


async def _evaluated(client: AsyncEvaluatorClient, digest: str, source: str, seconds: float) -> Evaluation:
    return await client.evaluate(
        EvaluateRequest(
            request_id=str(uuid.uuid4()),
            problem_digest=digest,
            candidate=Candidate(source=source),
            effort=Effort.SCREEN,
            limits=Limits(build_time=timedelta(seconds=seconds)),
            skip_timing=True,
            fresh=True,
        )
    )


def _all_of(evaluation: Evaluation) -> str:
    """Everything that the service tells of a candidate."""
    texts = [evaluation.message]
    captured = [evaluation.output, evaluation.build.log if evaluation.build is not None else None]
    texts += [part for one in captured if one is not None for part in (one.head, one.tail)]
    if evaluation.error is not None:
        texts += [evaluation.error.message, evaluation.error.traceback]
    if evaluation.build is not None:
        texts += [f"{one.message} {one.excerpt}" for one in evaluation.build.diagnostics]
    return "\n".join(texts)


async def _settled(server: int, before: Host | None) -> Host:
    """The host once nothing of it changes any more, or nothing is left of what was not there before."""
    waited, last = 0.0, look(server)
    while waited < _SETTLE_SECONDS:
        await asyncio.sleep(_LOOK_SECONDS)
        waited += _LOOK_SECONDS
        now = look(server)
        if now.processes == last.processes and (before is None or not left(before, now)):
            return now
        last = now
    return last


def look(server: int) -> Host:
    """Counts of what a service's sandboxes could leave behind: on the host, and in the service itself."""
    root = _parent(server)
    proc = Path(f"/proc/{server}")
    below = descendants(root)
    blocks = {(uid - FIRST_UID) // UIDS_PER_BACKEND for pid in below if (uid := _uid(pid)) >= FIRST_UID}

    def ours(uid: int) -> bool:
        return uid >= FIRST_UID and (uid - FIRST_UID) // UIDS_PER_BACKEND in blocks

    everyone = (int(place.name) for place in Path("/proc").glob("[0-9]*"))
    groups = Path("/sys/fs/cgroup")
    return Host(
        processes=len({*below, *(pid for pid in everyone if ours(_uid(pid)))}),
        mounts=len(Path("/proc/self/mountinfo").read_text().splitlines()),
        groups=len(list(groups.rglob(f"kernelevo-n*-p{server}-t*"))),
        descriptors=len(list((proc / "fd").iterdir())),
        files=sum(
            ours(_owner(place)) for folder in ("/tmp", "/var/tmp", "/dev/shm") for place in Path(folder).iterdir()
        ),
        memory_bytes=int((proc / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        device_memory_bytes=device_memory_bytes(),
    )


def _owner(place: Path) -> int:
    with suppress(OSError):
        return place.lstat().st_uid
    return -1


def _uid(pid: int) -> int:
    return _owner(Path(f"/proc/{pid}"))


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
