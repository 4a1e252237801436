"""A searcher killed at any moment goes on where it was: nothing lost, nothing paid twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.searcher.scripted_evaluator import ScriptedEvaluator
from tests.searcher.scripted_proposer import COST, RESERVE

from kernelevo_api.types import Effort
from kernelevo_searcher.events import (
    CandidateProposed,
    EvaluationFinished,
    EvaluationStarted,
    ModelCallFinished,
    ModelCallStarted,
    RunFinished,
)
from kernelevo_searcher.proposers import ReplyOutcome
from kernelevo_searcher.state import replay
from kernelevo_searcher.store import read_records

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
ROOT = Path(__file__).parents[2]


def drive(folder: Path, appends: int, moment: str, model: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.searcher.crash_driver", str(folder), str(appends), moment, model],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])},
    )


def finish(folder: Path, model: str) -> None:
    assert drive(folder, 0, "after", model).wait() == 0


def check(folder: Path, *, killed: int) -> None:
    """What must hold of a finished run, however often it was killed."""
    records = read_records(folder / "run")
    events = [record.event for record in records]
    assert [record.sequence for record in records] == list(range(1, len(records) + 1))
    assert sum(isinstance(event, RunFinished) for event in events) == 1
    state = replay(records)
    assert not state.in_flight and not state.calls
    assert state.finished is not None and state.finished.best_id is not None
    # The budget, or the stop rule: where the kill falls decides which replies come first, and so whether the search stalls.
    assert state.evaluated == 12 or "nothing improved" in state.finished.reason

    # Each measurement was asked for once, carried out once, and came back once.
    started = [event for event in events if isinstance(event, EvaluationStarted)]
    finished = [event for event in events if isinstance(event, EvaluationFinished)]
    assert len({event.request_id for event in started}) == len(started)
    assert Counter(event.request_id for event in started) == Counter(event.request_id for event in finished)
    assert max(Counter((event.candidate_id, event.effort) for event in started).values()) == 1
    evaluator = ScriptedEvaluator(folder / "journal.jsonl")
    assert sorted(set(evaluator.executed)) == sorted(event.request_id for event in started)
    # Carried out again only where the evaluator itself, which lives in the killed process here, had lost the work.
    assert len(evaluator.executed) - len(set(evaluator.executed)) <= 2 * killed
    proposed = {event.candidate_id: event for event in events if isinstance(event, CandidateProposed)}
    assert len({event.normal_digest for event in proposed.values()}) == len(proposed)
    measured = {event.candidate_id for event in started if event.effort is not Effort.FINAL}
    # What a model was paid for is measured, whatever ended the search.
    assert {event.candidate_id for event in proposed.values() if event.call_id is not None} <= measured <= set(proposed)
    if state.evaluated == 12:
        assert measured == set(proposed)

    # Every model call is settled: by its usage, or by its reservation if nobody knows.
    calls = [event for event in events if isinstance(event, ModelCallStarted)]
    settled = {event.call_id: event for event in events if isinstance(event, ModelCallFinished)}
    assert {call.call_id for call in calls} == set(settled)
    lost = sum(event.outcome is ReplyOutcome.LOST for event in settled.values())
    assert state.usage.total_tokens == lost * RESERVE + (len(settled) - lost) * COST
    if calls:
        asked = (folder / "calls.txt").read_text(encoding="utf-8").split()
        assert len(calls) - killed * 2 <= len(asked) <= len(calls)
        assert lost <= 2 * killed


@pytest.mark.parametrize("model", ["none", "model"])
@pytest.mark.parametrize(
    ("appends", "moment"),
    [(2, "after"), (3, "before"), (5, "after"), (6, "before"), (9, "after"), (30, "before"), (45, "after")],
)
def test_killed_at_an_event(tmp_path: Path, appends: int, moment: str, model: str) -> None:
    assert drive(tmp_path, appends, moment, model).wait() == -signal.SIGKILL
    finish(tmp_path, model)
    check(tmp_path, killed=1)


@pytest.mark.parametrize("model", ["none", "model"])
def test_killed_again_and_again(tmp_path: Path, model: str) -> None:
    rng = random.Random(5)
    kills = 0
    for _ in range(30):
        process = drive(tmp_path, rng.randrange(2, 14), rng.choice(["before", "after"]), model)
        code = process.wait()
        if code == 0:
            break
        assert code == -signal.SIGKILL
        kills += 1
    else:
        finish(tmp_path, model)
    assert kills >= 3
    check(tmp_path, killed=kills)


def test_killed_from_outside_at_any_time(tmp_path: Path) -> None:
    rng = random.Random(7)
    kills = 0
    for _ in range(3):
        process = drive(tmp_path, 0, "after", "none")
        deadline = time.monotonic() + 20
        while not (tmp_path / "journal.jsonl").exists() and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 0.4))
        process.kill()
        kills += process.wait() != 0
    finish(tmp_path, "none")
    check(tmp_path, killed=kills)
