"""The same checks over every executor; those of Ray on a real cluster of this host, with GPUs in name only."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

sys.path.insert(0, str(Path(__file__).parent))

from executor_conformance import CHECKS, Subject
from scripted_lane import ScriptedLane, open_lane

from kernelevo_evaluator.settings import EvaluatorSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from kernelevo_evaluator.executor import Executor

LANES = 2


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """Where lanes write down what they do, and what they wait for; workers elsewhere inherit it."""
    folder = tmp_path_factory.mktemp("notes")
    variables = {
        "SCRIPTED_LOG": str(folder / "log"),
        "SCRIPTED_RELEASE": str(folder / "gate"),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield folder / "log", folder / "gate"


def make(name: str, settings: EvaluatorSettings) -> Executor:
    if name == "one host":
        return ScriptedLane(slots=LANES)
    pytest.importorskip("ray", reason="the Ray executor needs the ray extra")
    from kernelevo_evaluator.ray_executor.executor import RayExecutor

    return RayExecutor(settings, open_lane)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["one host", "ray"])
async def subject(
    request: pytest.FixtureRequest, notes: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Subject]:
    values: dict[str, Any] = {"device": "simulated", "executor": "ray", "ray_lanes": LANES}
    settings = EvaluatorSettings(state_dir=tmp_path_factory.mktemp("state"), **values)
    executor = make(request.param, settings)
    try:
        yield Subject(executor, await executor.start(), *notes)
    finally:
        await executor.close()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning:ray", "ignore::DeprecationWarning:ray", "ignore::FutureWarning:ray"
)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_executor(check: Callable[[Subject], Awaitable[None]], subject: Subject) -> None:
    subject.gate.unlink(missing_ok=True)
    subject.log.unlink(missing_ok=True)
    await check(subject)
