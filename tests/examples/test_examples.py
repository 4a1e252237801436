"""Every example through the real evaluator, by the command that a person uses. A new file is a new case.

`examples/<name>/passes/*.py` must pass. `examples/<name>/fails/*.py` begins with `# expect: VERDICT` (or several, with `|`
between them) and must get one of these. A line `# slow` in the head of a file, or a name that ends in `_slow`, marks a slow case.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kernelevo_api.types import Verdict

if TYPE_CHECKING:
    from conftest import ServedEvaluator

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
KERNELEVO = Path(sys.executable).parent / "kernelevo"
CASE_SECONDS = 400
CLEAN_SECONDS = 30

# Those that are named gpu_… need a GPU: test_gpu_examples.py.
PROBLEMS = sorted(EXAMPLES.glob("[!g]*/problem.py"))
PASSES = sorted([*EXAMPLES.glob("[!g]*/passes/*.py"), *EXAMPLES.glob("[!g]*/start.py")])
FAILS = sorted(EXAMPLES.glob("[!g]*/fails/*.py"))

pytestmark = pytest.mark.timeout(CASE_SECONDS + 60)


def head(path: Path) -> list[str]:
    """The comment lines that a file begins with."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return lines


def expected_verdicts(path: Path) -> set[str]:
    """What the first line of a failing example names."""
    first = head(path)[0]
    assert first.startswith("expect: "), f"{path} begins with {first!r}, not with '# expect: VERDICT'"
    return {name.strip() for name in first.removeprefix("expect: ").split("|")}


def cases(paths: list[Path]) -> list[Any]:
    """Parameters of a test, slow ones marked."""
    return [
        pytest.param(
            path,
            id=str(path.relative_to(EXAMPLES).with_suffix("")),
            marks=[pytest.mark.slow] if path.stem.endswith("_slow") or "slow" in head(path) else [],
        )
        for path in paths
    ]


def evaluate(candidate: Path, address: str, problem: Path | None = None) -> tuple[int, dict[str, Any]]:
    """Exit code and evaluation of `kernelevo evaluate --json`."""
    if problem is None:
        problem = next(folder / "problem.py" for folder in candidate.parents if (folder / "problem.py").exists())
    done = subprocess.run(
        [KERNELEVO, "evaluate", problem, candidate, "--json", "--evaluator", address],
        capture_output=True,
        text=True,
        timeout=CASE_SECONDS,
    )
    try:
        return done.returncode, json.loads(done.stdout)
    except json.JSONDecodeError:
        pytest.fail(
            f"exit code {done.returncode}\n--- stdout\n{done.stdout[-4000:]}\n--- stderr\n{done.stderr[-4000:]}"
        )


def evaluate_honest(candidate: Path, address: str) -> tuple[int, dict[str, Any]]:
    """As `evaluate`; a timing that a restless host disputes is taken again, twice at most. Disputes are never cached."""
    for _ in range(3):
        code, evaluation = evaluate(candidate, address)
        if evaluation["verdict"] != "timing_disputed":
            break
    return code, evaluation


@pytest.fixture(scope="module")
def quiet_state(served_evaluator: ServedEvaluator) -> int:
    """How many processes the evaluator keeps after it has served two problems."""
    return settle(served_evaluator)


def settle(served: ServedEvaluator) -> int:
    """Serve two honest candidates of two problems; the number of processes that are kept once that number stands still."""
    for name in ("softmax", "rms_norm"):
        candidate = EXAMPLES / name / "passes" / "cpp_ctypes.py"
        code, evaluation = evaluate_honest(candidate, served.address)
        assert code == 0, evaluation
    count, since, deadline = -1, 0.0, time.monotonic() + CLEAN_SECONDS
    while time.monotonic() < deadline:
        now = len(served.descendants())
        if now != count:
            count, since = now, time.monotonic()
        elif time.monotonic() - since > 5:
            break
        time.sleep(0.25)
    return count


def test_every_example_is_complete() -> None:
    """Each has a problem, something that passes, something that is fast, and something that fails."""
    assert len(PROBLEMS) >= 4
    for problem in PROBLEMS:
        folder = problem.parent
        assert (folder / "passes" / "cpp_ctypes.py").exists()
        assert list((folder / "fails").glob("*.py"))
    known = {verdict.name for verdict in Verdict} - {"PASSED", "CANCELLED", "PROBLEM_FAULT", "EVALUATOR_FAULT"}
    for path in FAILS:
        assert expected_verdicts(path) <= known, path
        assert len(head(path)) >= 2, f"{path} does not say why it must fail"


@pytest.mark.parametrize("candidate", cases(PASSES))
def test_passes(candidate: Path, evaluator_address: str, quiet_state: int) -> None:
    code, evaluation = evaluate_honest(candidate, evaluator_address)
    assert evaluation["verdict"] == "passed", evaluation["message"]
    assert code == 0
    assert evaluation["correctness"]["trials"] >= 1
    assert evaluation["correctness"]["elements_compared"] >= 1
    if evaluation.get("checked_on") == "interpreter":
        assert evaluation.get("timing") is None
        return
    speedup = evaluation["timing"]["speedup"]
    assert speedup["low"] <= speedup["value"] <= speedup["high"]
    assert evaluation["correctness"]["timed_calls_compared"] >= 1


@pytest.mark.parametrize("candidate", cases(FAILS))
def test_fails(candidate: Path, served_evaluator: ServedEvaluator, quiet_state: int) -> None:
    code, evaluation = evaluate(candidate, served_evaluator.address)
    assert evaluation["verdict"].upper() in expected_verdicts(candidate), evaluation["message"]
    assert code == 1
    assert evaluation["message"]
    assert served_evaluator.process.poll() is None, served_evaluator.log_tail()


def test_nothing_is_left_behind(served_evaluator: ServedEvaluator, quiet_state: int) -> None:
    """After all of them the evaluator serves as before, with as many processes as before."""
    assert settle(served_evaluator) <= quiet_state, served_evaluator.log_tail()
