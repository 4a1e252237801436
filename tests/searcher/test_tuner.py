"""Finding parameters, rewriting them exactly, and searching their values."""

from __future__ import annotations

import ast
import functools
import itertools
import math
import random
import statistics
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelevo_searcher.tuner.ladders import hinted_ladder, integer_ladder
from kernelevo_searcher.tuner.scan import find_parameters
from kernelevo_searcher.tuner.search import Observation, next_configuration
from kernelevo_searcher.tuner.space import Configuration, Parameter, TunableSource

SOURCE = '''"""Docstring: #define NOT_ME_TILE 8"""
import torch
import triton, triton.language as tl
from torch.utils.cpp_extension import load_inline

UNROLL = 4
MODE = "a"  # tune: "a", "b"
HIDDEN = 4096
USE_FAST: bool = True
GROUP_M: tl.constexpr = 8
WAVES = tl.constexpr(2)
CFLAGS = ["-O2", "-DTILE=16", "-Wall"]
SRC = r"""
#include <cmath>
#define BLOCK 64  // tune: 32, 64, 128
#define N 4096
// #define DEAD_TILE 8
static const char* text = "#define TEXT_TILE 8";
constexpr int kVec = 8;
static const unsigned STEPS = 2u;
extern "C" void f(const float* x, float* y, long n) {
#pragma omp parallel for num_threads(2)
  for (long i = 0; i < n; i += BLOCK) {
#pragma GCC unroll 4
    const int j = 3 + kVec + STEPS + TILE;
  }
}
"""
SRC2 = "#define A_TILE 8\\nvoid g(int x) { x += A_TILE; }\\n"


@triton.jit
def kernel(x, B: tl.constexpr = 128, BLOCK_M: tl.constexpr = 64):
    tl.arange(0, UNROLL * GROUP_M * WAVES), MODE, USE_FAST, CFLAGS


@triton.autotune(configs=[triton.Config({"BLOCK_N": 32}, num_warps=4, num_stages=2)], key=[])
@triton.jit
def tuned(x):
    pass


@triton.autotune(configs=[triton.Config({"BLOCK_K": 32}), triton.Config({"BLOCK_K": 64})], key=[])
@triton.jit
def tunes_itself(x):
    pass


one = load_inline(name="a", cpp_sources=SRC, functions=["f"])
two = load_inline(
    name="b",
    cpp_sources=SRC,
    extra_cflags=[
        "-O1",
        "-march=native",
    ],
)
three = load_inline(name="c", cpp_sources="", cuda_sources=SRC, extra_cuda_cflags=("-O3",))
kernel[(1,)](1, BLOCK=256, num_warps=8)
'''


@functools.cache
def found(source: str) -> TunableSource:
    tunable = find_parameters(source)
    assert tunable is not None
    return tunable


def values(source: str) -> dict[str, str]:
    tunable = found(source)
    return dict(zip((parameter.name for parameter in tunable.parameters), tunable.configuration, strict=True))


def test_parameters_are_found_where_they_are() -> None:
    names = values(SOURCE)
    expected = {
        "UNROLL": "4",
        "MODE": '"a"',
        "USE_FAST": "True",
        "GROUP_M": "8",
        "WAVES": "2",
        "CFLAGS:-O": "-O2",
        "CFLAGS:-march=native": "off",
        "CFLAGS:-DTILE": "16",
        "BLOCK": "64",
        "kVec": "8",
        "STEPS": "2u",
        "NUM_THREADS": "2",
        "UNROLL#2": "4",
        "A_TILE": "8",
        "BLOCK_M": "64",
        "BLOCK_N": "32",
        "num_warps": "4",
        "num_stages": "2",
        "extra_cflags:-O": "",
        "extra_cflags#2:-O": "-O1",
        "extra_cflags#2:-march=native": "on",
        "extra_cuda_cflags:--use_fast_math": "off",
        "BLOCK#2": "256",
        "num_warps#2": "8",
    }
    assert expected.items() <= names.items()
    for absent in ("HIDDEN", "N", "DEAD_TILE", "TEXT_TILE", "NOT_ME_TILE", "BLOCK_K", "j", "B"):
        assert absent not in names


