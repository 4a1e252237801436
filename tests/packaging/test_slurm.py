"""The Slurm script as its shell and ShellCheck read it. tests/fleet/test_slurm_job.py runs it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "slurm" / "evaluators.sbatch"
SHELLCHECK = shutil.which("shellcheck") or shutil.which("shellcheck", path=Path(sys.executable).parent)


def test_the_shell_reads_it() -> None:
    done = subprocess.run(["bash", "-n", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing_to_say() -> None:
    assert SHELLCHECK is not None
    done = subprocess.run([SHELLCHECK, "--severity=style", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_slurm_warns_before_draining_would_take_too_long() -> None:
    text = SCRIPT.read_text()
    # Slurm reads its lines up to the first command.
    head = text[: text.index("set -euo pipefail")]
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", head, re.MULTILINE))
    assert options["ntasks-per-node"] == "1"
    told = re.fullmatch(r"B:TERM@(\d+)", options["signal"])
    drain = re.search(r"--set drain_s=(\d+)", text)
    # A network's file system may take a minute to show a new file to every node.
    assert told is not None and drain is not None and int(drain[1]) + 60 <= int(told[1])
