"""A real server with a simulated device, as a process of its own, and what can be seen of it from outside."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Iterator

START_S = 120.0
STOP_S = 60.0
TOLD = ("Traceback", '"traceback"', "call failed", "exception was never retrieved", "not evaluated")
"""What stands in the log where something went wrong that nobody had thought of."""

LEFT = "ExecuteBatchError raised in core by servicer method"
"""grpcio's own line where a client has gone while it was answered."""


@dataclass
class Server:
    """A server that is being tried."""

    process: subprocess.Popen[bytes]
    address: str
    log: Path
    stopped: int | None = None
    """Exit status after SIGTERM."""

    def resident_bytes(self) -> int:
        """Memory that it holds now."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) << 10
        raise ProcessLookupError(f"process {self.process.pid} has ended")

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

    def complaints(self) -> list[str]:
        """Lines of the log that tell of something that nobody had thought of."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line[:1000] for line in lines if any(one in line for one in TOLD) and LEFT not in line]


@contextmanager
def server(folder: Path, *arguments: str) -> Iterator[Server]:
    """A server in `folder`, which it has for itself; stopped by SIGTERM at the end, its exit status in `stopped`."""
    address = f"unix:{folder / 'e.sock'}"
    log = folder / "log"
    settings = {
        "device": "simulated",
        "simulated_s": "0.001",
        "simulated_lanes": "4",
        "grace_s": "1",
        "drain_s": "5",
        "log_level": "warning",
        "log_format": "json",
    }
    command = [sys.executable, "-P", "-m", "kernelevo_evaluator", "serve", "--exit-with-parent"]
    command += ["--listen", address, "--state-dir", str(folder / "state"), *arguments]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KERNELEVO_EVALUATOR_")}
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
        found = Server(process, address, log)
        try:
            yield found
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                found.stopped = process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def ready(found: Server) -> None:
    """Returns once it serves.

    Raises:
        RuntimeError: it ended before; the message is its log.
    """
    async with asyncio.timeout(START_S):
        while not Path(found.address.removeprefix("unix:")).exists():
            if found.process.poll() is not None:
                raise RuntimeError(found.log.read_text(errors="replace"))
            await asyncio.sleep(0.05)
        if not await found.healthy():
            raise RuntimeError(found.log.read_text(errors="replace"))
