"""An evaluator that is a formula: what stands at the process boundary in tests of the search alone.

It has the methods of the client, and the evaluator's promises that a searcher relies on: a request id is carried out once and
replayed afterwards, the same id with other content is refused, and both survive a killed searcher (a journal on disk).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import random
import re
from typing import TYPE_CHECKING, Any

from kernelevo_api.errors import ProblemRefused, RequestIdReused, TooLarge, Unreachable
from kernelevo_api.json import from_json, to_json
from kernelevo_api.types import (
    Baseline,
    BaselineKind,
    Capabilities,
    CheckedOn,
    Correctness,
    Device,
    DeviceKind,
    Effort,
    EvaluateRequest,
    Evaluation,
    Language,
    Mismatch,
    Problem,
    ProblemPolicy,
    ProblemReport,
    Progress,
    QueueState,
    Ratio,
    Seed,
    Stage,
    Timing,
    Trust,
    Verdict,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

PROBLEM = "class Model: pass\n\ndef get_inputs(): return []\n\ndef get_init_inputs(): return []\n"

KERNEL = '''"""A kernel with parameters."""
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#define TILE 4
#define UNROLL 1
constexpr int PREFETCH_STEPS = 1;
extern "C" void run(const float* x, float* y, long n) { y[n % TILE] = x[UNROLL * PREFETCH_STEPS]; }
"""
NUM_THREADS = 1
GROUP_ROWS = 8
module = load_inline(name="k", cpp_sources=SOURCE, functions=[], extra_cflags=["-O2"])


class ModelNew:
    launch = (NUM_THREADS, GROUP_ROWS)
