"""What the audit says of problems, good and bad, and what a problem may be made of."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from core_bench import LIMITS, problem, seconds

from kernelevo_api.types import BaselineKind, Candidate, Effort, Language, Verdict
from kernelevo_evaluator.executor import ProblemRefused
from kernelevo_evaluator.referee.audit import memory_needed

pytestmark = pytest.mark.asyncio(loop_scope="session")


def source(forward="return torch.relu(x)", inputs="[torch.randn(8, 16)]", top="", init="", arguments="x"):
    return f"""
import torch
from torch import nn
{top}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init or "pass"}
    def forward(self, {arguments}):
        {forward}

def get_inputs():
    return {inputs}
"""


def candidate(forward="return torch.clamp(x, min=0)", arguments="x", top=""):
    return f"""
import torch
from torch import nn
{top}
class ModelNew(nn.Module):
    def forward(self, {arguments}):
        {forward}
"""


VARY = """
def vary(inputs, generator):
    {}
"""

REFUSED = {
    "constant vary": ("constant_vary", source() + VARY.format("return inputs")),
    "vary that is not finite": (
        "vary_not_finite",
        source() + VARY.format("return [torch.randn(8, 16, generator=generator) / 0.0 * 0.0]"),
    ),
    "constant output": ("constant_output", source("return torch.ones(3) + 0 * x.sum()")),
    "random forward": ("random_forward", source("return x + torch.rand_like(x)")),
    "not finite": ("not_finite", source("return torch.log(x)")),
    "constant inputs": ("constant_inputs", source(inputs="[torch.arange(128.0).reshape(8, 16)]")),
    "no inputs": ("no_input", source("return torch.ones(3)", inputs="[]", arguments="")),
    "no output": ("no_output", source("return None")),
    "empty output": ("no_output", source("return x[:0]")),
    "no influence": (
        "input_without_influence",
        source("return torch.relu(x)", inputs="[torch.randn(8, 16), torch.randn(4)]", arguments="x, y"),
    ),
    "ones pass": ("trivial_passes", source("return torch.exp(x * 1e-9)")),
    "the mean passes": ("trivial_passes", source("return 3 + x * 1e-9")),
    "an earlier output passes": ("trivial_passes", source("return torch.arange(16.0) + 1e-9 * x")),
    "infinite on some input": ("not_finite", source("return 1 / torch.relu(x)")),
    "random by numpy": (
        "random_forward",
        source("return x + float(np.random.default_rng().random())", top="import numpy as np"),
    ),
    "remembers its calls": ("random_forward", source("self.n = getattr(self, 'n', 0) + 1\n        return x * self.n")),
    "zeros pass": ("trivial_passes", source("return torch.relu(x)"), {"rtol": 2.0}),
    "an input passes": ("trivial_passes", source("return x * 1.0")),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_refused(bench, name):
    code, text, *changes = REFUSED[name]
    with pytest.raises(ProblemRefused) as refused:
        await bench.audit(text, **dict(*changes))
    assert code in {finding.code for finding in refused.value.report.findings if finding.refuses}


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nraise RuntimeError('broken')\n",
        "def broken(:\n",
        "x = 1\n",
        source("raise ValueError('no')"),
        source("return x.to_sparse()"),
        source(inputs="5"),
        source(inputs="[object()]"),
        source(init="raise KeyError('k')"),
        source(top="import os; os._exit(0)"),
        source("import os; os._exit(3)"),
        source("import ctypes; ctypes.string_at(0)"),
        source("return self.forward(x)"),
        source(inputs="[torch.randn(8, 16 + int(torch.randint(0, 100, (1,))))]"),
        source() + VARY.format("raise ValueError('no')"),
        source() + VARY.format("return [inputs[0][1:]]"),
    ],
    ids=[str(n) for n in range(15)],
)
async def test_a_reference_that_fails(bench, text):
    with pytest.raises(ProblemRefused) as refused:
        await bench.audit(text)
    assert str(refused.value)


REMARKED = {
    "mutates_inputs": source("x.mul_(2)\n        return torch.relu(x)"),
    "no_double_precision": source("return torch.relu(x.to(torch.float32) if x.dtype != torch.float64 else 1 // 0)"),
    "constant_input": source(
        "return torch.relu(x) * y", inputs="[torch.randn(8, 16), torch.arange(16.0)]", arguments="x, y"
    ),
}


@pytest.mark.parametrize("code", REMARKED)
async def test_remarked(bench, code):
    report = await bench.audit(REMARKED[code])
    found = {finding.code: finding for finding in report.findings}
    assert not found[code].refuses
    assert found[code].message


async def test_memory_that_does_not_suffice_twice():
    region = SimpleNamespace(nbytes=1 << 30)
    reference = SimpleNamespace(
        slot_bytes=2 << 30, inputs=region, expected=region, weights=SimpleNamespace(layout=SimpleNamespace(nbytes=0))
    )
    # Two smallest rings of three slots, four real input sets, the answer and what it is compared with.
    assert memory_needed(reference) == (2 * 3 * 2 + 4 + 3) << 30


async def test_unseeded_inputs_are_remarked(bench):
    report = await bench.audit(
        source(inputs="[torch.tensor([[v - 128.0 for v in os.urandom(16)] for _ in range(8)])]", top="import os\n")
    )
    assert "unseeded_inputs" in {finding.code for finding in report.findings}


async def test_accepted_with_a_mark(bench):
    report = await bench.audit(source("return x * 1.0"), accept_refused=True)
    assert report.accepted_with_mark
    assert any(finding.refuses for finding in report.findings)


async def test_an_audit_that_runs_out_of_time_is_no_report(bench):
    limits = replace(LIMITS, check_time=seconds(1), prepare_time=seconds(1))
    slow = source(
        "import time; time.sleep(0 if CALLS.append(1) or len(CALLS) < 12 else 60)\n        return torch.relu(x)",
        top="CALLS = []\n",
    )
    with pytest.raises(ProblemRefused):
        await bench.audit(slow, limits=limits, accept_refused=True)
    await bench.works()


async def test_a_reference_that_claims_more_than_there_is(bench):
    """Sizes are claims too: the referee does not take memory on a runner's word alone."""
    claim = """
import kernelevo_evaluator.runner.harness as harness
from kernelevo_evaluator.messages.layout import Layout, TensorLeaf, TensorSpec, TupleNode
from kernelevo_evaluator.messages.runner import Described
def described(nonce, layout):
    size = 1 << 44
    spec = TensorSpec(shape=(size // 4,), stride=(1,), dtype="float32", offset=0, nbytes=size)
    return Described(nonce=nonce, layout=Layout(tree=TupleNode((TensorLeaf(0),)), tensors=(spec,), nbytes=size))
harness.Described = described
"""
    with pytest.raises(ProblemRefused, match="MiB"):
        await bench.audit(source(top=claim))


