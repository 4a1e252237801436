"""The run on disk: what is appended is there, whatever happens to the process; one writer at a time."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from kernelevo_api.types import BaselineKind, Capabilities, DeviceRequirement, Evaluation, Ratio, Timing, Verdict
from kernelevo_searcher.events import (
    EVENT_KINDS,
    CandidateProposed,
    EvaluationFinished,
    EvaluatorsConnected,
    Paused,
    Resumed,
    RunFinished,
    RunSettings,
    RunStarted,
    StopDecided,
    text_digest,
)
from kernelevo_searcher.proposers import ActionKind
from kernelevo_searcher.store import RunInUse, RunNotFound, RunStore, StoreError, read_records

if TYPE_CHECKING:
    from pathlib import Path

STARTED = RunStarted(
    run_id="r",
    version="0",
    problem_name="p",
    problem_digest=text_digest("problem"),
    settings=RunSettings(seed=7, baseline=BaselineKind.TORCH_COMPILE, evaluators=("a", "b")),
)


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    evaluation = Evaluation(verdict=Verdict.PASSED, timing=Timing(speedup=Ratio(value=float("inf"), low=1.0, high=2.0)))
    events = (
        STARTED,
        EvaluatorsConnected(capabilities=Capabilities(), device=DeviceRequirement(name="cpu")),
        CandidateProposed(candidate_id="c1", source_digest="s", normal_digest="n", action=ActionKind.TUNE),
        EvaluationFinished(request_id="q", candidate_id="c1", evaluation=evaluation),
        Paused(reason="because"),
        Resumed(),
        RunFinished(reason="done"),
    )
    with RunStore.create(tmp_path / "run") as store:
        written = store.append(*events[:3], texts=("problem", "s")) + store.append(*events[3:])
    with RunStore.open(tmp_path / "run") as store:
        assert tuple(store.records()) == written
        assert [record.sequence for record in written] == list(range(1, 8))
        assert store.text(text_digest("problem")) == "problem"
        (more,) = store.append(StopDecided(reason="x"), texts=("problem",))
        assert more.sequence == 8
        with pytest.raises(KeyError):
            store.text("nothing")
    assert read_records(tmp_path / "run")[-1].event == StopDecided(reason="x")


def test_every_kind_of_event_has_a_name_of_its_own() -> None:
    assert len(EVENT_KINDS) == len(set(EVENT_KINDS.values()))
    assert "model_call_started" in EVENT_KINDS


def test_the_log_is_append_only(tmp_path: Path) -> None:
    with RunStore.create(tmp_path) as store:
        store.append(STARTED)
        for statement in ("UPDATE events SET kind='x'", "DELETE FROM events"):
            with pytest.raises(sa.exc.IntegrityError, match="append-only"), store._engine.begin() as connection:
                connection.exec_driver_sql(statement)
    assert len(read_records(tmp_path)) == 1


def test_a_failed_append_leaves_nothing(tmp_path: Path) -> None:
    with RunStore.create(tmp_path) as store:
        store.append(STARTED)
        store._next = 1
        with pytest.raises(sa.exc.IntegrityError):
            store.append(Paused(reason="x"), texts=("lost",))
        assert store._next == 1
        with pytest.raises(KeyError):
            store.text(text_digest("lost"))


def test_a_run_is_locked_against_other_writers_and_open_to_readers(tmp_path: Path) -> None:
    with RunStore.create(tmp_path) as store:
        store.append(STARTED)
        with pytest.raises(RunInUse, match="another process"):
            RunStore.open(tmp_path)
        assert len(read_records(tmp_path)) == 1
    with RunStore.open(tmp_path):
        pass


def test_a_lock_dies_with_its_process(tmp_path: Path) -> None:
    with RunStore.create(tmp_path) as store:
        store.append(STARTED)
    program = (
        "import sys,pathlib,os\n"
        "from kernelevo_searcher.store import RunStore\n"
        "store = RunStore.open(pathlib.Path(sys.argv[1]))\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == b"locked"
        with pytest.raises(RunInUse):
            RunStore.open(tmp_path)
        process.kill()
    with RunStore.open(tmp_path):
        pass


def test_a_folder_without_a_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match="there is no run"):
        RunStore.open(tmp_path)
    (tmp_path / "run.sqlite").write_bytes(b"not a database, not at all, just some bytes that are long enough " * 20)
    with pytest.raises(RunNotFound):
        read_records(tmp_path)


def test_a_second_run_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    with RunStore.create(tmp_path) as store:
        store.append(STARTED)
    with pytest.raises(StoreError, match="--resume"):
        RunStore.create(tmp_path)


def test_a_run_of_another_format_is_refused(tmp_path: Path) -> None:
    with RunStore.create(tmp_path) as store:
        store.append(STARTED)
    connection = sqlite3.connect(tmp_path / "run.sqlite")
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(StoreError, match="format 99"):
        RunStore.open(tmp_path)
