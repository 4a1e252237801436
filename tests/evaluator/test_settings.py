"""Settings: precedence, provenance, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from kernelevo_api.types import Limits
from kernelevo_evaluator.settings import EvaluatorSettings, SettingsInvalid, load_settings, parse_core_sets

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))


def test_flag_over_environment_over_file_over_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "kernelevo.toml").write_text(
        "[evaluator]\nqueue_capacity = 100\ngrace_s = 1\ndrain_s = 2\n[searcher]\nanything = 1\n"
    )
    monkeypatch.setenv("KERNELEVO_EVALUATOR_GRACE_S", "3")
    monkeypatch.setenv("KERNELEVO_EVALUATOR_DRAIN_S", "4")
    loaded = load_settings({"drain_s": 5, "listen": None})
    assert (loaded.settings.queue_capacity, loaded.settings.grace_s, loaded.settings.drain_s) == (100, 3, 5)
    assert loaded.origin["queue_capacity"] == "kernelevo.toml"
    assert loaded.origin["grace_s"] == "KERNELEVO_EVALUATOR_GRACE_S"
    assert loaded.origin["drain_s"] == "flag"
    assert loaded.origin["listen"] == "default"
    assert set(loaded.origin) == set(EvaluatorSettings.model_fields)


def test_defaults() -> None:
    settings = load_settings({}).settings
    assert settings.sandbox == "bubblewrap"
    assert settings.address.startswith("unix:/")
    executor = settings.executor_settings()
    for limits in (executor.default_limits, executor.maximum_limits):
        assert all(getattr(limits, field.name) is not None for field in dataclasses.fields(Limits))
    assert executor.lane_cpus is None


def test_every_setting_is_explained() -> None:
    assert [name for name, field in EvaluatorSettings.model_fields.items() if not field.description] == []


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"listen": "nonsense"}, "is no address"),
        ({"listen": "unix:/" + "x" * 120}, "longer than the 107 bytes"),
        ({"sandbox": "chroot"}, "sandbox (flag)"),
        ({"queue_capacity": 0}, "queue_capacity (flag)"),
        ({"grace_s": "soon"}, "grace_s (flag)"),
        ({"build_time_s": 700}, "build_time_s (700.0) is above build_time_maximum_s (600.0)"),
        ({"tls_certificate": "a"}, "go together"),
        ({"queue_capacity": 10, "queue_capacity_per_client": 11}, "above queue_capacity"),
        ({"lane_cpus": "0-3;3-5"}, "share cores"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_what_cannot_be_used_is_refused(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        load_settings(flags)
    assert words in str(caught.value)


def test_unknown_keys_name_the_known_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNELEVO_EVALUATOR_GRACE", "3")
    with pytest.raises(SettingsInvalid, match="unknown setting grace in the environment; the settings are listen"):
        load_settings({})
    monkeypatch.delenv("KERNELEVO_EVALUATOR_GRACE")
    path = tmp_path / "other.toml"
    for text, words in (
        ("[evaluator]\ngrac_s = 1", "unknown setting grac_s"),
        ("[evaluator\n", "is not TOML"),
        ("evaluator = 1", "is not a table"),
    ):
        path.write_text(text)
        with pytest.raises(SettingsInvalid, match=words):
            load_settings({}, path)
    with pytest.raises(SettingsInvalid, match="no configuration file"):
        load_settings({}, tmp_path / "nothing.toml")


def test_core_sets() -> None:
    assert parse_core_sets("0-2,5;3") == (frozenset({0, 1, 2, 5}), frozenset({3}))
    assert parse_core_sets("") is None
    for text in ("a", "1-", "1;;2", "0;0"):
        with pytest.raises(ValueError, match=r"lanes|no list"):
            parse_core_sets(text)


def test_the_database_password_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELEVO_EVALUATOR_DATABASE_URL", "postgresql://user:hidden@host/name")
    settings = load_settings({}).settings
    assert settings.database_url is not None
    assert "hidden" in settings.database_url.get_secret_value()
    assert "hidden" not in str(settings) + repr(settings) + settings.model_dump_json()
