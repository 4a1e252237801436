"""An evaluator for the length of a benchmark: the one that was named, or one of our own in a fresh folder."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from server_process import START_S, server

from kernelevo_api.client import EvaluatorClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernelevo_api.types import Evaluation


@contextmanager
def evaluator(address: str | None) -> Iterator[EvaluatorClient]:
    """A client of `address`, or of an evaluator that is started here and stopped at the end."""
    if address is not None:
        with EvaluatorClient(address, client_id="benchmark") as client:
            client.wait_ready(START_S)
            yield client
        return
    with (
        tempfile.TemporaryDirectory(prefix="kernelevo-benchmark-") as folder,
        server(Path(folder), {"log_level": "warning"}, inherits=True) as served,
        EvaluatorClient(served.address, client_id="benchmark") as client,
    ):
        client.wait_ready(START_S)
        yield client


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
