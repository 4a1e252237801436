"""The generated code of the API is what its definition generates today."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import grpc_tools
import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path("kernelevo_api/evaluator/v1")
NAMES = ("evaluator_pb2.py", "evaluator_pb2.pyi", "evaluator_pb2_grpc.py", "evaluator_pb2_grpc.pyi")


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("generated")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            "-I",
            "kernelevo_api=proto/kernelevo",
            "-I",
            str(Path(grpc_tools.__file__).parent / "_proto"),
            *(f"--{kind}_out={out}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")),
            str(FOLDER / "evaluator.proto"),
        ],
        cwd=ROOT,
        check=True,
        capture_output=True,
        # protoc looks for its mypy plug-ins on PATH.
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
    )
    return out


@pytest.mark.parametrize("name", NAMES)
def test_is_fresh(generated: Path, name: str) -> None:
    committed = (ROOT / "proto" / FOLDER / name).read_text()
    assert committed == (generated / FOLDER / name).read_text(), "stale: run make proto"
