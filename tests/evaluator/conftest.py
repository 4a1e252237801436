"""A real server on a real Unix socket, around the scripted executor."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from postgres_server import NoPostgres, PostgresServer
from scripted_executor import PROBLEM, ScriptedExecutor, candidate

from kernelevo_api.channel import RetryPolicy
from kernelevo_api.client import AsyncEvaluatorClient
from kernelevo_api.errors import EvaluatorError
from kernelevo_api.types import Candidate, EvaluateRequest, Evaluation, Problem, Progress, Stage
from kernelevo_evaluator.server import EvaluatorServer
from kernelevo_evaluator.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterator

    from kernelevo_evaluator.telemetry import Telemetry

NO_RETRY = RetryPolicy(queue_s=0, unavailable_s=0)
PATIENCE_S = 50.0
"""How long a test waits for what must come: a busy machine is slow, not wrong."""


class Asked:
    """A request under way. Waits for what its stream tells, so that nothing depends on when one looks."""

    def __init__(self, client: AsyncEvaluatorClient, asked: EvaluateRequest) -> None:
        self.request_id = asked.request_id
        self.seen: list[Progress] = []
        self._changed = asyncio.Condition()
        self._told: set[asyncio.Task[None]] = set()
        self.task = asyncio.create_task(client.evaluate(asked, on_progress=self._tell))

    def __await__(self) -> Generator[Any, None, Evaluation]:
        return self.task.__await__()

    async def until(self, seen: Callable[[Progress], bool]) -> Progress:
        """The first event that is looked for; fails where the request ends without."""
        async with asyncio.timeout(PATIENCE_S), self._changed:
            while (found := next(filter(seen, self.seen), None)) is None:
                assert not self.task.done(), self.task
                await self._changed.wait()
        return found

    async def queued(self) -> Progress:
        """Returns when it waits in the queue."""
        return await self.until(lambda one: one.queue_position is not None)

    async def at(self, *stages: Stage) -> Progress:
        """Returns when it is at one of these stages."""
        return await self.until(lambda one: one.stage in stages)

    async def gone(self) -> None:
        """The client goes away."""
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError, EvaluatorError):
            await self.task

    def _tell(self, event: Progress) -> None:
        self.seen.append(event)
        task = asyncio.create_task(self._notify())
        self._told.add(task)
        task.add_done_callback(self._told.discard)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class Host:
    """Servers and clients of one test, all ended with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.executor = ScriptedExecutor()
        self.server: EvaluatorServer | None = None
        self.address = f"unix:{folder / 'e.sock'}"
        self._clients: list[AsyncEvaluatorClient] = []

    async def start(
        self, executor: ScriptedExecutor | None = None, telemetry: Telemetry | None = None, **settings: Any
    ) -> AsyncEvaluatorClient:
        """Start a server (again, on the same state) and return a client that does not retry."""
        self.executor = executor or ScriptedExecutor()
        flags = {"state_dir": self.folder / "state", "listen": self.address, "drain_s": 5.0, **settings}
        self.server = EvaluatorServer(lambda: self.executor, load_settings(flags).settings, telemetry)
        self.address = await self.server.start()
        return self.client()

    def ask(self, asked: EvaluateRequest, client: AsyncEvaluatorClient | None = None) -> Asked:
        """Send a request, by this client or one of its own."""
        return Asked(client or self.client(), asked)

    def client(self, **options: Any) -> AsyncEvaluatorClient:
        client = AsyncEvaluatorClient(self.address, **{"retry": NO_RETRY, **options})
        self._clients.append(client)
        return client

    async def stop(self, seconds: float = 5.0) -> None:
        if self.server is not None:
            server, self.server = self.server, None
            await server.drain(seconds)

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        self.executor.release()
        await self.stop(0.0)


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not tmp_path: a Unix socket's path has little room.
    with tempfile.TemporaryDirectory(prefix="ke") as name:
        yield Path(name)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    try:
        server = PostgresServer()
    except NoPostgres as error:
        pytest.skip(str(error))
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str | None:
    """Address of an empty database, of each kind in turn; `None`: the file in the state folder."""
    if request.param == "sqlite":
        return None
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture
async def host(folder: Path) -> AsyncIterator[Host]:
    host = Host(folder)
    try:
        yield host
    finally:
        await host.close()


def request(script: str = "passed", *, extra: str = "", **fields: Any) -> EvaluateRequest:
    """A request with the problem inline."""
    return EvaluateRequest(
        **{
            "request_id": str(uuid.uuid4()),
            "problem": Problem(source=PROBLEM),
            "candidate": Candidate(source=candidate(script, extra)),
            **fields,
        }
    )


@pytest.fixture
def make_request() -> Any:
    return request
