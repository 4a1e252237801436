"""An evaluator as a process of its own, that a benchmark starts, kills and starts again, and what is seen of it from outside."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from kernelevo_api.errors import EvaluatorError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

START_S = 120.0
STOP_S = 90.0
END_SEEN_S = 2.0
"""A process that crashed is seen as ended this much later than its connections, at most."""
TOLD = ("Traceback", '"traceback"', "call failed", "exception was never retrieved", "not evaluated")
"""What stands in the log where something went wrong that nobody had thought of."""

LEFT = "ExecuteBatchError raised in core by servicer method"
"""grpcio's own line where a client has gone while it was answered."""

SIMULATED: Mapping[str, object] = {
    "device": "simulated",
    "simulated_s": 0.001,
    "simulated_lanes": 4,
    "grace_s": 1,
    "drain_s": 5,
    "log_level": "warning",
    "log_format": "json",
}
"""Settings of a server whose verdicts are made up, at once."""

LAST_LINES = 20
"""Of the log, told where something fails."""
NOT_MEASURED = 2
"""Exit status of a benchmark that has no figures to tell."""

SERVE = (sys.executable, "-P", "-m", "kernelevo_evaluator", "serve", "--exit-with-parent")


class NotMeasured(Exception):
    """Something kept a benchmark from its figures; the message says what."""


def exit_status(measure: Callable[[], int]) -> int:
    """What `measure` returns; `NOT_MEASURED`, and one line that says why, where it has no figures."""
    try:
        return measure()
    except Exception as error:
        first: BaseException = error
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        if not isinstance(first, (NotMeasured, EvaluatorError, TimeoutError)):
            raise
        print(f"not measured: {type(first).__name__}: {first}", file=sys.stderr)
        return NOT_MEASURED


@dataclass
class Server:
    """A server on a folder that it has for itself: its socket, its state and its log."""

    folder: Path
    settings: Mapping[str, object] = field(default_factory=dict)
    command: Sequence[str] = SERVE
    """Called with `--listen`, `--state-dir` and the settings after it."""
    inherits: bool = False
    """Whether settings in this process's environment count too."""
    stopped: int | None = None
    """Exit status after `stop`."""
    _process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"unix:{self.folder / 'e.sock'}"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The newest life of it."""
        assert self._process is not None
        return self._process

    def start(self) -> None:
        """Begin a life, on the state of the one before; the log goes on."""
        command = [*self.command, "--listen", self.address, "--state-dir", str(self.folder / "state")]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        own = "KERNELEVO_EVALUATOR_"
        environment = {name: value for name, value in os.environ.items() if self.inherits or not name.startswith(own)}
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)

    def kill(self) -> None:
        """End it as a crash does."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End it by SIGTERM, or by force where that takes too long."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.stopped = self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    async def ready(self) -> None:
        """Returns once it serves.

        Raises:
            NotMeasured: it ended before, or does not take work.
            TimeoutError: it does neither.
        """
        async with asyncio.timeout(START_S):
            while not Path(self.address.removeprefix("unix:")).exists():
                if self.process.poll() is not None:
                    raise NotMeasured(f"the evaluator ended with {self.process.returncode} before it served")
                await asyncio.sleep(0.05)
            if not await self.healthy():
                raise NotMeasured("the evaluator takes no work")

    async def lives(self) -> bool:
        """Whether the process is there; asked after a connection broke, it waits a little for its end."""
        try:
            await asyncio.to_thread(self.process.wait, END_SEEN_S)
        except subprocess.TimeoutExpired:
            return True
        return False

    async def healthy(self) -> bool:
        """Whether the process lives and says on a new connection that it serves."""
        if self.process.poll() is not None:
            return False
        options: list[tuple[str, int]] = [("grpc.use_local_subchannel_pool", 1)]
        try:
            async with grpc.aio.insecure_channel(self.address, options=options) as channel:
                stub, request = health_pb2_grpc.HealthStub(channel), health_pb2.HealthCheckRequest()
                answer = await stub.Check(request, timeout=START_S, wait_for_ready=True)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def resident_bytes(self) -> int | None:
        """Memory that it holds now; `None` where it has ended."""
        try:
            lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            return None
        # One that has ended and was not waited for yet has no such line.
        return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:")), None)

    def last_lines(self) -> list[str]:
        """The end of its log."""
        return self.log.read_text(errors="replace").splitlines()[-LAST_LINES:]

    def complaints(self) -> list[str]:
        """Lines of the log that tell of something that nobody had thought of."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line[:1000] for line in lines if any(one in line for one in TOLD) and LEFT not in line]


@contextmanager
def server(
    folder: Path,
    settings: Mapping[str, object] = SIMULATED,
    command: Sequence[str] = SERVE,
    *,
    inherits: bool = False,
) -> Iterator[Server]:
    """A server in `folder`, started here and stopped at the end. Where something fails, its log's last lines go to stderr."""
    found = Server(folder, settings, command, inherits)
    found.start()
    try:
        yield found
    except BaseException:
        print("\n".join(["the end of the evaluator's log:", *found.last_lines()]), file=sys.stderr)
        raise
    finally:
        found.stop()