'''

_NOISE = {Effort.SCREEN: 0.02, Effort.FULL: 0.008, Effort.FINAL: 0.004}


def landscape(source: str) -> float | None:
    """The true speedup of a source; None for one that computes something else."""

    def number(name: str, default: int) -> int:
        match = re.search(rf"{name}\s*(?:=|\s)\s*(\d+)", source)
        return int(match[1]) if match else default

    if "BROKEN" in source or "-ffast-math" in source:
        return None
    value = 1.0
    value *= 1.35 if "-O3" in source else 1.0
    value *= 1.25 if "-march=native" in source else 1.0
    value *= math.exp(-0.09 * abs(math.log2(number("TILE", 4)) - 7))
    value *= math.exp(-0.08 * abs(math.log2(number("UNROLL", 1)) - 3))
    value *= math.exp(-0.30 * abs(number("NUM_THREADS", 1) - 2))
    value *= math.exp(-0.02 * abs(math.log2(number("GROUP_ROWS", 8)) - 4))
    return value * math.exp(0.1 * min(number("BONUS", 0), 8)) * 1.3


class ScriptedEvaluator:
    """One endpoint.

    Args:
        journal: file that remembers what was carried out, so that it outlives the process; absent: this object remembers.
        seconds: how long an evaluation takes.
        lanes: evaluations at once.
        speed: factor on every speedup.
    """

    def __init__(
        self,
        journal: Path | None = None,
        *,
        seconds: float = 0.0,
        lanes: int = 1,
        floor_us: float | None = None,
        speed: float = 1.0,
    ) -> None:
        self._journal = journal
        self._seconds = seconds
        self._lanes = asyncio.Semaphore(lanes)
        self._lane_count = lanes
        self._floor_us = floor_us
        self._speed = speed
        self.requests: list[EvaluateRequest] = []
        self.executed: list[str] = []
        self.done: dict[str, Evaluation] = {}
        self.contents: dict[str, str] = {}
        self.joined: dict[str, asyncio.Task[Evaluation]] = {}
        self.down = False
        self.refuse_problem = False
        self.seeds: tuple[Seed, ...] = ()
        self.most_at_once = 0
        self.fail_next: list[Exception] = []
        self.fault_next = 0
        self.registrations = 0
        self.device = "scripted cpu"
        if journal is not None and journal.exists():
            for line in journal.read_text(encoding="utf-8").splitlines():
                self._remember(json.loads(line))

    def _remember(self, entry: dict[str, Any]) -> None:
        if "content" in entry:
            self.contents[entry["request_id"]] = entry["content"]
            self.executed.append(entry["request_id"])
        else:
            self.done[entry["request_id"]] = from_json(entry["evaluation"], Evaluation)

    def _write(self, entry: dict[str, Any]) -> None:
        if self._journal is not None:
            with self._journal.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")

    async def get_capabilities(self) -> Capabilities:
        if self.down:
            raise Unreachable("nobody at home")
        return Capabilities(
            api_version="v1",
            devices=(Device(id="cpu", kind=DeviceKind.CPU, name=self.device, architecture="x86_64", healthy=True),),
            queue=QueueState(lanes=self._lane_count, capacity=64, capacity_per_client=32),
        )

    async def register_problem(
        self,
        problem: Problem,
        *,
        accept_refused: bool = False,
        with_seeds: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> ProblemReport:
        if self.down:
            raise Unreachable("nobody at home")
        if self.refuse_problem and not accept_refused:
            raise ProblemRefused("the outputs do not depend on the inputs")
        self.registrations += not with_seeds
        if on_progress is not None:
            on_progress(Progress(stage=Stage.AUDIT, message="auditing"))
        return ProblemReport(
            problem_digest=hashlib.sha256(problem.source.encode()).hexdigest(),
            name=problem.name,
            policy=ProblemPolicy(dtype="float32", languages=(Language.CPP_INLINE,)),
            baselines=(Baseline(kind=BaselineKind.EAGER, median_us=100.0, low_us=99.0, high_us=101.0),),
            seeds=self.seeds if with_seeds else (),
        )

    async def evaluate(
        self, request: EvaluateRequest, *, on_progress: Callable[[Progress], None] | None = None
    ) -> Evaluation:
        if self.down:
            raise Unreachable("nobody at home")
        if self.fail_next:
            raise self.fail_next.pop(0)
        self.requests.append(request)
        assert request.candidate is not None
        if len(request.candidate.source) > 100_000:
            raise TooLarge("the source is too large")
        content = hashlib.sha256(json.dumps(to_json(request), sort_keys=True).encode()).hexdigest()
        if self.contents.setdefault(request.request_id, content) != content:
            raise RequestIdReused("the request id was used before with other content")
        if request.request_id in self.done:
            return self.done[request.request_id]
        if request.request_id not in self.joined:
            self.joined[request.request_id] = asyncio.ensure_future(self._carry_out(request, content, on_progress))
        return await asyncio.shield(self.joined[request.request_id])

    async def _carry_out(
        self, request: EvaluateRequest, content: str, on_progress: Callable[[Progress], None] | None
    ) -> Evaluation:
        if request.request_id not in self.executed:
            self.executed.append(request.request_id)
            self._write({"request_id": request.request_id, "content": content})
        async with self._lanes:
            self.most_at_once = max(self.most_at_once, self._lane_count - self._lanes._value)
            if on_progress is not None:
                on_progress(Progress(stage=Stage.TIME, message="timing"))
            await asyncio.sleep(self._seconds)
            evaluation = self.judge(request)
        if self.fault_next > 0:
            self.fault_next -= 1
            evaluation = Evaluation(verdict=Verdict.EVALUATOR_FAULT, request_id=request.request_id, message="a fault")
        self.done[request.request_id] = evaluation
        self._write({"request_id": request.request_id, "evaluation": to_json(evaluation)})
        return evaluation

    def judge(self, request: EvaluateRequest) -> Evaluation:
        """The verdict, a function of the request alone."""
        assert request.candidate is not None and request.effort is not None
        common: dict[str, Any] = {
            "evaluation_id": f"e-{request.request_id}",
            "request_id": request.request_id,
            "problem_digest": request.problem_digest or "",
            "candidate_digest": hashlib.sha256(request.candidate.source.encode()).hexdigest(),
            "language": Language.CPP_INLINE,
            "effort": request.effort,
            "checked_on": CheckedOn.DEVICE,
            "baseline": request.baseline,
        }
        true = landscape(request.candidate.source)
        if true is None:
            mismatch = Mismatch(
                index=(3, 5), got=1.5, expected=1.25, error=0.25, budget=0.001, elements=100, elements_wrong=7
            )
            return Evaluation(
                verdict=Verdict.OUTPUT_MISMATCH,
                stage=Stage.CHECK,
                message="7 of 100 elements differ by more than their budget",
                correctness=Correctness(trials=1, mismatch=mismatch),
                **common,
            )
        if request.baseline_candidate is not None:
            true /= landscape(request.baseline_candidate.source) or 1.0
        true *= self._speed
        rng = random.Random(request.request_id)
        noise = _NOISE[request.effort]

        def ratio() -> Ratio:
            value = true * math.exp(rng.gauss(0.0, noise / 2))
            return Ratio(value=value, low=value * (1 - noise), high=value * (1 + noise))

        speedup = ratio()
        bound = request.bound_speedup
        return Evaluation(
            verdict=Verdict.PASSED,
            stage=Stage.TIME,
            message="passed",
            timing=Timing(
                speedup=speedup,
                trust=Trust.BOUNDED,
                candidate_us=100.0 / speedup.value,
                baseline_us=100.0,
                floor_us=self._floor_us,
                stopped_at_bound=bound is not None and speedup.high < bound,
                confirmation=ratio()
                if request.effort is Effort.FINAL and (bound is None or speedup.low >= bound)
                else None,
            ),
            **common,
        )

    async def watch_health(self) -> AsyncIterator[bool]:
        yield True
        await asyncio.Event().wait()

    async def close(self) -> None:
        for task in self.joined.values():
            task.cancel()
