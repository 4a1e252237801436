"""The same checks over every executor, and of the service around it; those of Ray on a real cluster of this host, with GPUs in
name only.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

sys.path.insert(0, str(Path(__file__).parent))

from executor_conformance import CHECKS, Subject
from scripted_lane import ScriptedLane, open_lane
from service_conformance import SERVICE_CHECKS, Service, serving

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
async def service(request: pytest.FixtureRequest, notes: tuple[Path, Path]) -> AsyncIterator[Service]:
    values: dict[str, Any] = {"device": "simulated", "executor": "ray", "ray_lanes": LANES}
    # Not tmp_path: a Unix socket's path has little room.
    with tempfile.TemporaryDirectory(prefix="ke") as name:
        executor = make(request.param, EvaluatorSettings(state_dir=Path(name) / "lanes", **values))
        async with serving(executor, Path(name)) as (facts, client):
            yield Service(Subject(executor, facts, *notes), client)


pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning:ray", "ignore::DeprecationWarning:ray", "ignore::FutureWarning:ray"
    ),
]


def nothing_noted(subject: Subject) -> None:
    subject.gate.unlink(missing_ok=True)
    subject.log.unlink(missing_ok=True)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_executor(check: Callable[[Subject], Awaitable[None]], service: Service) -> None:
    nothing_noted(service.subject)
    await check(service.subject)


@pytest.mark.parametrize("check", SERVICE_CHECKS, ids=lambda check: check.__name__)
async def test_service(check: Callable[[Service], Awaitable[None]], service: Service) -> None:
    nothing_noted(service.subject)
    await check(service)
