"""An audit's report, read by a person."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.searcher.scripted_evaluator import PROBLEM, ScriptedEvaluator
from typer.testing import CliRunner

from kernelevo_api.pool import Endpoint, EvaluatorPool
from kernelevo_api.types import (
    Baseline,
    BaselineKind,
    ErrorBudget,
    Finding,
    Language,
    ProblemPolicy,
    ProblemReport,
    TensorInfo,
    TimingPolicy,
)
from kernelevo_searcher.audit_text import describe_refusal, describe_report
from kernelevo_searcher.cli import app

if TYPE_CHECKING:
    from pathlib import Path

REPORT = ProblemReport(
    name="softmax",
    policy=ProblemPolicy(
        dtype="float32",
        math="ieee",
        languages=(Language.CPP_INLINE,),
        timing=TimingPolicy.PIPELINED,
        shapes=('{"ROWS": 7}',),
        dynamic_weights=True,
    ),
    inputs=(TensorInfo(name="x", shape=(1024, 512), dtype="float32", bytes=2 << 20),),
    outputs=(TensorInfo(shape=(), dtype="float32", bytes=4),),
    weights=tuple(TensorInfo(name=f"w{number}", shape=(8,), dtype="float32", bytes=32) for number in range(30)),
    expected_dtype="float64",
    budgets=(
        ErrorBudget(
            input_class="declared", rtol=1e-5, atol=2e-6, norm_rtol=3e-6, honest_norm_error=7.1e-8, source="floor"
        ),
        ErrorBudget(input_class="scaled", rtol=1e-3, norm_rtol=4e-4, honest_norm_error=1e-4, source="honest"),
    ),
    compulsory_bytes=4 << 20,
    floor_us=123.456,
    baselines=(Baseline(kind=BaselineKind.TORCH_COMPILE, median_us=100.0, low_us=99.0, high_us=101.0),),
    mutates_inputs=True,
)


def test_everything_that_decides_a_verdict_is_there() -> None:
    text = describe_report(REPORT)
    for said in (
        "softmax: taken",
        "float32, ieee products, pipelined",
        "further shape: {",
        "1024x512",
        "2.0 MiB",
        "and 6 more",
        "computed in float64",
        "2.0e-06 + 1.0e-05 x its value",
        "7.1e-08  (the dtype's floor)",
        "(4 times the honest error)",
        "torch.compile: 100.0 us a call, 99.0 to 101.0",
        "4.0 MiB; no call is believed below 123.46 us",
        "writes to its inputs",
        "findings: none",
    ):
        assert said in text, said
    assert max(map(len, text.splitlines())) < 130


def test_what_refuses_stands_first_and_nothing_commands_a_terminal() -> None:
    findings = (
        Finding(code="no_seed", message="none\x1b[31m"),
        Finding(code="constant_output", message="the outputs\ndo not vary", refuses=True, line=7),
    )
    text = describe_report(ProblemReport(name="\x1b[2J", findings=findings, accepted_with_mark=True))
    assert "\x1b" not in text
    assert "taken nevertheless" in text
    assert text.splitlines()[-2:] == [
        "  constant_output (refuses): the outputs do not vary (line 7)",
        "  no_seed: none\N{REPLACEMENT CHARACTER}[31m",
    ]
    assert describe_refusal("p", ["constant_output: none\nvaries"]) == "p: not taken\n  constant_output: none varies"


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedEvaluator:
    """Stands in the place of a server; the path of its problem is `problem.py`."""
    evaluator = ScriptedEvaluator()
    pool = EvaluatorPool([Endpoint(name="scripted", transport=evaluator)])

    class Opened:
        async def __aenter__(self) -> EvaluatorPool:
            return pool

        async def __aexit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr("kernelevo_searcher.cli.auditing.open_evaluators", lambda *_: Opened())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "problem.py").write_text(PROBLEM, encoding="utf-8")
    return evaluator


def test_the_command(scripted: ScriptedEvaluator) -> None:
    done = CliRunner().invoke(app, ["problem", "audit", "problem.py"])
    assert done.exit_code == 0, done.output
    assert "eager: 100.0 us a call" in done.stdout
    done = CliRunner().invoke(app, ["problem", "audit", "problem.py", "--json"])
    assert json.loads(done.stdout)["baselines"][0]["median_us"] == 100.0
    scripted.refuse_problem = True
    done = CliRunner().invoke(app, ["problem", "audit", "problem.py"])
    assert done.exit_code == 1
    assert "not taken" in done.stdout and "do not depend on the inputs" in done.stdout
    done = CliRunner().invoke(app, ["problem", "audit", "problem.py", "--json"])
    assert done.exit_code == 1 and json.loads(done.stdout)["reasons"]
