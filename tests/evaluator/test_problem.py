"""Problems and candidates are read, never run."""

from __future__ import annotations

import json

import pytest
from scripted_executor import PROBLEM

from kernelevo_api import errors
from kernelevo_api.types import Language, Problem, ProblemPolicy, TimingPolicy
from kernelevo_evaluator.findings import MAXIMUM, look
from kernelevo_evaluator.languages.recognise import recognise
from kernelevo_evaluator.problem import read_problem
from kernelevo_evaluator.sources import SourceError, digest_of, parse

LIMIT = 1 << 20


def read(source: str) -> ProblemPolicy:
    return read_problem(Problem(source=source), LIMIT).policy


def complaints(source: str) -> list[str]:
    with pytest.raises(errors.ProblemRefused) as caught:
        read(source)
    assert {one.field for one in caught.value.violations} == {"problem.source"}
    return [one.description for one in caught.value.violations]


def test_defaults() -> None:
    assert read(PROBLEM) == ProblemPolicy(dtype="float32", math="ieee", timing=TimingPolicy.PIPELINED)


def test_the_whole_policy() -> None:
    policy = read(
        PROBLEM
        + """
KERNELEVO = {"dtype": "bfloat16", "math": "tf32", "languages": ["triton", "cuda_inline"],
             "tolerance": {"rtol": 1e-4, "atol": 1e-5}, "shapes": [{"size": 3}, {"size": 1000}],
             "dynamic_weights": True, "timing": "latency"}
"""
    )
    assert policy.languages == (Language.TRITON, Language.CUDA_INLINE)
    assert (policy.rtol, policy.atol, policy.dtype, policy.math) == (1e-4, 1e-5, "bfloat16", "tf32")
    assert [json.loads(one) for one in policy.shapes] == [{"size": 3}, {"size": 1000}]
    assert policy.dynamic_weights
    assert policy.timing is TimingPolicy.LATENCY


def test_the_names_of_kernelbench() -> None:
    assert read(PROBLEM + "output_rtol = 1e-2\noutput_atol: float = 1e-3\n").rtol == 1e-2
    policy = read(PROBLEM + 'KERNELEVO = {"output_atol": 0.5, "tolerance": {"atol": 0.25}}\n')
    assert policy.atol == 0.25


def test_digest_and_name() -> None:
    problem = read_problem(Problem(source='"""Plus one.\n\nMore."""\n' + PROBLEM), LIMIT)
    assert problem.name == "Plus one."
    assert problem.digest == digest_of(problem.source)
    assert read_problem(Problem(source=PROBLEM, name="mine"), LIMIT).name == "mine"


