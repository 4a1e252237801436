"""The commands against a real evaluator in its sandbox, as processes: what they print, and the exit codes of the contract."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.searcher.openai_server import Reply, serve

from kernelevo_api.types import Verdict
from kernelevo_searcher.events import CandidateProposed, EvaluationFinished
from kernelevo_searcher.store import read_records

if TYPE_CHECKING:
    from conftest import ServedEvaluator

ROOT = Path(__file__).resolve().parents[2]
KERNELEVO = Path(sys.executable).parent / "kernelevo"
SOFTMAX = ROOT / "examples" / "softmax"
CHAIN = ROOT / "examples" / "elementwise_chain"

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the evaluator runs on Linux"),
    pytest.mark.timeout(400),
]


class Kernelevo:
    """The command, in a folder of its own."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        self._address = address

    def __call__(self, *arguments: object, code: int, evaluator: bool = True) -> subprocess.CompletedProcess[str]:
        command = [str(KERNELEVO), *map(str, arguments)]
        if evaluator:
            command += ["--evaluator", self._address]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=380, check=False)
        assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done

    def json(self, *arguments: object, code: int, evaluator: bool = True) -> Any:
        return json.loads(self(*arguments, "--json", code=code, evaluator=evaluator).stdout)

    def search(self, *arguments: object) -> Any:
        """What `evolve --json` told. Few evaluations need not prove a speedup: the exit code says whether they did."""
        command = [KERNELEVO, "evolve", *arguments, "--run", "run", "--evaluator", self._address, "--json"]
        done = subprocess.run(
            list(map(str, command)), cwd=self.folder, capture_output=True, text=True, timeout=380, check=False
        )
        told = json.loads(done.stdout)
        assert done.returncode == (0 if told["proved"] else 1), done.stderr
        assert told["proved"] == (told["speedup"]["low"] > 1.0)
        return told


@pytest.fixture
def kernelevo(tmp_path: Path, served_evaluator: ServedEvaluator) -> Kernelevo:
    return Kernelevo(tmp_path, served_evaluator.address)


def test_evaluate_says_what_happened_and_exits_by_it(kernelevo: Kernelevo) -> None:
    passed = kernelevo.json("evaluate", SOFTMAX / "problem.py", SOFTMAX / "passes" / "cpp_ctypes.py", code=0)
    assert passed["verdict"] == "passed" and passed["timing"]["speedup"]["low"] > 0
    failed = kernelevo.json("evaluate", SOFTMAX / "problem.py", SOFTMAX / "fails" / "wrong_dimension.py", code=1)
    assert failed["verdict"] == "output_mismatch"
    (kernelevo.folder / "broken.py").write_text("class NotAModel: pass\n", encoding="utf-8")
    refused = kernelevo("evaluate", "broken.py", SOFTMAX / "passes" / "cpp_ctypes.py", "--json", code=2)
    assert not refused.stdout and "kernelevo: " in refused.stderr
    nobody = ["evaluate", SOFTMAX / "problem.py", SOFTMAX / "passes" / "cpp_ctypes.py", "--evaluator", "unix:none.sock"]
    kernelevo(*nobody, code=3, evaluator=False)


def test_problems_of_a_checkout_are_checked_and_said_why_not(kernelevo: Kernelevo) -> None:
    folder = kernelevo.folder / "KernelBench" / "level1"
    folder.mkdir(parents=True)
    (folder / "1_Softmax.py").write_bytes((SOFTMAX / "problem.py").read_bytes())
    broken = "import no_such_module\n\nclass Model: pass\n\ndef get_inputs(): return []\n"
    (folder / "2_Broken.py").write_text(broken, encoding="utf-8")
    (folder / "3_Nothing.py").write_text("x = 1\n", encoding="utf-8")
    done = kernelevo("problem", "check", ".", "--json", "--record", "record.jsonl", code=1)
    *rows, last = (json.loads(line) for line in done.stdout.splitlines())
    found = {row["name"]: (row["state"], row["codes"]) for row in rows}
    assert found["level1/1_Softmax"] == ("taken", [])
    assert found["level1/2_Broken"] == ("failed", ["load_error"])
    assert found["level1/3_Nothing"][0] == "failed" and set(found["level1/3_Nothing"][1]) == {"not_a_problem"}
    assert last["counts"]["why"] == {"load_error": 1, "not_a_problem": 1}
    shown = kernelevo("problem", "check", ".", "--record", "record.jsonl", code=1).stdout
    assert "No module named" in shown and "not_a_problem" in shown


def test_compare_tells_which_is_faster(kernelevo: Kernelevo) -> None:
    slow, fast = CHAIN / "start.py", CHAIN / "passes" / "cpp_ctypes.py"
    told = kernelevo.json("compare", CHAIN / "problem.py", slow, fast, code=0)
    assert told["outcome"] in {"faster", "indistinguishable", "slower"}
    assert told["evaluation"]["baseline"] == "candidate"
    wrong = kernelevo.json("compare", CHAIN / "problem.py", slow, CHAIN / "fails" / "no_clamp.py", code=1)
    assert wrong["outcome"] == "not_compared"


