"""First candidates without a model: what Inductor generates for a reference, made in a sandbox, judged like any candidate."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import triton_seed
from core_bench import LIMITS, PROBLEM, problem

from kernelevo_api.types import Language, Verdict
from kernelevo_evaluator.executor import NO_SEED
from kernelevo_searcher.tuner.scan import find_parameters

pytestmark = pytest.mark.asyncio(loop_scope="session")

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"

NESTED = """
import torch
from torch import nn

class Scale(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        return x * self.weight

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.parts = nn.Sequential(Scale(width), nn.LayerNorm(width))
        self.register_buffer("shift", torch.rand(width))
        self.table = torch.tensor([0.25, 0.5])

    def forward(self, pair, extra):
        a, b = pair
        hidden = self.parts(a) + b + self.shift * self.table[1]
        return {"sum": torch.tanh(hidden), "most": (hidden * extra["scale"]).argmax(-1)}

WIDTH = 96

def get_inputs():
    return [(torch.randn(40, WIDTH), torch.randn(40, WIDTH)), {"scale": torch.rand(40, WIDTH) + 0.5}]

def get_init_inputs():
    return [WIDTH]
"""


async def judged(bench, source, **changes):
    seeds, findings = await bench.executor.seeds(problem(source, **changes), LIMITS, bench.tell)
    assert not findings, findings
    (seed,) = seeds
    job = await bench.job(seed.source, source, policy=changes)
    return seed, await bench.executor.evaluate(job, bench.tell)


@pytest.mark.slow
async def test_seed_of_an_example_passes_on_every_declared_shape(bench):
    source = (EXAMPLES / "elementwise_chain" / "problem.py").read_text()
    seed, evaluation = await judged(bench, source, shapes=('{"batch_size": 37, "features": 1000}',))
    assert evaluation.verdict is Verdict.PASSED, evaluation.message
    assert seed.language is Language.CPP_INLINE
    assert "_call_1" in seed.source
    assert "get_inputs" not in seed.source


@pytest.mark.slow
async def test_seed_takes_nested_inputs_outputs_buffers_and_constants(bench):
    _, evaluation = await judged(bench, NESTED)
    assert evaluation.verdict is Verdict.PASSED, evaluation.message


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("return torch.relu(self.linear(x))", "return x * 2 if x.sum() > 0 else x * 3"), "traced as one graph"),
        (("get_inputs():\n    return", "get_inputs():\n    raise ValueError('no data')\n    return"), "no data"),
    ],
)
async def test_without_a_seed_the_report_says_why(bench, change, why):
    source = PROBLEM.replace(*change)
    assert source != PROBLEM
    seeds, findings = await bench.executor.seeds(problem(source), LIMITS, bench.tell)
    assert seeds == ()
    (finding,) = findings
    assert finding.code == NO_SEED
    assert not finding.refuses
    assert why in finding.message


async def test_seed_keeps_to_the_languages_of_the_problem(bench):
    seeds, findings = await bench.executor.seeds(problem(PROBLEM, languages=(Language.TORCH,)), LIMITS, bench.tell)
    assert seeds == ()
    assert "cpp_inline" in findings[0].message


async def test_what_triton_kernels_share_is_told_apart():
    from kernelevo_evaluator.runner.inductor import Generated
    from kernelevo_evaluator.runner.seed_source import module_source

    def kernel(name):
        return f"""
import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers, triton_heuristics
triton_helpers.set_driver_to_gpu()

@triton.jit
def _triton_helper_fn_add0(a, b):
    return a + b

@triton_heuristics.pointwise(size_hints={{'x': 16}}, filename=__file__, inductor_meta={{'autotune_local_cache': True}})
@triton.jit
def {name}(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    tl.store(out_ptr0, _triton_helper_fn_add0(tl.load(in_ptr0), 1))
"""

    wrapper = f"""
from torch._C import _cuda_getCurrentRawStream as get_raw_stream
import unused
empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cuda
first = async_compile.triton('first', {kernel("first")!r}, device_str='cuda')
second = async_compile.triton('second', {kernel("second")!r}, device_str='cuda')
class Runner:
    def call(self, args):
        (arg0_1, ) = args
        args.clear()
        buf0 = empty_strided_cuda((16, ), (1, ), torch.float32)
        stream0 = get_raw_stream(0)
        first.run(arg0_1, buf0, 16, stream=stream0)
        second.run(buf0, arg0_1, 16, stream=stream0)
        return (buf0, )
"""
    one = Generated(
        wrapper=wrapper,
        arguments=("leaves[0]",),
        result="out[0]",
        constants={},
        key=(((16,), "torch.float32"),),
        compiler_flags=(),
    )
    source = module_source(PROBLEM, [one], "2")
    names = [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    assert len(names) == len(set(names))
    assert "_triton_helper_fn_add0_first" in names
    assert "'autotune_local_cache': False" in source
    assert "unused" not in source
    assert "async_compile" not in source


async def test_triton_kernels_are_plain_right_and_tunable_where_they_are_timed(tmp_path):
    seed = tmp_path / "seed.py"
    for step in ("generate", "run"):
        command = [sys.executable, "-P", triton_seed.__file__, step, str(seed)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        if step == "generate":
            source = seed.read_text()
            # Values that the first of Inductor's configurations does not have compute the same.
            tunable = find_parameters(source)
            smaller = [
                parameter.values[max(0, parameter.values.index(value) - 1)]
                for parameter, value in zip(tunable.parameters, tunable.configuration, strict=True)
            ]
            assert tuple(smaller) != tunable.configuration
            seed.write_text(tunable.render(tuple(smaller)))
    assert "triton_heuristics" not in source
    assert "get_raw_stream" not in source
    names = {parameter.name.partition("#")[0] for parameter in tunable.parameters}
    assert names <= {"XBLOCK", "YBLOCK", "R0_BLOCK", "num_warps"}
    # The kernels of the further sizes are checked and never timed: nothing of theirs is tuned.
    launches = source.split("_launch = dict(")[1:]
    assert len(launches) == source.count("_grid(meta)")
    offered = [part.partition("\n)")[0].count("# tune: no") < part.partition("\n)")[0].count("=") for part in launches]
    assert any(offered)
    assert sum(offered) * 2 == len(offered)
