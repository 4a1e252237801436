"""The compose file: Compose's own reading of it, and what must hold in it whoever reads it."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from kernelevo_evaluator.lanes.lane import longest_seconds
from kernelevo_evaluator.settings import load_settings

FOLDER = Path(__file__).resolve().parents[2] / "deploy"
COMPOSE = FOLDER / "compose.yaml"
CONFIGURATION = FOLDER / "compose" / "evaluator.toml"


def written() -> dict[str, Any]:
    return yaml.safe_load(COMPOSE.read_text())


def service() -> dict[str, Any]:
    (found,) = written()["services"].values()
    return found


def _compose() -> list[str] | None:
    if (
        shutil.which("docker")
        and subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=60).returncode == 0
    ):
        return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else None


def test_compose_accepts_it() -> None:
    command = _compose()
    if command is None:
        pytest.skip("neither `docker compose` nor docker-compose is installed")
    done = subprocess.run([*command, "-f", COMPOSE, "config"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert set(yaml.safe_load(done.stdout)["services"]) == set(written()["services"])


def test_stopping_leaves_an_evaluation_the_time_it_may_take() -> None:
    settings = load_settings({}, CONFIGURATION).settings
    limits = settings.executor_settings().default_limits
    assert settings.build_time_s + longest_seconds(limits) + settings.profile_time_s < settings.drain_s
    minutes = re.fullmatch(r"(\d+)m", service()["stop_grace_period"])
    assert minutes is not None and settings.drain_s < 60 * int(minutes[1])


def test_ports_and_files_are_those_of_the_configuration() -> None:
    settings = tomllib.loads(CONFIGURATION.read_text())["evaluator"]
    inside = {str(port).rpartition(":")[2] for port in service()["ports"]}
    assert inside == {settings["listen"].rpartition(":")[2], settings["metrics"].rpartition(":")[2]}
    assert settings["health"].startswith("127.0.0.1:"), "plain text, for the health check alone"
    mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in service()["volumes"]}
    assert settings["state_dir"] in mounted
    folder = FOLDER / mounted["/etc/kernelevo"]
    config = service()["command"][service()["command"].index("--config") + 1]
    assert (folder / Path(config).name) == CONFIGURATION.parent / CONFIGURATION.name
    for name in ("tls_certificate", "tls_key", "token_file"):
        assert Path(settings[name]).parent == Path("/etc/kernelevo")


def test_the_health_check_is_a_program_that_asks_the_right_port() -> None:
    *_, program = service()["healthcheck"]["test"]
    ast.parse(program)
    assert tomllib.loads(CONFIGURATION.read_text())["evaluator"]["health"] in program


def test_the_container_has_no_more_than_it_needs() -> None:
    found = service()
    assert found["cap_drop"] == ["ALL"] and "cap_add" not in found and "privileged" not in found
    assert "no-new-privileges:true" in found["security_opt"] and found["read_only"] is True
    assert not any("docker.sock" in volume for volume in found["volumes"])
    (network,) = found["networks"]
    masquerade = "com.docker.network.bridge.enable_ip_masquerade"
    assert written()["networks"][network]["driver_opts"][masquerade] == "false", "no way out of the host"


def test_the_image_is_built_from_what_the_package_needs() -> None:
    build = service()["build"]
    dockerfile = (COMPOSE.parent / build["context"]).resolve() / build["dockerfile"]
    ignored = dockerfile.with_name(f"{dockerfile.name}.dockerignore").read_text().splitlines()
    kept = {line[1:] for line in ignored if line.startswith("!")}
    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())
    packages = {Path(one).parts[0] for one in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]}
    assert {*packages, "pyproject.toml", "LICENSE", project["project"]["readme"]} <= kept
    assert all((FOLDER.parent / one).exists() for one in kept)
