"""An evaluator of the run's own: a process on this machine, on a private socket, that ends when we do.

Used when no evaluator was named. Its results are kept in the run's folder, so that a resumed run finds what was finished.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from kernelevo_api.errors import EvaluatorError
from kernelevo_api.pool import NoEvaluator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernelevo_api.client import AsyncEvaluatorClient

__all__ = ["EMBEDDED", "EmbeddedEvaluator", "evaluator_environment"]

EMBEDDED = "embedded"
"""What the log calls it: its address differs from one process to the next."""
LOG_FILE = "evaluator.log"
_NEEDED = ("kernelevo_evaluator", "torch", "structlog", "msgspec", "grpc_health")
_STOP_S = 10.0
_POLL_S = 0.1
_LOG_TAIL = 2000
_GIVEN = frozenset(
    {
        *(
            "PATH",
            "HOME",
            "USER",
            "LOGNAME",
            "SHELL",
            "LANG",
            "LANGUAGE",
            "TZ",
            "TERM",
            "TMPDIR",
            "TEMP",
            "TMP",
            "VIRTUAL_ENV",
        ),
        *(
            "CC",
            "CXX",
            "CPATH",
            "C_INCLUDE_PATH",
            "CPLUS_INCLUDE_PATH",
            "LIBRARY_PATH",
            "LD_LIBRARY_PATH",
            "CONDA_PREFIX",
        ),
        *("DOCKER_HOST", "no_proxy", "NO_PROXY"),
    }
)
_GIVEN_BY_PREFIX = (
    *("KERNELEVO_EVALUATOR_", "PYTHON", "LC_", "XDG_", "CUDA_", "NVIDIA_", "NVCC_", "TORCH", "TRITON_", "OMP_", "MKL_"),
    *("RAY_", "OTEL_", "GRPC_"),
)


def evaluator_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What an evaluator may know of this process' environment: no model's key, whatever the variable is called that holds it."""
    return {
        name: value
        for name, value in environment.items()
        if name in _GIVEN or (name.startswith(_GIVEN_BY_PREFIX) and not name.endswith("_API_KEY"))
    }


class EmbeddedEvaluator:
    """Starts `kernelevo_evaluator serve` and stops it again.

    Args:
        folder: where its state and its log go; made where it is missing.

    Raises:
        NoEvaluator: it cannot run here; the message says what to do.
    """

    def __init__(self, folder: Path) -> None:
        if not sys.platform.startswith("linux"):
            raise NoEvaluator(
                f"the evaluator runs on Linux, not on {sys.platform}. Start one on a Linux machine with "
                "`kernelevo-evaluator serve` and name it: --evaluator HOST:PORT"
            )
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            raise NoEvaluator(
                f"the evaluator is not installed here (no {', '.join(missing)}). Install it with "
                "`pip install 'kernelevo[evaluator]'`, or name one that runs elsewhere: --evaluator ADDRESS"
            )
        self._folder = folder
        # A socket's path may have 107 bytes, and its folder must be ours alone.
        self._private = Path(tempfile.mkdtemp(prefix="kernelevo-"))
        self._socket = self._private / "evaluator.sock"
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"unix:{self._socket}"

    @property
    def log_path(self) -> Path:
        """What it said."""
        return self._folder / LOG_FILE

    def start(self) -> None:
        """Start it, or start it again if it ended. Returns before it answers."""
        if self._process is not None and self._process.poll() is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        self._socket.unlink(missing_ok=True)
        if self._log is None:
            self._log = self.log_path.open("ab")
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "kernelevo_evaluator",
                "serve",
                "--listen",
                self.address,
                "--state-dir",
                str(self._folder / "state"),
                "--exit-with-parent",
            ],
            env=evaluator_environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            # Ctrl-C in the terminal is ours to handle: the evaluator is stopped when we are done with it.
            start_new_session=True,
        )

    async def wait_ready(self, client: AsyncEvaluatorClient, timeout_s: float) -> None:
        """Wait until it answers.

        Raises:
            NoEvaluator: it ended, or does not answer in time; the message has the end of its log.
        """
        end = time.monotonic() + timeout_s
        while True:
            try:
                await client.wait_ready(timeout=_POLL_S * 5)
            except EvaluatorError as error:
                code = self._process.poll() if self._process is not None else None
                if code is not None:
                    raise NoEvaluator(f"the evaluator ended at once (status {code}).{self._said()}") from error
                if time.monotonic() >= end:
                    raise NoEvaluator(f"the evaluator did not answer in {timeout_s:g} s.{self._said()}") from error
            else:
                return

    def _said(self) -> str:
        with contextlib.suppress(OSError):
            said = self.log_path.read_text(encoding="utf-8", errors="replace").strip()
            if said:
                return f" Its log, {self.log_path}, ends:\n{said[-_LOG_TAIL:]}"
        return " It said nothing; `kernelevo-evaluator doctor` tells what this machine lacks."

    def stop(self) -> None:
        """End it and everything that it started."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._log is not None:
            self._log.close()
            self._log = None
        shutil.rmtree(self._private, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
