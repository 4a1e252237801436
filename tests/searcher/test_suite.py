"""Many problems searched as one suite: what each comes to, what they come to together, and going on after any end."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from tests.searcher.grpc_evaluator import serve_evaluator
from tests.searcher.scripted_evaluator import KERNEL, PROBLEM, ScriptedEvaluator
from typer.testing import CliRunner

from kernelevo_api.errors import EvaluatorFault, FieldViolation, ProblemRefused, Unreachable
from kernelevo_api.pool import Endpoint, EvaluatorPool
from kernelevo_api.types import BaselineKind, EvaluateRequest, Evaluation, Problem, ProblemReport, Ratio, Seed, Verdict
from kernelevo_searcher.catalogue import find_problems
from kernelevo_searcher.cli import app
from kernelevo_searcher.drain import Drain
from kernelevo_searcher.events import CandidateProposed, EvaluationStarted, RunResumed, RunSettings, RunStarted
from kernelevo_searcher.settings import load_settings
from kernelevo_searcher.store import RunInUse, StoreError, read_records
from kernelevo_searcher.suite import running
from kernelevo_searcher.suite.folder import Suite
from kernelevo_searcher.suite.report import write_results
from kernelevo_searcher.suite.results import Ending, SuiteResults
from kernelevo_searcher.suite.running import Listener, carry_out
from kernelevo_searcher.suite.statistics import fast_p, geometric_mean

if TYPE_CHECKING:
    from pathlib import Path

SEEDS = (Seed(name="inductor", source=KERNEL),)


def ratio(value: float, width: float = 0.1) -> Ratio:
    return Ratio(value=value, low=value - width, high=value + width)


# What many speedups come to.


def test_fast_p_counts_what_is_proved_apart_and_what_has_no_kernel_as_slow() -> None:
    ratios = [None, ratio(0.9), ratio(1.05), ratio(1.6), ratio(2.0)]
    found = {
        level: (share.count, share.certain, share.of)
        for level in (0.0, 0.8, 1.0, 1.5, 2.0)
        for share in [fast_p(ratios, level)]
    }
    assert found == {0.0: (4, 4, 5), 0.8: (4, 3, 5), 1.0: (3, 2, 5), 1.5: (2, 1, 5), 2.0: (0, 0, 5)}
    assert fast_p(ratios, 1.0).value == 0.6 and fast_p([], 1.0).value is None


def test_the_geometric_mean_and_its_interval() -> None:
    assert geometric_mean([]) is None
    one = geometric_mean([2.0])
    assert one is not None and one.value == pytest.approx(2.0) and one.low is None
    same = geometric_mean([1.5] * 4)
    assert same is not None and (same.low, same.high) == (pytest.approx(1.5), pytest.approx(1.5))
    values = [0.5, 1.0, 2.0, 4.0, 8.0]
    mean = geometric_mean(values)
    assert mean is not None and mean == geometric_mean(values) and mean.low is not None and mean.high is not None
    assert mean.value == pytest.approx(2.0) and mean.low < 2.0 < mean.high
    # The normal theory's interval, which the bootstrap comes near to: the deviation of a mean of five.
    half = 1.96 * math.sqrt(2.0) / math.sqrt(5)
    assert math.log2(mean.high / mean.low) == pytest.approx(2 * half, rel=0.15)


def test_the_interval_holds_the_true_mean_as_often_as_it_says() -> None:
    rng, held = random.Random(1), 0
    for _ in range(60):
        mean = geometric_mean([math.exp(rng.gauss(0.3, 0.5)) for _ in range(25)])
        assert mean is not None and mean.low is not None and mean.high is not None
        held += mean.low <= math.exp(0.3) <= mean.high
    assert 50 <= held <= 60


# A suite.


class Judging(ScriptedEvaluator):
    """Refuses, fails and passes what the source says."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seeds = SEEDS
        self.audited: Counter[str] = Counter()

    async def register_problem(self, problem: Problem, **options: Any) -> ProblemReport:
        self.audited[problem.name] += not options.get("with_seeds")
        if "# refused" in problem.source:
            raise ProblemRefused(
                "no", violations=[FieldViolation("problem.source", "constant_output: output 0 | never <changes>")]
            )
        if "# faulty" in problem.source:
            raise EvaluatorFault("the referee failed")
        return await super().register_problem(problem, **options)

    def judge(self, request: EvaluateRequest) -> Evaluation:
        if request.baseline is BaselineKind.TORCH_COMPILE and request.problem_digest in self.uncompiled:
            return Evaluation(
                verdict=Verdict.PROBLEM_FAULT, request_id=request.request_id, message="torch.compile fails"
            )
        return super().judge(request)

    uncompiled: frozenset[str] = frozenset()


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    folder = tmp_path / "problems"
    for name in ("a", "b", "c", "d_refused", "deep/e"):
        (folder / name).mkdir(parents=True)
        (folder / name / "problem.py").write_text(f"# {name.partition('_')[2]} {name}\n{PROBLEM}", encoding="utf-8")
    return folder


