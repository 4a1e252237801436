"""Ctrl-C and SIGTERM, sent to the real command: what is begun afterwards, what is waited for, what is said, and going on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import IO, TYPE_CHECKING

import pytest
from tests.searcher.grpc_evaluator import Gate, GrpcEvaluator, serve_evaluator
from tests.searcher.openai_server import Asked, OpenAIServer, Reply, serve
from tests.searcher.scripted_evaluator import KERNEL, PROBLEM
from typer.testing import CliRunner

from kernelevo_searcher.cli import app
from kernelevo_searcher.events import (
    EvaluationFinished,
    EvaluationStarted,
    ModelCallFinished,
    ModelCallStarted,
    RunResumed,
)
from kernelevo_searcher.proposers import ReplyOutcome
from kernelevo_searcher.state import RunState, replay
from kernelevo_searcher.store import read_records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are not signalled there")

CALLS = 2
TO_RESUME = "kernelevo evolve --resume run"


class Scene:
    """A model and an evaluator that wait for a test's leave, and a folder to search in."""

    def __init__(self, folder: Path, model: OpenAIServer, replies: Gate, evaluator: GrpcEvaluator) -> None:
        self.folder = folder
        self.model = model
        self.replies = replies
        self.evaluator = evaluator
        (folder / "problem.py").write_text(PROBLEM, encoding="utf-8")
        (folder / "kernel.py").write_text(KERNEL, encoding="utf-8")

    @contextlib.contextmanager
    def kernelevo(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """The command, killed if the test leaves it running."""
        environment = os.environ | {"KERNELEVO_CALLS_IN_FLIGHT": str(CALLS)}
        # What this process ignores, a job in the background as it may be, its children would ignore too.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "kernelevo_searcher", "evolve", *arguments],
                cwd=self.folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        finally:
            signal.signal(signal.SIGINT, before)
        with process:
            try:
                yield process
            finally:
                process.kill()

    @contextlib.contextmanager
    def searching(self) -> Iterator[subprocess.Popen[str]]:
        """A new run, at the moment at which it has begun all that it can: the first evaluation and all model calls."""
        self.replies.close()
        self.evaluator.evaluations.close()
        with self.kernelevo(*self.new_run()) as process:
            self.replies.wait_for(CALLS)
            self.evaluator.evaluations.wait_for(1)
            yield process

    def new_run(self) -> list[str]:
        """Arguments of a new run in the folder `run`."""
        model = ["--model", "m", "--base-url", self.model.base_url]
        return [
            "problem.py",
            *("--start", "kernel.py", "--run", "run", "--evaluations", "5"),
            *model,
            *("--evaluator", self.evaluator.address),
        ]

    def let_go(self) -> None:
        """Nothing waits any more."""
        self.replies.open()
        self.evaluator.registrations.open()
        self.evaluator.evaluations.open()

    def state(self) -> RunState:
        """Of the run."""
        return replay(read_records(self.folder / "run"))

    def count(self, *kinds: type) -> int:
        """Events of these kinds in the log."""
        return sum(isinstance(record.event, kinds) for record in read_records(self.folder / "run"))

    def resume(self) -> RunState:
        """Go on with the run to its end, with nobody to interrupt it."""
        with contextlib.chdir(self.folder):
            result = CliRunner().invoke(app, ["evolve", "--resume", "run"])
        assert result.exit_code == 0, result.stderr
        state = self.state()
        assert state.finished is not None and state.finished.best_id is not None
        assert not state.calls and not state.in_flight
        return state


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    replies = Gate()
    numbers = iter(range(1000))

    def reply(_asked: Asked) -> Reply:
        replies.enter()
        source = f"{KERNEL}\nBONUS = 3\nSALT = {next(numbers)}\n"
        return Reply(content=f"Idea: more\n\n```python\n{source}```\n")

    with serve(reply, repeat_last=True) as model, serve_evaluator() as evaluator:
        try:
            yield Scene(tmp_path, model, replies, evaluator)
        finally:
            replies.open()


def line_with(stream: IO[str] | None, words: str) -> str:
    """The next line with these words in it."""
    assert stream is not None
    for line in stream:
        if words in line:
            return line
    raise AssertionError(f"no line with {words!r}")


def test_once_waits_for_what_is_under_way_and_begins_nothing(scene: Scene) -> None:
    with scene.searching() as process:
        process.send_signal(signal.SIGINT)
        foreseen = line_with(process.stdout, "forecast")
        assert "about 5 candidates, then the evaluations run out" in foreseen and "price unknown" in foreseen
        said = line_with(process.stdout, "stopping")
        assert f"waiting for {CALLS} model calls and 1 evaluation;" in said and "second Ctrl-C stops at once" in said
        scene.let_go()
        summary, errors = process.communicate()
    assert process.returncode == 3
    assert TO_RESUME in errors and "nothing is lost" in errors
    assert "1 candidates evaluated" in summary and "speedup so far, not verified" in summary
    assert f"all      all: {CALLS} calls, {CALLS} candidates" in summary

    # What came back would have led to more at once: it did not.
    assert len(scene.model.asked) == CALLS and scene.evaluator.evaluations.arrived == 1
    assert scene.count(ModelCallStarted) == scene.count(ModelCallFinished) == CALLS
    assert scene.count(EvaluationStarted) == scene.count(EvaluationFinished) == 1
    state = scene.state()
    assert state.finished is None and state.stop is None and len(state.candidates) == 1 + CALLS
    assert state.usage.total_tokens == scene.model.charged_tokens

    state = scene.resume()
    assert state.evaluated == 5 and state.usage.total_tokens == scene.model.charged_tokens
    assert scene.count(EvaluationStarted) == scene.count(EvaluationFinished) == scene.evaluator.evaluations.arrived


def test_twice_stops_at_once_and_sigterm_counts_as_once(scene: Scene) -> None:
    with scene.searching() as process:
        process.send_signal(signal.SIGTERM)
        line_with(process.stdout, "stopping")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 3
    assert TO_RESUME in errors and "stopped at once" in errors
    assert f"{CALLS} model calls count with" in errors and "1 evaluations are asked for again" in errors
    assert scene.count(ModelCallFinished, EvaluationFinished) == 0

    scene.let_go()
    state = scene.resume()
    outcomes = [record.event for record in read_records(scene.folder / "run")]
    lost = [event for event in outcomes if isinstance(event, ModelCallFinished) and event.outcome is ReplyOutcome.LOST]
    assert len(lost) == CALLS and state.evaluated == 5


def test_before_anything_is_under_way_once_is_enough(scene: Scene) -> None:
    scene.evaluator.registrations.close()
    with scene.kernelevo(*scene.new_run(), "--json") as process:
        scene.evaluator.registrations.wait_for(1)
        process.send_signal(signal.SIGINT)
        told, errors = process.communicate()
    assert process.returncode == 3
    assert "nothing is under way" in errors and TO_RESUME in errors
    assert '"stopped": "interrupted"' in told and f'"resume": "{TO_RESUME}"' in told
    scene.let_go()
    scene.resume()
    assert scene.count(RunResumed) == 1
