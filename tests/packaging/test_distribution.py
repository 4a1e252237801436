"""What is in the wheel, and what importing its parts brings in."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"kernelevo_api", "kernelevo_sandbox", "kernelevo_evaluator", "kernelevo_searcher", "kernelevo"}


def requirement_names(lines: list[str]) -> set[str]:
    """Normalised names of requirements."""
    names = set()
    for line in lines:
        name = line.split(";")[0].split("#")[0].split("[")[0]
        for sign in "<>=!~ ":
            name = name.split(sign)[0]
        if name:
            names.add(name.strip().lower().replace("_", "-").replace(".", "-"))
    return names


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (path,) = out.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: list[str]) -> None:
    assert {name.split("/")[0] for name in wheel if ".dist-info/" not in name} == PACKAGES
    for package in PACKAGES:
        assert f"{package}/py.typed" in wheel


def test_every_dependency_is_pinned() -> None:
    """The demo, the tests and CI install nothing whose version is not written down."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    wanted += [line for name in ("searcher", "evaluator", "otel", "prices", "triton") for line in extras[name]]
    pinned = requirement_names((ROOT / "constraints.txt").read_text().splitlines())
    assert requirement_names(wanted) <= pinned


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("kernelevo_api.client", ("torch", "openai", "sqlalchemy", "pydantic", "opentelemetry")),
        ("kernelevo_sandbox", ("torch", "grpc", "openai")),
        ("kernelevo", ("torch", "openai", "kernelevo_evaluator")),
        ("kernelevo_searcher.cli", ("torch", "triton", "kernelevo_evaluator", "kernelevo_sandbox")),
        ("kernelevo_evaluator.cli", ("torch", "triton", "openai", "kernelevo_searcher", "opentelemetry")),
        ("kernelevo_evaluator.server", ("torch", "openai", "opentelemetry")),
    ],
)
def test_importing_a_part_brings_no_more_than_it_needs(module: str, unwanted: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*[name for name in {unwanted!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
