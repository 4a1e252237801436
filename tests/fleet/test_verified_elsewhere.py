"""The winner of a search is verified on each other kind of device that was asked for, and nothing else goes there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.searcher.scripted_evaluator import KERNEL, PROBLEM
from typer.testing import CliRunner

from kernelevo_searcher.cli import app
from kernelevo_searcher.events import EvaluationStarted
from kernelevo_searcher.store import read_records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fleet.conftest import Host


@pytest.fixture
def kernelevo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The command, in a folder that holds a problem and a kernel; what it printed, of one that ended as it should."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "problem.py").write_text(PROBLEM, encoding="utf-8")
    (tmp_path / "kernel.py").write_text(KERNEL, encoding="utf-8")

    def call(*arguments: object, codes: tuple[int, ...] = (0,)) -> Any:
        done = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert done.exit_code in codes, f"{done.exit_code}\n{done.stdout}\n{done.stderr}"
        return done

    return call


NEW = ("evolve", "problem.py", "--start", "kernel.py", "--evaluations", 6, "--run", "run", "--json")


def started(folder: Path) -> list[EvaluationStarted]:
    return [event for record in read_records(folder) if isinstance(event := record.event, EvaluationStarted)]


def test_the_winner_is_verified_on_each_kind_that_was_asked_for(
    hosts: Callable[..., list[Host]], kernelevo: Callable[..., Any], tmp_path: Path
) -> None:
    (one,), (other,) = hosts(1, simulated_s=0), hosts(1, simulated_s=0, simulated_name="other")
    evaluators = ("--evaluator", other.address, "--evaluator", one.address)
    nowhere = kernelevo(*NEW, *evaluators, "--device", "name=simulated", "--verify-on", "name=third", codes=(3,))
    assert "no evaluator has a healthy device that is third" in nowhere.stderr and not started(tmp_path / "run")
    # Told before anything was measured; what is to be had instead is said when the run is gone on with.
    done = kernelevo("evolve", "--resume", "run", "--verify-on", "name=other", "--json", codes=(0, 1))
    told = json.loads(done.stdout)
    (elsewhere,) = told["verified_on"]
    assert elsewhere["device"]["name"] == "other" and elsewhere["verdict"] == "passed"
    assert told["speedup"] != elsewhere["speedup"]
    assert done.exit_code == (0 if told["proved"] and elsewhere["proved"] else 1)
    sent = started(tmp_path / "run")
    (there,) = [event for event in sent if event.device is not None]
    assert (there.candidate_id, there.evaluator, sent[-1]) == (told["best"], other.address, there)
    assert {event.evaluator for event in sent if event.device is None} == {one.address}
    assert json.loads(kernelevo("replay", "run", "--json").stdout)["same"]
    assert "on other" in (tmp_path / "run" / "best.py").read_text(encoding="utf-8")
    assert "on other" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    # Nothing is left to do, as it stands in the log.
    again = json.loads(kernelevo("evolve", "--resume", "run", "--json", codes=(0, 1)).stdout)
    assert again["verified_on"] == told["verified_on"] and len(started(tmp_path / "run")) == len(sent)


def test_a_run_by_files_asks_for_the_other_kind_too(
    hosts: Callable[..., list[Host]], kernelevo: Callable[..., Any], tmp_path: Path
) -> None:
    (one,), (other,) = hosts(1, simulated_s=0), hosts(1, simulated_s=0, simulated_name="other")
    kinds = ("--device", "name=simulated", "--verify-on", "name=other")
    kernelevo(*NEW, *kinds, "--evaluations", 2, "--no-run")
    rounds = 0
    while not kernelevo_is_done(tmp_path) and rounds < 30:
        rounds += 1
        kernelevo("ask", "run", "--evaluations", "-n", 4, "-o", "asked.jsonl")
        evaluators = ("--evaluator", one.address, "--evaluator", other.address)
        kernelevo("answer", "asked.jsonl", "-o", f"answered{rounds}.jsonl", *evaluators)
        kernelevo("tell", "run", f"answered{rounds}.jsonl", "--evaluations")
    (there,) = [event for event in started(tmp_path / "run") if event.device is not None]
    assert there.device is not None and there.device.name == "other"
    told = json.loads(kernelevo("evolve", "--resume", "run", "--json", codes=(0, 1)).stdout)
    assert told["verified_on"][0]["verdict"] == "passed" and told["best"] == there.candidate_id


def kernelevo_is_done(folder: Path) -> bool:
    return type(read_records(folder / "run")[-1].event).__name__ == "RunFinished"
