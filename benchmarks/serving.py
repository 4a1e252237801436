"""An evaluator for the length of a benchmark: the one that was named, or one of our own in a fresh folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelevo_api.client import EvaluatorClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernelevo_api.types import Evaluation

START_SECONDS = 120


@contextmanager
def evaluator(address: str | None) -> Iterator[EvaluatorClient]:
    """A client of `address`, or of an evaluator that is started here and stopped at the end."""
    if address is not None:
        with EvaluatorClient(address, client_id="benchmark") as client:
            client.wait_ready(START_SECONDS)
            yield client
        return
    with tempfile.TemporaryDirectory(prefix="kernelevo-benchmark-") as folder:
        socket = f"unix:{Path(folder) / 'e.sock'}"
        environment = os.environ | {
            "KERNELEVO_EVALUATOR_LISTEN": socket,
            "KERNELEVO_EVALUATOR_STATE_DIR": str(Path(folder) / "state"),
            "KERNELEVO_EVALUATOR_LOG_LEVEL": "warning",
        }
        command = [sys.executable, "-P", "-m", "kernelevo_evaluator", "serve", "--exit-with-parent"]
        process = subprocess.Popen(command, env=environment)
        try:
            with EvaluatorClient(socket, client_id="benchmark") as client:
                client.wait_ready(START_SECONDS)
                yield client
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(90)
            except subprocess.TimeoutExpired:
                process.kill()


def stage_seconds(evaluation: Evaluation) -> dict[str, float]:
    """Seconds in each stage, by the evaluator's clock."""
    spent: dict[str, float] = defaultdict(float)
    for stage in evaluation.timeline.stages if evaluation.timeline else ():
        if stage.stage and stage.start and stage.end:
            spent[stage.stage.value] += (stage.end - stage.start).total_seconds()
    return dict(spent)


def kept(evaluation: Evaluation) -> dict[str, Any]:
    """What raw data holds of an evaluation."""
    timing = evaluation.timing
    ratio = timing.speedup if timing is not None else None
    return {
        "verdict": evaluation.verdict.value if evaluation.verdict else "",
        "message": evaluation.message[:2000],
        "speedup": [ratio.value, ratio.low, ratio.high] if ratio else None,
        "candidate_us": timing.candidate_us if timing else None,
        "baseline_us": timing.baseline_us if timing else None,
        "mode": timing.mode.value if timing and timing.mode else "",
    }
