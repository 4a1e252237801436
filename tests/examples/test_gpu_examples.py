"""The examples for a GPU: all of them through the real evaluator where there is one; elsewhere what needs none.

Without a GPU each honest Triton candidate is checked under Triton's interpreter at a small shape and compiled for Hopper at its
own, and each CUDA candidate that does without torch's headers is built. A new file is a new case.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kernelevo_api.types import Language, Problem, Verdict
from kernelevo_evaluator.lanes.gpu import NoGpu, find_gpus
from kernelevo_evaluator.lanes.quiet import Quiet
from kernelevo_evaluator.languages.builder import Builder
from kernelevo_evaluator.languages.recognise import recognise
from kernelevo_evaluator.languages.toolkit import cuda_toolkit
from kernelevo_evaluator.messages.runner import BuildRequest
from kernelevo_evaluator.problem import read_problem
from kernelevo_sandbox import BubblewrapSandbox, SandboxUnavailable

if TYPE_CHECKING:
    from conftest import ServedEvaluator

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
KERNELEVO = Path(sys.executable).parent / "kernelevo"
CASE_SECONDS = 400

PROBLEMS = sorted(EXAMPLES.glob("gpu_*/problem.py"))
PASSES = sorted(EXAMPLES.glob("gpu_*/passes/*.py"))
FAILS = sorted(EXAMPLES.glob("gpu_*/fails/*.py"))

pytestmark = pytest.mark.timeout(CASE_SECONDS + 60)


def language(path: Path) -> Language:
    return recognise(ast.parse(path.read_text(encoding="utf-8")))


def of(*wanted: Language) -> list[Any]:
    """The honest candidates in these languages, as parameters."""
    return [pytest.param(p, id=f"{p.parts[-3]}/{p.stem}") for p in PASSES if language(p) in wanted]


def expected(path: Path) -> set[str]:
    """The verdicts that a failing example may get, as its first line names them."""
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# expect: "), f"{path} begins with {first!r}"
    return {name.strip() for name in first.removeprefix("# expect: ").split("|")}


def test_every_example_is_complete() -> None:
    assert len(PROBLEMS) >= 10
    for problem in PROBLEMS:
        policy = read_problem(Problem(source=problem.read_text(encoding="utf-8")), 1 << 20).policy
        assert policy.shapes, f"{problem} declares no further shape, at which it can be checked without a GPU"
        passes = list((problem.parent / "passes").glob("*.py"))
        assert passes
        assert list((problem.parent / "fails").glob("*.py"))
        assert {language(path) for path in passes} <= set(policy.languages), problem
    for path in FAILS:
        assert expected(path) <= {verdict.name for verdict in Verdict}, path
    assert {language(path) for path in PASSES} == {
        Language.TRITON,
        Language.CUDA_INLINE,
        Language.PYCUDA,
        Language.CUTE,
    }


def own_process(program: str, candidate: Path) -> Any:
    """What one of the programs beside this file prints of a candidate."""
    done = subprocess.run(
        [sys.executable, "-P", Path(__file__).with_name(program), candidate],
        capture_output=True,
        text=True,
        timeout=CASE_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("candidate", of(Language.TRITON))
def test_right_under_the_interpreter(candidate: Path) -> None:
    pytest.importorskip("triton")
    found = own_process("interpret_candidate.py", candidate)
    assert found["ok"], found["outputs"]


@pytest.mark.slow
@pytest.mark.parametrize("candidate", of(Language.TRITON))
def test_compiles_for_hopper_without_spilling(candidate: Path) -> None:
    pytest.importorskip("triton")
    kernels = own_process("compile_candidate.py", candidate)
    assert kernels
    for name, kernel in kernels.items():
        assert kernel["spilled_bytes"] <= 256, (name, kernel)
        assert kernel["shared_bytes"] <= 227 << 10, (name, kernel)


@pytest.mark.slow
@pytest.mark.parametrize("candidate", of(Language.CUDA_INLINE))
async def test_cuda_is_built(candidate: Path, tmp_path: Path) -> None:
    if cuda_toolkit() is None:
        pytest.skip("no CUDA compiler on this host")
    sources = constants(candidate)
    if "torch" in sources["CUDA_SOURCE"]:
        pytest.importorskip("torch").version.cuda or pytest.skip("this torch lacks headers of its CUDA build")
    sandbox = BubblewrapSandbox()
    try:
        await sandbox.probe()
        builder = Builder(
            sandbox, Quiet(), tmp_path / "artefacts", 1, frozenset(os.sched_getaffinity(0)), architecture="sm_90"
        )
        plain = "torch" not in sources["CUDA_SOURCE"]
        request = BuildRequest(
            nonce=1,
            name="kernel",
            cpp_sources=(sources.get("CPP_SOURCE", ""),),
            cuda_sources=(sources["CUDA_SOURCE"],),
            implicit_headers=not plain,
            python_module=not plain,
        )
        result = await builder.build(request, CASE_SECONDS, 6 << 30)
        assert result.path is not None, result.log_text
        assert result.kernels
        assert all(kernel.spill_bytes == 0 for kernel in result.kernels)
    except SandboxUnavailable as error:
        pytest.skip(f"no sandbox on this host: {error}")
    finally:
        await sandbox.close()


def constants(candidate: Path) -> dict[str, str]:
    """Texts that a module gives names to."""
    return {
        statement.targets[0].id: statement.value.value
        for statement in ast.parse(candidate.read_text(encoding="utf-8")).body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    }


# --- On a GPU


@pytest.fixture(scope="module")
def gpu() -> None:
    try:
        find_gpus()
    except NoGpu as error:
        pytest.skip(f"no GPU: {error}")


def evaluate(candidate: Path, served: ServedEvaluator, *options: str) -> dict[str, Any]:
    done = subprocess.run(
        [
            KERNELEVO,
            "evaluate",
            candidate.parents[1] / "problem.py",
            candidate,
            "--json",
            "--evaluator",
            served.address,
            *options,
        ],
        capture_output=True,
        text=True,
        timeout=CASE_SECONDS,
    )
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        pytest.fail(f"exit code {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return found


def cases(paths: list[Path]) -> list[Any]:
    return [pytest.param(p, id=f"{p.parts[-3]}/{p.stem}") for p in paths]


@pytest.mark.gpu
@pytest.mark.parametrize("candidate", cases(PASSES))
def test_passes(candidate: Path, gpu: None, served_evaluator: ServedEvaluator) -> None:
    if language(candidate) is Language.CUTE:
        pytest.importorskip("cutlass")
    if language(candidate) is Language.PYCUDA:
        pytest.importorskip("pycuda")
    for _ in range(3):  # a timing that a restless host disputes is taken again
        evaluation = evaluate(candidate, served_evaluator)
        if evaluation["verdict"] != "timing_disputed":
            break
    assert evaluation["verdict"] == "passed", evaluation["message"]
    assert evaluation["correctness"]["timed_calls_compared"] >= 1


@pytest.mark.gpu
@pytest.mark.parametrize("candidate", cases(FAILS))
def test_fails(candidate: Path, gpu: None, served_evaluator: ServedEvaluator) -> None:
    evaluation = evaluate(candidate, served_evaluator)
    assert evaluation["verdict"].upper() in expected(candidate), evaluation["message"]
    assert served_evaluator.process.poll() is None, served_evaluator.log_tail()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["triton_row_in_registers", "cuda_shared_row"])
def test_tools_look_at_a_call(name: str, gpu: None, served_evaluator: ServedEvaluator) -> None:
    """On a host with CUDA's toolkit that lets its counters be read."""
    evaluation = evaluate(EXAMPLES / "gpu_softmax" / "passes" / f"{name}.py", served_evaluator, "--profile", "--fresh")
    assert evaluation["verdict"] == "passed", evaluation["message"]
    checks = {check["tool"]: check for check in evaluation["deep_checks"]}
    assert set(checks) == {"memcheck", "racecheck", "launches"}
    assert all(check["ran"] and not check.get("faults") for check in checks.values()), checks
    counters = evaluation["profile"]["counters"]
    assert counters and all(0 < one["memory_share"] <= 1 and one["registers"] > 0 for one in counters)
    (kernel,) = [kernel for artefact in evaluation["build"]["artefacts"] for kernel in artefact["kernels"]][:1]
    assert kernel["registers"] > 0