def new_suite(problems: Path, path: Path, **settings: Any) -> Suite:
    return Suite.create(path, "problems", find_problems(problems), RunSettings(evaluations=4, **settings))


async def search(suite: Suite, *evaluators: ScriptedEvaluator, **options: Any) -> SuiteResults:
    pool = EvaluatorPool([Endpoint(name=f"e{n}", transport=one) for n, one in enumerate(evaluators)])
    await pool.connect()
    with suite.locked():
        await carry_out(suite, pool, load_settings(), **options)
    return write_results(suite)


async def test_each_problem_is_searched_once_on_one_evaluator(problems: Path, tmp_path: Path) -> None:
    suite = new_suite(problems, tmp_path / "suite")
    evaluators = Judging(seconds=0.002, lanes=2), Judging(seconds=0.002)
    evaluators[0].uncompiled = frozenset({suite.problems[0].digest})
    evaluators[1].uncompiled = evaluators[0].uncompiled
    results = await search(suite, *evaluators)
    endings = {one.problem.name: one.ending for one in results.problems}
    assert endings.pop("d_refused") is Ending.REFUSED
    assert set(endings.values()) <= {Ending.FASTER, Ending.NOT_FASTER} and len(endings) == 4
    # Both evaluators had work, and nobody audited what another one did.
    names = [{name for name, _ in one.audited.items()} for one in evaluators]
    assert all(names) and not names[0] & names[1]
    # Each search kept to its budget; the best kernel was measured over the other baseline, once.
    assert {one.evaluated for one in results.problems} == {0, 4}
    others = [one for e in evaluators for one in e.requests if one.baseline is BaselineKind.TORCH_COMPILE]
    assert len(others) == 4
    eager, compiled = results.over
    assert eager.baseline is BaselineKind.EAGER and eager.shares[0].count == 4 and eager.shares[0].of == 5
    assert compiled.shares[0].count == 3 and compiled.missing == 1
    assert eager.verified is not None and eager.verified.count == 4
    data = json.loads((suite.path / "results.json").read_text(encoding="utf-8"))
    assert data["endings"]["refused"] == 1 and data["over"]["eager"]["fast_p"][0] == {
        "p": 0.0,
        "share": 0.8,
        "problems": 4,
        "certain": 4,
        "of": 5,
    }
    assert "torch.compile fails" in data["results"][0]["not_measured"]
    assert sum(data["verdicts"].values()) == sum(len(e.requests) for e in evaluators) - 4
    for one in results.problems:
        folder = suite.run_dir(one.problem)
        assert (folder / "best.py").exists() == (folder / "report.html").exists() == (one.best_id is not None)
    # All is done: going on asks for nothing.
    before = [len(e.requests) for e in evaluators]
    assert (await search(Suite.open(suite.path), *evaluators)).as_json() == results.as_json()
    assert before == [len(e.requests) for e in evaluators] and sum(e.audited.total() for e in evaluators) < 20


async def test_a_start_beside_a_problem_begins_its_search(problems: Path, tmp_path: Path) -> None:
    start = problems / "a" / "start.py"
    start.write_text("# mine\nTILE = 8  # tune: 8, 16\nclass ModelNew: x = TILE\n", encoding="utf-8")
    suite = new_suite(problems, tmp_path / "suite")
    start.unlink()
    await search(Suite.open(tmp_path / "suite"), Judging())
    began = {}
    for problem in suite.problems:
        if problem.name != "d_refused":
            records = read_records(suite.run_dir(problem))
            (started,) = (record.event for record in records if isinstance(record.event, RunStarted))
            began[problem.name] = [one.name for one in started.start]
            proposers = {r.event.proposer for r in records if isinstance(r.event, CandidateProposed)}
            assert ("user" in proposers) is (problem.name == "a")
    assert began == {"a": ["start.py"], "b": [], "c": [], "deep/e": []}
    (tmp_path / "suite" / "a" / "start.py").write_text("# another")
    with pytest.raises(StoreError, match="was changed"):
        suite.starts(suite.problems[0])


