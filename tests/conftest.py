"""What tests of the whole system share: an evaluator that serves for the session, as its own process, and a Docker engine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from kernelevo_sandbox import DockerSandbox, SandboxUnavailable

sys.path.insert(0, str(Path(__file__).parent))
from supervise import children

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workers import ByGroup
    from xdist.remote import Producer

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = Path(sys.executable).parent
START_SECONDS = 120
STOP_SECONDS = 90

# What hangs shall cost the tests little; a build with torch's headers takes a minute, and timing waits on a busy host.
LIMITS = {"BUILD_TIME_S": "240", "PREPARE_TIME_S": "30", "CHECK_TIME_S": "60", "RUN_TIME_S": "240"}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByGroup:
    """Where the suite is run by several workers: which of them runs what."""
    from workers import ByGroup

    return ByGroup(config, log)


@dataclass(frozen=True)
class ServedEvaluator:
    """A running `kernelevo-evaluator serve`; `process` supervises it, and ends as it ends."""

    address: str
    process: subprocess.Popen[bytes]
    log: Path

    def descendants(self) -> list[int]:
        """Processes that it started, and theirs."""
        found, waiting = [], [self.process.pid]
        while waiting:
            below = children(waiting.pop())
            found += below
            waiting += below
        return found

    def log_tail(self, lines: int = 40) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


@pytest.fixture(scope="session")
def served_evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedEvaluator]:
    """One evaluator for the session. When it has ended, nothing that it started may be left."""
    if sys.platform != "linux":
        pytest.skip("the evaluator runs on Linux")
    folder = tmp_path_factory.mktemp("evaluator")
    address = f"unix:{folder / 'e.sock'}"
    log = folder / "log"
    variables = {"STATE_DIR": str(folder / "state"), "LISTEN": address, "LOG_FORMAT": "console", "SPARE_RUNNERS": "2"}
    variables |= LIMITS
    environment = os.environ | {f"KERNELEVO_EVALUATOR_{name}": value for name, value in variables.items()}
    outlived = folder / "outlived"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                sys.executable,
                ROOT / "tests/supervise.py",
                outlived,
                SCRIPTS / "kernelevo-evaluator",
                "serve",
                "--exit-with-parent",
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    served = ServedEvaluator(address, process, log)
    try:
        _wait_until_ready(served)
        yield served
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = None
    assert code == 0, f"the evaluator ended with {code} after SIGTERM:\n{served.log_tail()}"
    left = outlived.read_text()
    assert not left, f"processes outlived the evaluator:\n{left}\n{served.log_tail()}"


@pytest.fixture(scope="session")
def evaluator_address(served_evaluator: ServedEvaluator) -> str:
    """Where the session's evaluator listens, as `--evaluator` takes it."""
    return served_evaluator.address


@pytest.fixture(scope="session")
def docker_engine() -> None:
    """An engine with the sandbox image, at DOCKER_HOST or the usual place; otherwise skips, and says why.

    TEST_DOCKER_ENGINE says what came of starting an engine for the tests: `required`, so that its lack is a failure, or why
    none could be started.
    """
    said = os.environ.get("TEST_DOCKER_ENGINE", "")

    async def look() -> None:
        sandbox = DockerSandbox()
        try:
            await sandbox.sweep()
        finally:
            await sandbox.close()

    try:
        # In a thread: a loop may be running here that asked for this fixture.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, look()).result()
    except SandboxUnavailable as why:
        if said == "required":
            pytest.fail(f"an engine was to be here: {why}")
        pytest.skip(f"Docker is not tested here: {said or why}")


def _wait_until_ready(served: ServedEvaluator) -> None:
    deadline = time.monotonic() + START_SECONDS
    with grpc.insecure_channel(served.address) as channel:
        ready = grpc.channel_ready_future(channel)
        while True:
            try:
                ready.result(timeout=1)
                return
            except grpc.FutureTimeoutError:
                pass
            if served.process.poll() is not None:
                pytest.fail(f"the evaluator ended with {served.process.returncode}:\n{served.log_tail()}")
            if time.monotonic() > deadline:
                pytest.fail(f"the evaluator was not ready after {START_SECONDS} s:\n{served.log_tail()}")
