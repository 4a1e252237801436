"""A real server on a real Unix socket, around the scripted executor."""

from __future__ import annotations

import sys
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from scripted_executor import PROBLEM, ScriptedExecutor, candidate

from kernelevo_api.channel import RetryPolicy
from kernelevo_api.client import AsyncEvaluatorClient
from kernelevo_api.types import Candidate, EvaluateRequest, Problem
from kernelevo_evaluator.server import EvaluatorServer
from kernelevo_evaluator.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

NO_RETRY = RetryPolicy(queue_s=0, unavailable_s=0)


class Host:
    """Servers and clients of one test, all ended with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.executor = ScriptedExecutor()
        self.server: EvaluatorServer | None = None
        self.address = f"unix:{folder / 'e.sock'}"
        self._clients: list[AsyncEvaluatorClient] = []

    async def start(self, executor: ScriptedExecutor | None = None, **settings: Any) -> AsyncEvaluatorClient:
        """Start a server (again, on the same state) and return a client that does not retry."""
        self.executor = executor or ScriptedExecutor()
        flags = {"state_dir": self.folder / "state", "listen": self.address, "drain_s": 5.0, **settings}
        self.server = EvaluatorServer(lambda: self.executor, load_settings(flags).settings)
        self.address = await self.server.start()
        return self.client()

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
