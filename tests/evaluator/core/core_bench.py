"""What the tests of the evaluator's core share: a small problem, an honest candidate, and an executor to judge with."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import timedelta

from kernelevo_api.types import (
    BaselineKind,
    Candidate,
    Effort,
    Language,
    Limits,
    ProblemPolicy,
    TimingPolicy,
)
from kernelevo_evaluator.executor import Job, ProblemSource
from kernelevo_evaluator.settings import ExecutorSettings

PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return torch.relu(self.linear(x))

WIDTH = 48

def get_inputs():
    return [torch.randn(32, WIDTH)]

def get_init_inputs():
    return [WIDTH]
"""

HONEST = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return torch.clamp(torch.addmm(self.linear.bias, x, self.linear.weight.t()), min=0)
"""


def seconds(value):
    return timedelta(seconds=value)


LIMITS = Limits(
    build_time=seconds(60),
    prepare_time=seconds(40),
    check_time=seconds(40),
    run_time=seconds(60),
    profile_time=seconds(10),
    memory_bytes=1 << 30,
    device_memory_bytes=0,
    processes=64,
    output_bytes=64 << 10,
    temporary_bytes=64 << 20,
)


def policy(**changes):
    base = ProblemPolicy(
        dtype="float32",
        math="ieee",
        languages=(Language.CPP_INLINE, Language.TORCH),
        timing=TimingPolicy.PIPELINED,
    )
    return replace(base, **changes)


def problem(source, **changes):
    return ProblemSource(
        source=source,
        digest=hashlib.sha256((source + repr(sorted(changes.items()))).encode()).hexdigest(),
        name="small",
        policy=policy(**changes),
    )


def settings(folder):
    """The executor's settings, with two spares and the limits above."""
    return ExecutorSettings(state_dir=folder, spare_runners=2, default_limits=LIMITS, maximum_limits=LIMITS)


class Bench:
    """The executor, and the few verbs that tests use."""

    def __init__(self, executor):
        self.executor = executor
        self.progress = []
        self._reports = {}

    def tell(self, stage, text):
        self.progress.append((stage, text))

    async def audit(self, source, accept_refused=False, limits=LIMITS, **changes):
        return await self.executor.audit(problem(source, **changes), limits, accept_refused, self.tell)

    async def job(self, candidate, source=PROBLEM, *, effort=Effort.SCREEN, skip_timing=True, limits=None, **extra):
        changes = extra.pop("policy", {})
        asked = problem(source, **changes)
        report = self._reports.get(asked.digest)
        if report is None:
            report = await self.executor.audit(asked, LIMITS, extra.pop("accept_refused", False), self.tell)
            self._reports[asked.digest] = report
        extra.pop("accept_refused", None)
        return Job(
            evaluation_id="e",
            problem=asked,
            report=report,
            candidate=Candidate(source=candidate),
            language=Language.CPP_INLINE,
            effort=effort,
            limits=replace(LIMITS, **(limits or {})),
            baseline=extra.pop("baseline", BaselineKind.EAGER),
            skip_timing=skip_timing,
            **extra,
        )

    async def judge(self, candidate, source=PROBLEM, **options):
        """Evaluate; checks alone unless `skip_timing=False`."""
        self.progress.clear()
        return await self.executor.evaluate(await self.job(candidate, source, **options), self.tell)

    async def works(self):
        """An honest candidate still passes."""
        evaluation = await self.judge(HONEST)
        assert evaluation.verdict.value == "passed", evaluation.message