def test_a_search_from_start_to_report(kernelevo: Kernelevo) -> None:
    told = kernelevo.search(CHAIN / "problem.py", "--start", CHAIN / "start.py", "--evaluations", 3)
    assert told["evaluated"] == 3 and told["best"]
    best = kernelevo.json("best", "run", "-o", "fast.py", code=0, evaluator=False)
    assert best["verified"] and best["proved"] == told["proved"] and best["candidate"] == told["best"]
    compile((kernelevo.folder / "fast.py").read_text(encoding="utf-8"), "fast.py", "exec")
    # It stands alone: the evaluator takes it as it is.
    assert (
        kernelevo.json("evaluate", CHAIN / "problem.py", "fast.py", "--effort", "screen", code=0)["verdict"] == "passed"
    )
    page = Path(kernelevo("report", "run", "-o", "page.html", code=0, evaluator=False).stdout.strip())
    assert "KernelEvo report" in (kernelevo.folder / page).read_text(encoding="utf-8")
    kernelevo("best", "nowhere", code=2, evaluator=False)


def test_a_search_with_a_model_that_must_repair_its_kernel(kernelevo: Kernelevo) -> None:
    wrong, right = CHAIN / "fails" / "no_clamp.py", CHAIN / "passes" / "cpp_ctypes.py"

    def kernel(path: Path) -> Reply:
        return Reply(content=f"Name: fused\nIdea: one pass\n\n```python\n{path.read_text(encoding='utf-8')}```\n")

    with serve(kernel(wrong), kernel(right)) as model:
        told = kernelevo.search(CHAIN / "problem.py", "--evaluations", 4, "--model", "m", "--base-url", model.base_url)
    # TorchInductor's kernel, the reference, the model's, and its repair, whose prompt says what was wrong: nothing else took the
    # evaluations that were left.
    assert told["evaluated"] == 4 and len(model.asked) == 2
    assert "are wrong" in json.dumps(model.asked[1].body["messages"])
    events = [record.event for record in read_records(kernelevo.folder / "run")]
    actions = [event.action.value for event in events if isinstance(event, CandidateProposed)]
    assert actions == ["seed", "seed", "rewrite", "fix"]
    repaired = kernelevo.json("best", "run", "-o", "fast.py", code=0, evaluator=False)
    assert told["best"] == repaired["candidate"] and repaired["proved"] == told["proved"]
    assert told["tokens"] == model.charged_tokens
    # Its log is what comes of it again, to the byte, without the model and the evaluator.
    assert kernelevo.json("replay", "run", code=0, evaluator=False)["same"]


def test_a_run_by_files_is_answered_by_a_real_evaluator(kernelevo: Kernelevo) -> None:
    start = SOFTMAX / "passes" / "cpp_ctypes.py"
    make = [
        "evolve",
        SOFTMAX / "problem.py",
        "--start",
        start,
        "--model",
        "m",
        "--evaluations",
        2,
        "--no-run",
        "--run",
        "run",
    ]
    kernelevo(*make, code=0, evaluator=False)
    for asked in ("problem", "seed"):
        kernelevo("ask", "run", "--evaluations", "-n", 1, "-o", f"{asked}.jsonl", code=0, evaluator=False)
        kernelevo("answer", f"{asked}.jsonl", "-o", f"{asked}-answered.jsonl", code=0)
        told = kernelevo.json("tell", "run", f"{asked}-answered.jsonl", "--evaluations", code=0, evaluator=False)
        assert told["taken"] == 1
    # Once more goes on where it was stopped: nothing is left to answer.
    assert "answered: 0, and 1 before" in kernelevo("answer", "seed.jsonl", "-o", "seed-answered.jsonl", code=0).stderr
    events = [record.event for record in read_records(kernelevo.folder / "run")]
    (finished,) = [event for event in events if isinstance(event, EvaluationFinished)]
    # On a busy host its timing may be disputed.
    assert finished.evaluation.verdict in {Verdict.PASSED, Verdict.TIMING_DISPUTED}
    assert finished.candidate_id == "c1" and finished.evaluation.timing is not None
    assert kernelevo.json("replay", "run", code=0, evaluator=False)["same"]


def test_a_search_in_which_nothing_passes(kernelevo: Kernelevo) -> None:
    wrong = CHAIN / "fails" / "no_clamp.py"
    command = ["evolve", CHAIN / "problem.py", "--start", wrong, "--evaluations", 1, "--run", "run"]
    told = kernelevo.json(*command, code=1)
    assert told["best"] is None and told["best_kernel"] is None and not told["proved"]
    kernelevo("best", "run", code=1, evaluator=False)


@pytest.mark.slow
def test_a_suite_of_a_real_problem_over_both_baselines(kernelevo: Kernelevo) -> None:
    for name, source in (("softmax", (SOFTMAX / "problem.py").read_text(encoding="utf-8")), ("broken", "x = 1\n")):
        (kernelevo.folder / "problems" / name).mkdir(parents=True)
        (kernelevo.folder / "problems" / name / "problem.py").write_text(source, encoding="utf-8")
    told = kernelevo.json("bench", "problems", "--evaluations", 1, "--run", "suite", code=0)
    assert told["endings"].pop("failed") == 1 and sum(told["endings"].values()) == 1
    one = next(result for result in told["results"] if result["name"] == "softmax")
    if one["best"] is not None:
        # A busy host may dispute a timing, and says so.
        assert one["speedup_over"]["eager"]["low"] > 0
        assert one["not_measured"] or one["speedup_over"]["torch_compile"]["low"] > 0
        compile((kernelevo.folder / "suite" / one["run"] / "best.py").read_text(encoding="utf-8"), "best.py", "exec")
    again = kernelevo.json("bench", "--resume", "suite", code=0)
    assert again["results"] == told["results"]
