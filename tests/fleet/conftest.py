"""Real evaluators as processes of their own, with simulated devices, that a test may kill and start again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

READY_S = 60.0


@dataclass
class Host:
    """One `kernelevo-evaluator serve`, on a socket that stays its own over all its lives."""

    folder: Path
    settings: dict[str, object]
    process: subprocess.Popen[bytes] | None = None
    _ready: int = -1

    @property
    def address(self) -> str:
        return f"unix:{self.folder / 'e.sock'}"

    def start(self) -> None:
        self.begin()
        self.wait_ready()

    def begin(self) -> None:
        """Start it, without waiting until it answers."""
        self.folder.mkdir(exist_ok=True)
        self._ready, write = os.pipe()
        command = [sys.executable, "-m", "kernelevo_evaluator", "serve", "--exit-with-parent", "--ready-fd", str(write)]
        command += ["--state-dir", str(self.folder / "state")]
        defaults = {"listen": self.address, "device": "simulated", "log_level": "warning"}
        for name, value in {**defaults, **self.settings}.items():
            command += ["--set", f"{name}={value}"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, pass_fds=(write,))
        os.close(write)

    def wait_ready(self) -> None:
        """Wait until it answers."""
        with os.fdopen(self._ready) as ready:
            assert ready.read(), (self.folder / "log").read_text(errors="replace")

    def kill(self) -> None:
        """As a host that loses its power."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """As a host that is asked to."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(number)
            process.wait(READY_S)


def make_certificate(folder: Path, *names: str) -> None:
    """`tls.crt` and `tls.key` for these names, each as openssl writes it: DNS:… or IP:…"""
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=kernelevo"),
            *("-addext", f"subjectAltName={','.join(names)}", "-keyout", "tls.key", "-out", "tls.crt"),
        ],
        cwd=folder,
        check=True,
        capture_output=True,
    )


@pytest.fixture
def hosts() -> Iterator[Callable[..., list[Host]]]:
    """Starts so many evaluators, with these settings."""
    if sys.platform != "linux":
        pytest.skip("the evaluator runs on Linux")
    made: list[Host] = []
    # Not tmp_path: a Unix socket's path has little room.
    with tempfile.TemporaryDirectory(prefix="ke") as folder:

        def start(count: int, **settings: object) -> list[Host]:
            new = [Host(Path(folder) / f"h{len(made) + number}", settings) for number in range(count)]
            made.extend(new)
            for host in new:
                host.begin()
            for host in new:
                host.wait_ready()
            return new

        try:
            yield start
        finally:
            for host in made:
                host.kill()