def test_what_reaches_no_kernel_is_left_out() -> None:
    source = '''
TILE = 8
FLAGS = ["-O2", "-DSTEP=4", "-DDEAD=4"]
OTHER_FLAGS = ["-O2"]
SRC = r"""
#define BLOCK 64
#define DEAD_BLOCK 64  // BLOCK and DEAD_BLOCK
constexpr int kVec = 8;
constexpr int kDeadVec = 8;
__global__ void __launch_bounds__(256, 2) f(float* x) { x[BLOCK * kVec * STEP] = 0; }
"""
build(SRC, FLAGS)


@triton.jit
def kernel(x, BLOCK_M: tl.constexpr = 64, BLOCK_N: tl.constexpr = 32, BLOCK_K: tl.constexpr = 16):
    pass


kernel[(1,)](x, 128, BLOCK_N=64)
kernel[(1,)](x, 32, BLOCK_N=N)
'''
    names = values(source)
    assert {"FLAGS:-O", "FLAGS:-DSTEP", "BLOCK", "kVec", "BLOCK_K", "LAUNCH_THREADS", "LAUNCH_BLOCKS"} <= names.keys()
    assert names["BLOCK_N"] == "64"
    for absent in ("TILE", "OTHER_FLAGS:-O", "FLAGS:-DDEAD", "DEAD_BLOCK", "kDeadVec", "BLOCK_M", "BLOCK_N#2"):
        assert absent not in names, absent


def test_a_comment_keeps_a_value() -> None:
    code = 'S = "#define BLOCK 8  // tune: no\\nint f() { return BLOCK; }"'
    assert values(f"TILE = 8  # tune: no\nSTEP = 4  # tune: 4, 8\n{code}\nTILE, STEP\n") == {"STEP": "4"}


CONSTRAINED = '''
SRC = r"""
#define TILE 32  // tune: 8, 16, 24, 32, 64, 128, 256
#define UNROLL 4  // tune: 1, 2, 3, 4
static_assert(TILE % UNROLL == 0 && TILE >= 2 * UNROLL, "whole steps");
__global__ void f() { __shared__ float a[TILE][TILE + 1]; }
"""


@triton.jit
def kernel(x):
    tl.arange(0, BLOCK_M)
    tl.dot(x, x)


kernel[(1,)](
    x,
    BLOCK_M=64,  # tune: 48, 64, 128
    BLOCK_N=128,
    BLOCK_K=64,
    num_stages=3,
)
'''


@pytest.mark.parametrize(
    ("changes", "allowed"),
    [
        ({}, True),
        ({"UNROLL": "3"}, False),
        ({"TILE": "24", "UNROLL": "3"}, True),
        ({"TILE": "256"}, False),  # 263,168 bytes of a static array
        ({"BLOCK_M": "48"}, False),
        ({"num_stages": "8"}, False),  # at least 7 stages of 24 KiB
        ({"num_stages": "4", "BLOCK_K": "32"}, True),
    ],
)
def test_constraints_of_the_source_and_the_device(changes: dict[str, str], allowed: bool) -> None:
    tunable = found(CONSTRAINED)
    chosen = values(CONSTRAINED) | changes
    configuration = tuple(chosen[parameter.name] for parameter in tunable.parameters)
    assert tunable.constraints.allow(tunable.parameters, configuration, shared_bytes=100 << 10) is allowed
    if allowed is False and "num_stages" in changes:
        assert tunable.constraints.allow(tunable.parameters, configuration)


def test_no_configuration_breaks_a_constraint() -> None:
    tunable = found(CONSTRAINED)
    allowed = functools.partial(tunable.constraints.allow, tunable.parameters, shared_bytes=100 << 10)
    rng, observed = random.Random(0), [Observation(configuration=tunable.configuration, value=1.0, low=0.9, high=1.1)]
    for _ in range(60):
        configuration = next_configuration(tunable.parameters, observed, [], rng, allowed=allowed)
        assert configuration is not None
        assert allowed(configuration)
        observed.append(Observation(configuration=configuration, value=1.0, low=0.9, high=1.1))


@pytest.mark.parametrize(
    "vectors", ["__m512 v = _mm512_loadu_ps(p);", "at::vec::Vectorized<float> v;", "#include <immintrin.h>"]
)
def test_the_processor_stays_named_where_vector_instructions_are(vectors: str) -> None:
    source = f'load_inline(name="a", cpp_sources="{vectors}", extra_cflags=["-O2", "-march=native"])\n'
    assert "extra_cflags:-march=native" not in values(source)
    tunable = found(source)
    changed = tunable.render(tuple({**values(source), "extra_cflags:-O": "-O3"}.values()))
    assert '["-O3", "-march=native"' in changed
    assert values(source.replace(vectors, "float v;"))["extra_cflags:-march=native"] == "on"
    assert values(source.replace(', "-march=native"', ""))["extra_cflags:-march=native"] == "off"


