"""A Docker engine for the length of a benchmark: the one at DOCKER_HOST, or one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from results import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

TOOL = ROOT / "sandbox" / "tools" / "docker_engine.py"


@contextmanager
def engine(own: bool) -> Iterator[None]:
    """With `own`: start one (as root, with docker.io and mmdebstrap), and end and remove it afterwards."""
    if not own:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="kernelevo-engine-", ignore_cleanup_errors=True, dir="/var/tmp") as name:
        folder = Path(name) / "engine"
        started = subprocess.run([sys.executable, TOOL, "start", folder], check=True, stdout=subprocess.PIPE, text=True)
        before = os.environ.get("DOCKER_HOST")
        os.environ["DOCKER_HOST"] = started.stdout.strip().splitlines()[-1]
        try:
            yield
        finally:
            if before is None:
                del os.environ["DOCKER_HOST"]
            else:
                os.environ["DOCKER_HOST"] = before
            subprocess.run([sys.executable, TOOL, "stop", folder], check=True)