async def test_a_problem_on_which_the_evaluator_fails_holds_up_no_other(problems: Path, tmp_path: Path) -> None:
    (problems / "b" / "problem.py").write_text(f"# faulty\n{PROBLEM}", encoding="utf-8")
    given_up: list[str] = []

    class Telling(Listener):
        def cannot(self, problem: Any, why: str) -> None:
            given_up.append(f"{problem.name}: {why}")

    results = await search(new_suite(problems, tmp_path / "suite"), Judging(), listener=Telling())
    assert given_up == ["b: the referee failed"]
    assert results.open == 1 and {one.problem.name for one in results.problems if one.ending is Ending.OPEN} == {"b"}


async def test_a_lost_evaluator_s_run_goes_on_at_another(
    problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_PATIENCE_S", 0.05)

    class Mortal(Judging):
        async def evaluate(self, request: EvaluateRequest, **options: Any) -> Evaluation:
            if len(self.requests) >= 2:
                self.down = True
                raise Unreachable("gone")
            return await super().evaluate(request, **options)

    mortal, other = Mortal(), Judging()
    results = await search(new_suite(problems, tmp_path / "suite"), mortal, other)
    assert not results.open and len(mortal.requests) == 2
    moved = [
        one.problem.name
        for one in results.problems
        if any(isinstance(record.event, RunResumed) for record in _records(results.suite, one))
    ]
    assert len(moved) == 1 and {one.evaluated for one in results.problems} == {0, 4}


def _records(suite: Suite, one: Any) -> tuple[Any, ...]:
    return read_records(suite.run_dir(one.problem)) if one.ending is not Ending.REFUSED else ()


async def test_a_drain_ends_all_runs_and_they_go_on(problems: Path, tmp_path: Path) -> None:
    suite, drain = new_suite(problems, tmp_path / "suite"), Drain()

    class Stopping(Judging):
        async def evaluate(self, request: EvaluateRequest, **options: Any) -> Evaluation:
            if len(self.requests) == 3:
                drain.ask()
            return await super().evaluate(request, **options)

    judge = Stopping(seconds=0.002, lanes=2)
    stopped = await search(suite, judge, drain=drain)
    assert stopped.open >= 3 and len(judge.requests) < 10
    done = await search(suite, judge)
    assert not done.open and len({one.request_id for one in judge.requests}) == len(judge.executed)


async def test_what_was_changed_or_is_worked_on_is_not_touched(problems: Path, tmp_path: Path) -> None:
    suite = new_suite(problems, tmp_path / "suite")
    with suite.locked(), pytest.raises(RunInUse):
        await search(Suite.open(suite.path), Judging())
    (suite.run_dir(suite.problems[0]) / "problem.py").write_text("x = 1\n", encoding="utf-8")
    results = await search(suite, Judging())
    assert results.open == 1
    (suite.path / "suite.json").write_text("{}", encoding="utf-8")
    with pytest.raises(StoreError):
        Suite.open(suite.path)


class Page(HTMLParser):
    """Tags and links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not any(name.startswith("on") or name == "src" for name, _ in attrs)
        self.links += [value or "" for name, value in attrs if name == "href"]


async def test_the_page_and_the_table_escape_what_names_and_reasons_hold(tmp_path: Path) -> None:
    hostile = "a|b<script>alert(1)<`x`"
    folder = tmp_path / "problems" / hostile.replace("/", "")
    folder.mkdir(parents=True)
    (folder / "problem.py").write_text(PROBLEM, encoding="utf-8")
    (tmp_path / "problems" / "refused").mkdir()
    (tmp_path / "problems" / "refused" / "problem.py").write_text(f"# refused\n{PROBLEM}", encoding="utf-8")
    results = await search(new_suite(tmp_path / "problems", tmp_path / "suite"), Judging())
    page = Page((tmp_path / "suite" / "report.html").read_text(encoding="utf-8"))
    assert "script" not in page.tags and "svg" in page.tags
    assert page.links == [f"{results.problems[0].problem.folder}/report.html"]
    assert (tmp_path / "suite" / page.links[0]).is_file()
    table = (tmp_path / "suite" / "results.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in table if line.startswith(("| a", "| refused"))]
    columns = len(next(line for line in table if line.startswith("| problem")).split("|"))
    assert len(rows) == 2 and all(len(row.replace("\\|", "").split("|")) == columns for row in rows)
    assert "<script" not in rows[0].replace("\\<", "") and "constant_output" in rows[1]


# The command.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name a suite"),
        (("none",), "does not exist"),
        (("problems", "--level", "1"), "has no problem"),
        (("problems", "--model", "m"), "OPENAI_API_KEY is not set"),
        (("--resume", "nowhere"), "there is no suite in nowhere"),
        (("problems", "--resume", "x", "--evaluations", "3"), "leave out evaluations, SUITE"),
    ],
)
def test_bad_input_says_what_to_do(
    problems: Path, arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(problems.parent)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert result.exit_code == 2 and said in result.stderr.replace("\n", " ")


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
def test_killed_at_any_moment_the_suite_goes_on(problems: Path, tmp_path: Path) -> None:
    with serve_evaluator(SEEDS) as evaluator:
        command = [sys.executable, "-m", "kernelevo_searcher", "bench"]
        begin = ["problems", "--run", "suite", "--evaluations", "3", "--jobs", "2", "--policy", "greedy"]
        go_on = ["--resume", "suite"]
        where = ["--evaluator", evaluator.address]
        for moment in (1, 4, 9, 15):
            # At the moment at which so many evaluations have begun, of which the last ones are under way.
            evaluator.evaluations.close_after(moment)
            arguments = go_on if (tmp_path / "suite" / "suite.json").exists() else begin
            process = subprocess.Popen(
                [*command, *arguments, *where], cwd=tmp_path, env=os.environ, stdout=subprocess.DEVNULL
            )
            evaluator.evaluations.wait_for(moment)
            process.kill()
            assert process.wait() == -signal.SIGKILL
            evaluator.evaluations.open()
        done = subprocess.run(
            [*command, *go_on, *where, "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        shown = CliRunner().invoke(app, ["report", str(tmp_path / "suite")])
        assert shown.exit_code == 0 and shown.stdout.strip().endswith("report.html")
    assert told["problems"] == 5 and sum(told["endings"].values()) == 5 and "open" not in told["endings"]
    assert told["evaluated"] == 15 and told["settings"]["policy"] == "greedy"
    # Nothing was measured twice: each request was carried out once, those of the runs and one a problem over torch.compile.
    assert Counter(evaluator.carried_out).most_common(1)[0][1] == 1
    started = sum(
        isinstance(record.event, EvaluationStarted)
        for one in Suite.open(tmp_path / "suite").problems
        for record in read_records(tmp_path / "suite" / one.folder)
    )
    assert len(evaluator.carried_out) == started + 5


@pytest.mark.skipif(sys.platform == "win32", reason="processes are not signalled there")
def test_ctrl_c_waits_for_what_is_under_way_and_says_how_to_go_on(problems: Path, tmp_path: Path) -> None:
    with serve_evaluator(SEEDS) as evaluator:
        evaluator.evaluations.close()
        command = [
            sys.executable,
            "-m",
            "kernelevo_searcher",
            "bench",
            "problems",
            "--run",
            "suite",
            "--evaluations",
            "2",
        ]
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            process = subprocess.Popen(
                [*command, "--evaluator", evaluator.address],
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        finally:
            signal.signal(signal.SIGINT, before)
        with process:
            evaluator.evaluations.wait_for(1)
            process.send_signal(signal.SIGINT)
            assert process.stdout is not None
            for line in process.stdout:
                if "stopping" in line:
                    break
            evaluator.evaluations.open()
            _, errors = process.communicate(timeout=60)
        assert process.returncode == 3 and "kernelevo bench --resume suite" in errors
        assert len(evaluator.carried_out) <= 2


def test_nothing_is_left_of_a_suite_that_could_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "problems" / "a").mkdir(parents=True)
    (tmp_path / "problems" / "a" / "problem.py").write_bytes(b"\xff\xfe")
    suite = new_suite(tmp_path / "problems", tmp_path / "suite")
    results = write_results(suite)
    assert results.problems[0].ending is Ending.FAILED and "not UTF-8" in results.problems[0].why