def test_a_hint_names_the_values() -> None:
    tunable = found(SOURCE)
    (block,) = [parameter for parameter in tunable.parameters if parameter.name == "BLOCK"]
    assert block.values == ("32", "64", "128")
    assert block.ordered


@st.composite
def configurations(draw: st.DrawFn) -> Configuration:
    return tuple(draw(st.sampled_from(parameter.values)) for parameter in found(SOURCE).parameters)


def test_the_source_as_it_stands_is_rendered_as_it_stands() -> None:
    tunable = found(SOURCE)
    assert tunable.render(tunable.configuration) == SOURCE
    assert tunable.contains(tunable.configuration)


@given(configurations())
@settings(max_examples=40, deadline=None)
def test_what_is_rendered_is_read_back(configuration: Configuration) -> None:
    tunable = found(SOURCE)
    rendered = tunable.render(configuration)
    ast.parse(rendered)
    again = found(rendered)
    assert again.configuration == configuration
    assert again.skeleton == tunable.skeleton
    if configuration == tunable.configuration:
        assert rendered == SOURCE


def alike(one: str, other: str) -> int:
    """Characters at their beginnings that are the same."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@given(configurations(), st.integers(min_value=0))
@settings(max_examples=40, deadline=None)
def test_only_the_token_changes(configuration: Configuration, which: int) -> None:
    tunable = found(SOURCE)
    index = which % len(configuration)
    one = tuple(
        new if position == index else old
        for position, (old, new) in enumerate(zip(tunable.configuration, configuration, strict=True))
    )
    rendered = tunable.render(one)
    if ":" in tunable.parameters[index].name:  # a list of flags changes as a whole
        return
    old, new = tunable.configuration[index], one[index]
    assert len(rendered) - len(SOURCE) == len(new) - len(old)
    # What lies before the first difference and after the last is as it was.
    before = alike(SOURCE, rendered)
    after = alike(SOURCE[before:][::-1], rendered[before:][::-1])
    assert len(SOURCE) - before - after <= len(old)
    assert len(rendered) - before - after <= len(new)


@pytest.mark.parametrize("ending", ["\r\n", "\n"])
def test_line_endings_and_encodings_survive(ending: str) -> None:
    source = f'# é ∑{ending}TILE = 8  # tune: 4, 8{ending}S = "é #define UNROLL 2\\n", TILE{ending}'
    tunable = found(source)
    assert tunable.render(("4",)) == source.replace("= 8", "= 4")


@pytest.mark.parametrize("source", ["def (", "", "x = 1\n", "class ModelNew: pass\n", "TILE = 1 +\n", "\0"])
def test_nothing_is_found_where_nothing_is(source: str) -> None:
    assert find_parameters(source) is None


@given(st.text(alphabet="ABC_TILE =0123456789'\"\\\n#()[]{},:tune-O", max_size=80))
@settings(max_examples=150, deadline=None)
def test_any_text_is_survived(text: str) -> None:
    tunable = find_parameters(text)
    if tunable is not None:
        assert tunable.render(tunable.configuration) == text


def test_ladders() -> None:
    def rungs(name: str, text: str) -> tuple[str, ...] | None:
        ladder = integer_ladder(name, text)
        return ladder.values if ladder is not None else None

    assert rungs("num_warps", "4") == ("1", "2", "4", "8", "16", "32")
    assert rungs("THREADS", "2") == ("1", "2", "3", "4", "6", "8", "12", "16")
    assert rungs("USE_SMEM", "0") == ("0", "1")
    assert rungs("kBlockSize", "24u") is not None and "24u" in (rungs("kBlockSize", "24u") or ())
    for name, text in (
        ("HIDDEN", "8"),
        ("N", "8"),
        ("EPS", "1"),
        ("TILE", "0x10"),
        ("TILE", "010"),
        ("TILE", "100000"),
    ):
        assert rungs(name, text) is None
    assert hinted_ladder("// tune: 4, 1, 2", "A", "3").values == ("1", "2", "3", "4")  # type: ignore[union-attr]
    assert hinted_ladder("/* tune A: 4, 1 */", "A", "1").values == ("1", "4")  # type: ignore[union-attr]
    assert hinted_ladder("// tune B: 4, 1", "A", "1") is None
    assert hinted_ladder("// tune: 1", "A", "1") is None
    assert hinted_ladder("// tuned: 1, 2", "A", "1") is None


SPACE = (
    Parameter("O", ("-O1", "-O2", "-O3"), ordered=True, leverage=3.4),
    Parameter("march", ("off", "on"), ordered=False, leverage=3.2),
    Parameter("fast", ("off", "on"), ordered=False, leverage=2.6),
    Parameter("threads", ("1", "2", "3", "4", "6", "8"), ordered=True, leverage=2.5),
    Parameter("tile", tuple(str(1 << exponent) for exponent in range(12)), ordered=True, leverage=1.6),
    Parameter("unroll", ("1", "2", "4", "8", "16", "32"), ordered=True, leverage=1.8),
)
START = ("-O1", "off", "off", "1", "4", "1")


def gain(configuration: Configuration, peak: tuple[int, int]) -> float | None:
    """Logarithmic speedup; None where the outputs differ."""
    level, march, fast, threads, tile, unroll = (
        parameter.values.index(value) for parameter, value in zip(SPACE, configuration, strict=True)
    )
    if fast:
        return None
    return (
        0.15 * level + 0.3 * march - 0.35 * abs(threads - 1) - 0.08 * abs(tile - peak[0]) - 0.1 * abs(unroll - peak[1])
    )


def search(seed: int, budget: int, peak: tuple[int, int]) -> tuple[float, list[Configuration]]:
    rng = random.Random(seed)

    def measure(configuration: Configuration) -> Observation:
        true = gain(configuration, peak)
        if true is None:
            return Observation(configuration=configuration)
        value = math.exp(true + rng.gauss(0, 0.01))
        return Observation(configuration=configuration, value=value, low=value * 0.98, high=value * 1.02)

    observed = [measure(START)]
    pending: list[Configuration] = []
    proposed: list[Configuration] = []
    while len(proposed) < budget:
        configuration = next_configuration(SPACE, observed, pending, rng)
        assert configuration is not None
        proposed.append(configuration)
        pending.append(configuration)
        if len(pending) == 2:  # one evaluation is always under way while the next is chosen
            observed.append(measure(pending.pop(0)))
    best = max(
        (observation for observation in observed if observation.low is not None), key=lambda item: item.low or 0.0
    )
    start, top = gain(START, peak), 0.6
    reached = gain(best.configuration, peak)
    assert start is not None and reached is not None
    return (reached - start) / (top - start), proposed


@pytest.mark.parametrize("peak", [(6, 3), (4, 2), (1, 4)])
def test_most_of_the_gain_is_found_in_25_evaluations(peak: tuple[int, int]) -> None:
    shares = [search(seed, 25, peak)[0] for seed in range(12)]
    assert statistics.median(shares) >= 0.9
    assert min(shares) >= 0.7


def test_no_configuration_is_proposed_twice_and_all_are_in_the_space() -> None:
    _, proposed = search(1, 150, (6, 3))
    assert len(set(proposed)) == len(proposed)
    assert START not in proposed
    for configuration in proposed:
        assert all(value in parameter.values for parameter, value in zip(SPACE, configuration, strict=True))


def test_equal_seeds_search_alike() -> None:
    assert search(3, 30, (6, 3)) == search(3, 30, (6, 3))
    assert search(3, 30, (6, 3)) != search(4, 30, (6, 3))


def test_a_space_that_is_used_up_ends() -> None:
    space = (Parameter("A", ("1", "2"), ordered=True), Parameter("B", ("off", "on"), ordered=False))
    observed = [Observation(configuration=("1", "off"), value=1.0, low=0.9, high=1.1)]
    rng = random.Random(0)
    for _ in range(3):
        configuration = next_configuration(space, observed, [], rng)
        assert configuration is not None
        observed.append(Observation(configuration=configuration, value=1.0, low=0.9, high=1.1))
    assert next_configuration(space, observed, [], rng) is None


def test_the_demo_start_has_parameters_to_tune() -> None:
    for path in sorted((Path(__file__).parents[2] / "examples").glob("*/start*.py")):
        names = values(path.read_text(encoding="utf-8"))
        assert len(names) >= 4, path
