"""The systemd unit: systemd's own check of it, and times that fit together."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from kernelevo_evaluator.lanes.lane import longest_seconds
from kernelevo_evaluator.settings import load_settings

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
UNIT = FOLDER / "kernelevo-evaluator.service"
NEWER = "Unknown key"
"""How a systemd older than 254 tells that it does not know `DelegateSubgroup`, which the unit allows for."""


def service() -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return dict(parser["Service"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    program = tmp_path / "kernelevo-evaluator"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy.write_text(UNIT.read_text().replace("/opt/kernelevo/bin/kernelevo-evaluator", str(program)))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert done.returncode == 0, done.stderr
    assert all(NEWER in line and "'DelegateSubgroup'" in line for line in said), done.stderr


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="systemd-sysusers is not installed")
def test_systemd_would_make_the_user() -> None:
    done = subprocess.run(["systemd-sysusers", "--dry-run", FOLDER / "sysusers.conf"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_stopping_leaves_an_evaluation_the_time_it_may_take() -> None:
    written = tomllib.loads((FOLDER / "evaluator.toml").read_text())["evaluator"]
    settings = load_settings({}, FOLDER / "evaluator.toml").settings
    assert settings.drain_s == written["drain_s"]
    limits = settings.executor_settings().default_limits
    assert settings.build_time_s + longest_seconds(limits) + settings.profile_time_s < settings.drain_s
    assert settings.drain_s < float(service()["TimeoutStopSec"])


def test_the_unit_stops_reloads_and_survives_as_it_must() -> None:
    found = service()
    assert found["KillMode"] == "mixed", "SIGTERM is for the server, which drains; not for what it runs"
    assert found["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert found["OOMPolicy"] == "continue", "a candidate out of memory does not end the service"
    assert {"memory", "pids", "cpuset"} <= set(found["Delegate"].split())
    assert found["User"] != "root" and found["NoNewPrivileges"] == "yes"
    # Each of these mounts over a part of /proc or forbids namespaces: bubblewrap could isolate nothing.
    assert not {
        "ProtectKernelTunables",
        "ProtectKernelLogs",
        "ProtectHostname",
        "ProtectProc",
        "RestrictNamespaces",
    } & set(found)