def test_get_init_inputs_may_be_absent() -> None:
    read(PROBLEM.partition("def get_init_inputs")[0])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("", "the source is empty"),
        ("x = (\n", "line 1: SyntaxError"),
        ("class Model:\n  def f(self)\n    pass\n", "line 2: SyntaxError"),
        ("x = 1\n\0\n", "line 2: the source holds a NUL"),
        ("(" * 5000, "SyntaxError: too many nested parentheses"),
        ("x = " + "-" * 100_000 + "1", "nested too deeply"),
        ("def get_inputs(): ...", "a class `Model` is missing"),
        ("class Model: ...", "a function `get_inputs` is missing"),
        (PROBLEM + "KERNELEVO = dict(dtype='float32')", "line 18: KERNELEVO must be a plain literal"),
        (PROBLEM + "KERNELEVO = []", "must be a dictionary, not list"),
        (PROBLEM + "KERNELEVO = {'dtyp': 1}", "['dtyp'] is not known; the keys are dtype, math, languages"),
        (PROBLEM + "KERNELEVO = {'tolerance': {'abs': 1}}", "['tolerance']['abs'] is not known; the keys are rtol"),
        (PROBLEM + "KERNELEVO = {'dtype': 'int8'}", "KERNELEVO['dtype']: Input should be"),
        (PROBLEM + "KERNELEVO = {'tolerance': {'rtol': -1.0}}", "greater than or equal to 0"),
        (PROBLEM + "KERNELEVO = {'tolerance': {'rtol': 1e999}}", "finite"),
        (PROBLEM + "KERNELEVO = {'languages': ['cobol']}", "KERNELEVO['languages'][0]"),
        (PROBLEM + "KERNELEVO = {'shapes': {'size': 3}}", "valid list"),
        (PROBLEM + "KERNELEVO = {'shapes': [{'size': 0}]}", "greater than 0"),
        (PROBLEM + "KERNELEVO = {'shapes': [{'rows': 3}]}", "sets rows, which the module does not define"),
        (PROBLEM + "device = 'cuda:1'", "line 18: 'cuda:1' names a second device"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(source: str, words: str) -> None:
    assert words in "; ".join(complaints(source))


def test_everything_that_is_wrong_is_said_at_once() -> None:
    assert len(complaints("device = 'cuda:3'\nKERNELEVO = {'a': 1, 'b': 2}")) == 5


def test_too_large() -> None:
    with pytest.raises(errors.TooLarge):
        read_problem(Problem(source=PROBLEM), 10)


@pytest.mark.parametrize(
    ("source", "language"),
    [
        ("import torch", Language.TORCH),
        ("import triton\nimport triton.language as tl", Language.TRITON),
        ("from triton import jit", Language.TRITON),
        ("def f():\n    import triton", Language.TRITON),
        ("text = 'import triton'  # import triton", Language.TORCH),
        ("from pycuda.compiler import SourceModule", Language.PYCUDA),
        ("import cutlass.cute as cute", Language.CUTE),
        ("load_inline(name='a', cpp_sources=s, cuda_sources=k)", Language.CUDA_INLINE),
        ("torch.utils.cpp_extension.load_inline('a', s, k)", Language.CUDA_INLINE),
        ("load_inline(name='a', cpp_sources=s, cuda_sources='')", Language.CPP_INLINE),
        ("load_inline(name='a', cpp_sources=s, cuda_sources=[])", Language.CPP_INLINE),
        ("load_inline(**{'name': 'a', 'cuda_sources': s})", Language.CUDA_INLINE),
        ("ctypes.CDLL(load_inline(name='a', cpp_sources=s, is_python_module=False))", Language.CPP_INLINE),
        ("torch.load('x')\njson.load(f)", Language.TORCH),
        ("import triton\nload_inline('a', s, k)", Language.TRITON),
    ],
)
def test_languages_are_recognised_without_importing(source: str, language: Language) -> None:
    tree = parse(source)
    assert not isinstance(tree, SourceError)
    assert recognise(tree) is language


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("import subprocess", "starts_processes"),
        ("from multiprocessing import Pool", "starts_processes"),
        ("os.fork()", "starts_processes"),
        ("import socket", "uses_network"),
        ("gc.get_objects()", "searches_memory"),
        ("sys._getframe(1)", "reads_frames"),
        ("inspect.stack()", "reads_frames"),
        ("open('/proc/self/maps')", "reads_proc"),
        ("exec('x = 1')", "runs_text"),
        ("torch.allclose = lambda *a, **k: True", "patches_comparison"),
        ("time.perf_counter = lambda: 0", "patches_clock"),
        ("torch.cuda.Event.elapsed_time = f", "patches_clock"),
        ("torch.Tensor.__eq__ = f", "patches_torch"),
        ("torch.backends.cuda.matmul.allow_tf32 = True", "global_switch"),
        ("f = torch.compile(g)", "torch_compile"),
        ("class ModelNew(Model): ...", "subclasses_model"),
        ("def f(x):\n    try:\n        return k(x)\n    except Exception:\n        return torch.relu(x)", "falls_back"),
    ],
)
def test_findings(source: str, code: str) -> None:
    tree = parse(source)
    assert not isinstance(tree, SourceError)
    (finding,) = look(tree)
    assert finding.code == code
    assert finding.line
    assert not finding.refuses


def test_an_honest_candidate_has_no_findings_and_a_noisy_one_a_bound() -> None:
    honest = parse("import ctypes\nimport torch\nlib = ctypes.CDLL(path)\nclass ModelNew(nn.Module): ...")
    noisy = parse("eval('1')\n" * 500)
    assert not isinstance(honest, SourceError)
    assert not isinstance(noisy, SourceError)
    assert look(honest) == ()
    assert len(look(noisy)) == MAXIMUM
