"""The command `kernelevo-evaluator`, as a person and as a program meet it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from kernelevo_evaluator.doctor import Check, sound

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux", reason="the evaluator runs on Linux"),
]

COMMAND = [sys.executable, "-m", "kernelevo_evaluator"]


def run(folder: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=110,
        env=os.environ | {"XDG_STATE_HOME": str(folder / "xdg"), **environment},
    )


def test_help_teaches(folder: Path) -> None:
    done = run(folder, "--help")
    assert done.returncode == 0
    for name in ("serve", "doctor", "status", "token", "settings"):
        assert name in done.stdout


def test_settings_say_where_they_come_from(folder: Path) -> None:
    (folder / "kernelevo.toml").write_text("[evaluator]\ngrace_s = 7\n")
    plain = run(folder, "settings", KERNELEVO_EVALUATOR_DRAIN_S="8")
    assert plain.returncode == 0, plain.stderr
    assert "grace_s = 7.0  # kernelevo.toml" in plain.stdout
    assert "drain_s = 8.0  # KERNELEVO_EVALUATOR_DRAIN_S" in plain.stdout
    rows = json.loads(run(folder, "settings", "--json").stdout)
    assert rows["queue_capacity"] == {"value": 256, "origin": "default"}
    shown = run(folder, "serve", "--set", "queue_capacity=99", "--show-settings")
    assert "queue_capacity = 99  # flag" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["serve", "--listen", "nonsense"], 2, "is no address"),
        (["serve", "--set", "nonsense=1"], 2, "write NAME=VALUE"),
        (["serve", "--sandbox", "chroot"], 2, "sandbox (flag)"),
        (["serve", "--config", "missing.toml"], 2, "no configuration file"),
        (["status", "nonsense"], 2, "is no address"),
        (["status", "unix:/nowhere/e.sock"], 1, "kernelevo-evaluator serve"),
        (["serve", "--sandbox", "none", "--state-dir", "s", "--listen", "127.0.0.1:0"], 1, "--insecure-loopback"),
        (["serve", "--sandbox", "none", "--state-dir", "/proc/nowhere"], 1, "state folder"),
    ],
)
def test_what_cannot_be_done_says_what_to_do(folder: Path, arguments: list[str], code: int, words: str) -> None:
    done = run(folder, *arguments)
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr


def test_doctor(folder: Path) -> None:
    done = run(folder, "doctor", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == (0 if found["sound"] else 1)
    by_name = {check["name"]: check for check in found["checks"]}
    assert {"system", "cores", "memory", "torch", "g++", "state folder"} <= set(by_name)
    assert by_name["torch"]["holds"]
    # Looking changes nothing.
    assert not (folder / "xdg").exists()


def test_what_is_essential_decides() -> None:
    def check(**fields: Any) -> Check:
        return Check(**{"group": "g", "name": "n", "holds": False, "evidence": "", **fields})

    assert sound([check(essential=False), check(holds=True)])
    assert not sound([check()])


def test_serves_from_start_to_drain(folder: Path) -> None:
    read, write = os.pipe()
    process = subprocess.Popen(
        [*COMMAND, "serve", "--state-dir", folder / "state", "--ready-fd", str(write)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=[write],
    )
    os.close(write)
    try:
        with os.fdopen(read) as ready:
            address = ready.readline().strip()
        assert address == f"unix:{folder / 'state' / 'evaluator.sock'}"
        assert process.stdout is not None
        assert process.stdout.readline().endswith(f"listens on {address}\n")
        shown = run(folder, "status", address)
        assert shown.returncode == 0
        assert "queued: 0 of 256" in shown.stdout
        assert json.loads(run(folder, "status", address, "--json").stdout)["api_version"] == "v1"
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert not (folder / "state" / "evaluator.sock").exists()
