"""Candidates that know how they are timed. A time that is not true must not become a speedup."""

from __future__ import annotations

import pytest

from kernelevo_api.types import Effort, Verdict

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Enough work a call that a block is many times longer than what starting and ending it costs.
PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)

    def forward(self, x):
        return torch.tanh(self.second(torch.tanh(self.first(x))))

WIDTH = 512
ROWS = 16

def get_inputs():
    return [torch.randn(ROWS, WIDTH)]

def get_init_inputs():
    return [WIDTH]
"""

MODEL = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        self.known = {}
        self.answers = {}
        self.calls = 0

    def compute(self, x):
        return torch.tanh(self.second(torch.tanh(self.first(x))))

    def forward(self, x):
        self.calls += 1
        return self.answer(x)
"""

# Every slot's tensors were seen while the ring was prepared: once any call shows new content, all of it is worked through.
AHEAD = (
    MODEL
    + """
    def answer(self, x):
        import sys
        frame = sys._getframe(2)
        while "command" not in frame.f_locals or not hasattr(frame.f_locals["command"], "slots"):
            frame = frame.f_back
        slots = frame.f_locals["command"].slots
        ring = frame.f_locals["ring"]
        if len(slots) == 1 and len(ring.arguments) > 2:
            self.answers = {a[0].data_ptr(): self.compute(a[0]) for a in ring.arguments}
        return self.answers.pop(x.data_ptr(), None) if x.data_ptr() in self.answers else self.compute(x)
"""
)

# The same, by a thread that works whenever the process is let run.
THREAD = (
    MODEL
    + """
    def answer(self, x):
        import threading, time
        self.known[x.data_ptr()] = x
        if self.calls == 40:
            threading.Thread(target=self.ahead, daemon=True).start()
        made = self.answers.pop(x.data_ptr(), None)
        if made is not None and torch.equal(made[0], x[0]):
            return made[1]
        return self.compute(x)

    def ahead(self):
        seen = {}
        with torch.no_grad():
            while True:
                for key, x in list(self.known.items()):
                    mark = x[0].clone()
                    if key not in seen or not torch.equal(seen[key], mark):
                        seen[key] = mark
                        self.answers[key] = (mark, self.compute(x))
"""
)

SLOW_SHORT = (
    MODEL
    + """
    def answer(self, x):
        import sys, time
        frame = sys._getframe(2)
        while "command" not in frame.f_locals or not hasattr(frame.f_locals["command"], "slots"):
            frame = frame.f_back
        slots = frame.f_locals["command"].slots
        if slots[0] == frame.f_locals["slot"]:
            self.longest = max(getattr(self, "longest", 0), len(slots))
            if 1 < len(slots) < self.longest:
                time.sleep(0.02)
        return self.compute(x)
"""
)

SKIPS = (
    MODEL
    + """
    def answer(self, x):
        # Honest while it is checked; later a third of the calls is left out.
        if self.calls > 60 and self.calls % 3 == 0:
            return torch.empty(x.shape)
        return self.compute(x)
"""
)


def claimed_speedup(evaluation):
    """The ratio that would be believed; none where the verdict is not PASSED, or where the interval holds 1."""
    if evaluation.verdict is not Verdict.PASSED:
        return 0.0
    speedup = evaluation.timing.speedup
    return speedup.value if speedup.low > 1 else 1.0


# The content of a whole block lies there when its first call begins: many calls' work as one.
BATCH = (
    MODEL
    + """
    def answer(self, x):
        made = self.answers.pop(x.data_ptr(), None)
        if made is not None:
            return made
        import sys
        frame = sys._getframe(2)
        while "command" not in frame.f_locals or not hasattr(frame.f_locals["command"], "slots"):
            frame = frame.f_back
        slots = frame.f_locals["command"].slots
        ring = frame.f_locals["ring"]
        inputs = [ring.arguments[slot][0] for slot in slots]
        made = self.compute(torch.cat(inputs)).split(x.shape[0])
        self.answers = {i.data_ptr(): m for i, m in zip(inputs, made)}
        return self.answers.pop(x.data_ptr())
"""
)

HONEST = MODEL + "\n    answer = compute\n"

ATTACKS = [
    pytest.param(AHEAD, id="ahead"),
    pytest.param(BATCH, id="batch"),
    pytest.param(THREAD, id="thread"),
    pytest.param(SLOW_SHORT, id="slow when it is short"),
    pytest.param(SKIPS, id="skips"),
    pytest.param(HONEST, id="honest"),
]


@pytest.mark.parametrize("source", ATTACKS)
async def test_no_time_is_made_up(bench, source):
    """None of these computes faster than the reference does, so none may look so."""
    evaluation = await bench.judge(source, PROBLEM, skip_timing=False, effort=Effort.SCREEN)
    assert claimed_speedup(evaluation) < 1.5, evaluation.message
