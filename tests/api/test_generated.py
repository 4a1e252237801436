"""The committed code is what the generators write from the committed contract, and the contract keeps its promises."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROTO = ROOT / "proto"
SCRIPTS = Path(sys.executable).parent
BASELINE = PROTO / "baseline.binpb"
CONTRACT = "kernelevo_api/evaluator/v1/evaluator.proto"


def test_generated_code_is_fresh(tmp_path: Path) -> None:
    well_known = resources.files("grpc_tools") / "_proto"
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    done = subprocess.run(
        [
            sys.executable,
            *("-m", "grpc_tools.protoc", f"-Ikernelevo_api={PROTO / 'kernelevo'}", f"-I{well_known}"),
            *outputs,
            CONTRACT,
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": f"{SCRIPTS}{os.pathsep}{os.environ.get('PATH', '')}"},
    )
    assert done.returncode == 0, done.stderr
    written = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    assert len(written) == 4
    for path in written:
        assert (PROTO / path).read_bytes() == (tmp_path / path).read_bytes(), f"{path} is stale: run `make proto`"


def _buf(*arguments: str) -> subprocess.CompletedProcess[str]:
    buf = SCRIPTS / "buf"
    if not buf.exists():
        pytest.skip("buf is not installed")
    return subprocess.run([buf, *arguments], cwd=ROOT, capture_output=True, text=True)


def test_the_contract_is_well_formed() -> None:
    done = _buf("lint")
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_that_was_promised_is_broken() -> None:
    """A deliberate break replaces the baseline, which reviews then see: `buf build -o proto/baseline.binpb`."""
    done = _buf("breaking", "--against", str(BASELINE))
    assert done.returncode == 0, done.stdout + done.stderr