async def test_memory_that_nobody_has(bench):
    with pytest.raises(ProblemRefused):
        await bench.audit(source(inputs="[torch.empty(1 << 40)]"))
    await bench.works()


LAYERED = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        return self.norm(self.linear(x))

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.drop = nn.Dropout(0.3)
        self.act = nn.ReLU(inplace=True)
        self.register_buffer("shift", torch.rand(width))

    def forward(self, x):
        for block in self.blocks:
            x = self.act(self.drop(block(x)) + self.shift)
        return x

def get_inputs():
    return [torch.randn(24, 16)]

def get_init_inputs():
    return [16]
"""
"""Helper classes, a buffer, an in-place module, and layers that are of two minds: they are checked and timed under `eval()`."""


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (("self.drop(block(x))", "block(x)"), Verdict.PASSED),
        (("self.norm(self.linear(x))", "self.norm(x)"), Verdict.OUTPUT_MISMATCH),
        (("+ self.shift", ""), Verdict.OUTPUT_MISMATCH),
    ],
)
async def test_helpers_buffers_in_place_modules_and_layers_of_training(bench, change, verdict):
    text = LAYERED.replace("class Model(", "class ModelNew(").replace(*change)
    text = text[: text.index("def get_inputs")]
    evaluation = await bench.judge(text, LAYERED, effort=Effort.SCREEN)
    assert evaluation.verdict is verdict, evaluation.message


GOOD = {
    "mutating": (
        source("x.add_(1)\n        return x.sum(1)"),
        [
            ("x.add_(1)\n        return x.sum(1)", Verdict.PASSED),
            ("return (x + 1).sum(1)", Verdict.OUTPUT_MISMATCH),
        ],
        {},
    ),
    "nested": (
        source("return {'a': [x + 1, (x * 2,)], 'b': x.argmax(1)}"),
        [
            ("return {'b': x.argmax(1), 'a': (1 + x, [x + x])}", Verdict.PASSED),
            ("return {'a': [x + 1, (x * 2,)]}", Verdict.WRONG_INTERFACE),
            ("return {'a': [x + 1, (x * 2,)], 'b': x.argmin(1)}", Verdict.OUTPUT_MISMATCH),
        ],
        {},
    ),
    "integers": (
        source("return torch.cumsum(x, 0)", inputs="[torch.randint(-5, 5, (20, 6))]"),
        [("return x.cumsum(0)", Verdict.PASSED), ("return x.cumsum(0) + (x == 0)", Verdict.OUTPUT_MISMATCH)],
        {},
    ),
    "booleans": (
        source("return x > 0"),
        [
            ("return ~(x <= 0)", Verdict.PASSED),
            ("return x < 0", Verdict.OUTPUT_MISMATCH),
        ],
        {},
    ),
    "complex": (
        source("return torch.fft.rfft(x)"),
        [
            ("return torch.fft.fft(x)[..., :9]", Verdict.PASSED),
            ("return torch.fft.rfft(x).conj()", Verdict.OUTPUT_MISMATCH),
        ],
        {},
    ),
    "scalar": (
        source("return (x * x).sum()"),
        [("return x.flatten() @ x.flatten()", Verdict.PASSED), ("return (x * x).sum()[None]", Verdict.WRONG_INTERFACE)],
        {},
    ),
    "bfloat16": (
        source("return torch.tanh(x)"),
        [
            ("return torch.tanh(x.float()).bfloat16()", Verdict.PASSED),
            ("return torch.tanh(x.float())", Verdict.WRONG_INTERFACE),
        ],
        {"dtype": "bfloat16"},
    ),
    "views": (
        source("return x.t()"),
        [("return x.t().contiguous()", Verdict.PASSED), ("return x", Verdict.WRONG_INTERFACE)],
        {},
    ),
    "shapes": (
        source("return torch.relu(x)", inputs="[torch.randn(ROWS, 16)]", top="ROWS = 8\n"),
        [
            ("return torch.clamp(x, min=0)", Verdict.PASSED),
            ("return torch.clamp(x, min=0) if x.shape[0] == 8 else x * 1", Verdict.OUTPUT_MISMATCH),
        ],
        {"shapes": ('{"ROWS": 5}', '{"ROWS": 33}')},
    ),
}


@pytest.mark.parametrize("name", GOOD)
async def test_kinds_of_problems(bench, name):
    text, cases, changes = GOOD[name]
    for forward, verdict in cases:
        evaluation = await bench.judge(
            candidate(forward), text, policy=changes, effort=Effort.FULL, accept_refused=True
        )
        assert evaluation.verdict is verdict, (forward, evaluation.message)


async def test_a_candidate_as_the_baseline(bench):
    other = {"baseline": BaselineKind.CANDIDATE, "baseline_language": Language.CPP_INLINE, "skip_timing": False}
    text = source("return torch.tanh(x) * 2", inputs="[torch.randn(200, 200)]")
    good = candidate("return 2 * torch.tanh(x)")
    evaluation = await bench.judge(good, text, baseline_candidate=Candidate(source=good), **other)
    assert evaluation.verdict is Verdict.PASSED, evaluation.message
    assert evaluation.timing.speedup.low < 1.3
    bad = Candidate(source=candidate("return torch.tanh(x)"))
    evaluation = await bench.judge(good, text, baseline_candidate=bad, **other)
    assert evaluation.verdict is Verdict.PROBLEM_FAULT
    broken = Candidate(source="def broken(:")
    evaluation = await bench.judge(good, text, baseline_candidate=broken, **other)
    assert evaluation.verdict is Verdict.PROBLEM_FAULT


@pytest.mark.slow
async def test_torch_compile_as_the_baseline(bench):
    text = source("return torch.tanh(x) * 2 + x", inputs="[torch.randn(200, 200)]")
    evaluation = await bench.judge(
        candidate("return 2 * torch.tanh(x) + x"), text, baseline=BaselineKind.TORCH_COMPILE, skip_timing=False
    )
    assert evaluation.verdict in (Verdict.PASSED, Verdict.TIMING_DISPUTED), evaluation.message
    assert evaluation.timing.baseline_us > 0


async def test_digests_tell_problems_apart():
    assert problem(source()).digest != problem(source(), dtype="bfloat16").digest


SORTED = "[torch.randn(8, 16).sort(dim=1).values]"
ORDERED = """
        if not torch.equal(x, x.sort(dim=1).values):
            raise ValueError("not in order")
        return torch.clamp(x, min=0)"""
STRICT = """
        if not torch.equal(x, x.sort(dim=1).values):
            raise ValueError("not in order")
        return torch.relu(x)"""


@pytest.mark.parametrize(
    "text",
    [
        source(inputs=SORTED) + VARY.format("return [torch.randn(8, 16, generator=generator).sort(dim=1).values]"),
        source(inputs=SORTED)
        + VARY.format("inputs[0].add_(torch.randn(8, 16, generator=generator)); return [inputs[0].sort(dim=1).values]"),
        source(STRICT, inputs=SORTED),
    ],
    ids=["vary", "vary in place", "drawn anew"],
)
async def test_inputs_that_cannot_be_mixed_stay_what_they_are(bench, text):
    """Timed calls see nothing that is out of order: by the problem's `vary`, or since the reference refuses mixed inputs."""
    result = await bench.judge(candidate(ORDERED), text, skip_timing=False, effort=Effort.SCREEN)
    assert result.verdict is Verdict.PASSED, result.message
    assert result.correctness.timed_calls_compared > 0


async def test_inputs_that_are_drawn_never_repeat(bench):
    """What a timed call is given was given to none before, though nothing can be mixed."""
    seen = """
        key = x.sum().item()
        if key in KNOWN and KNOWN[key] > 2:
            raise ValueError("seen before")
        KNOWN[key] = KNOWN.get(key, 0) + 1
        return torch.clamp(x, min=0)"""
    # Each check calls twice on one input.
    result = await bench.judge(
        candidate(seen, top="KNOWN = {}"), source(STRICT, inputs=SORTED), skip_timing=False, effort=Effort.SCREEN
    )
    assert result.verdict is Verdict.PASSED, result.message
