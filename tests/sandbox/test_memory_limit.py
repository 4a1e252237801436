"""The memory that a container or a service is given, on either version of control groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kernelevo_evaluator import settings
from kernelevo_sandbox import cgroups

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30


def lay_out(monkeypatch: pytest.MonkeyPatch, mount: Path, kind: str, root: str, own: str) -> None:
    options = {"rw"} if kind == "cgroup2" else {"rw", "memory"}
    monkeypatch.setattr(cgroups, "hierarchies", lambda: iter([(kind, mount, root, options)]))
    monkeypatch.setattr(cgroups, "paths_of", lambda: {"" if kind == "cgroup2" else "memory": own})


@pytest.mark.parametrize(("kind", "name"), [("cgroup2", "memory.max"), ("cgroup", "memory.limit_in_bytes")])
def test_it_is_the_least_of_the_own_group_and_those_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    inner = tmp_path / "slice" / "service"
    inner.mkdir(parents=True)
    lay_out(monkeypatch, tmp_path, kind, "/", "/slice/service")
    assert cgroups.memory_limit_bytes() is None
    (inner / name).write_text("max\n")
    (tmp_path / "slice" / name).write_text(f"{6 * GIB}\n")
    assert cgroups.memory_limit_bytes() == 6 * GIB
    (inner / name).write_text(f"{4 * GIB}\n")
    assert cgroups.memory_limit_bytes() == 4 * GIB


@pytest.mark.parametrize("own", ["/", "/pod/container", "/pod/container/kernelevo-host", "/../elsewhere"])
def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str) -> None:
    (tmp_path / "kernelevo-host").mkdir()
    (tmp_path / "memory.max").write_text(f"{2 * GIB}\n")
    lay_out(monkeypatch, tmp_path, "cgroup2", "/" if own == "/" else "/pod/container", own)
    assert cgroups.memory_limit_bytes() == 2 * GIB


def test_without_control_groups_there_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> dict[str, str]:
        raise FileNotFoundError("/proc/self/cgroup")

    monkeypatch.setattr(cgroups, "paths_of", missing)
    assert cgroups.memory_limit_bytes() is None


def test_limits_of_requests_are_worked_out_from_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    physical = settings.host_memory_bytes()
    monkeypatch.setattr(settings, "memory_limit_bytes", lambda: 2 * GIB)
    assert settings.host_memory_bytes() == 2 * GIB < physical
    found = settings.EvaluatorSettings()
    assert found.memory_bytes == found.memory_maximum_bytes == 2 * GIB * 3 // 4
    monkeypatch.setattr(settings, "memory_limit_bytes", lambda: None)
    assert settings.host_memory_bytes() >= physical
