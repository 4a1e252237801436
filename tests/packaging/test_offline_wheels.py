"""What the folder of wheels for a host without a network is made of."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def program() -> Any:
    spec = importlib.util.spec_from_file_location("offline_wheels", ROOT / "scripts" / "offline_wheels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_the_host_has_is_left_out(program: Any) -> None:
    names = {program.name_of(one) for one in program.requirements(["evaluator", "searcher"], {"torch", "numpy"})}
    assert {"grpcio", "msgspec", "openai", "sqlalchemy"} <= names
    assert not names & {"torch", "numpy"}
    assert "torch" in {program.name_of(one) for one in program.requirements(["evaluator"], set())}
    with pytest.raises(KeyError):
        program.requirements(["no-such-extra"], set())


def test_pins_are_the_project_s(program: Any) -> None:
    pins = program.constraints({"torch"})
    assert pins
    assert all("#" not in pin and program.name_of(pin) != "torch" for pin in pins)


def test_the_installer_takes_nothing_from_elsewhere(program: Any, tmp_path: Path) -> None:
    """Run with a stand-in for the other host's Python, which tells what it was asked."""
    (tmp_path / "install.sh").write_text(program.INSTALL)
    (tmp_path / "one-1.0-py3-none-any.whl").touch()
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    said = subprocess.run(["sh", tmp_path / "install.sh", python], capture_output=True, text=True, check=True).stdout
    assert "--no-index" in said
    assert str(tmp_path / "one-1.0-py3-none-any.whl") in said
