"""Models of a run: how they are written down, what is checked before a token is paid, and what a resumed run keeps."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.searcher.scripted_evaluator import KERNEL, PROBLEM
from typer.testing import CliRunner

from kernelevo_api.types import Problem
from kernelevo_searcher.cli import app
from kernelevo_searcher.engine import start_events
from kernelevo_searcher.events import RunSettings
from kernelevo_searcher.inputs import BadInput
from kernelevo_searcher.models import ModelRole, ModelSettings
from kernelevo_searcher.open_models import open_models
from kernelevo_searcher.proposers import Usage
from kernelevo_searcher.runs import changed_settings
from kernelevo_searcher.settings import SettingsInvalid, load_settings
from kernelevo_searcher.store import RunStore, read_records

if TYPE_CHECKING:
    from pathlib import Path

LOCAL = "http://localhost:9/v1"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_model_is_a_name_with_keys_and_the_settings_fill_the_rest() -> None:
    settings = load_settings(
        model=(
            "big/model:1,role=strong,weight=2,reasoning_effort=high,price=1.25/10",
            "small,role=cheap,base_url=http://a/v1",
        ),
        base_url=LOCAL,
        max_reply_tokens=99,
    )
    strong, cheap = settings.models()
    assert strong == ModelSettings(
        name="big/model:1",
        label="big/model:1",
        role=ModelRole.STRONG,
        weight=2.0,
        reasoning_effort="high",
        price="1.25/10",
        base_url=LOCAL,
        max_reply_tokens=99,
    )
    assert (cheap.base_url, cheap.role, cheap.max_reply_tokens) == ("http://a/v1", ModelRole.CHEAP, 99)


def test_models_come_from_file_and_environment_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernelevo.toml").write_text('[searcher]\nmodel = ["a", {name = "b", role = "cheap"}]\n')
    assert [model.name for model in load_settings().models()] == ["a", "b"]
    monkeypatch.setenv("KERNELEVO_MODEL", "c,weight=3")
    assert [(model.name, model.weight) for model in load_settings().models()] == [("c", 3.0)]
    monkeypatch.setenv("KERNELEVO_MODEL", '["d", "e"]')
    assert [model.name for model in load_settings().models()] == ["d", "e"]
    assert [model.name for model in load_settings(model=("f",)).models()] == ["f"]


@pytest.mark.parametrize(
    "specifications",
    [("",), ("a,role=boss",), ("a,rolle=strong",), ("a,weight",), ("a,weight=0",), ("a,price=cheap",), ("a", "a")],
)
def test_a_specification_that_cannot_be_read_says_why(specifications: tuple[str, ...]) -> None:
    with pytest.raises(SettingsInvalid, match="a setting cannot be used: "):
        load_settings(model=specifications)


def test_dollars_need_a_known_price() -> None:
    unknown = ModelSettings(name="nobody-knows", label="x", base_url=LOCAL)
    with pytest.raises(BadInput, match="the price of x is not known"):
        open_models(RunSettings(models=(unknown,), budget_dollars=1.0), {})
    priced = ModelSettings(name="nobody-knows", label="x", base_url=LOCAL, price="1/0.5/10")
    models = open_models(RunSettings(models=(priced,), budget_dollars=1.0), {})
    usage = Usage(prompt_tokens=3_000_000, cached_tokens=1_000_000, completion_tokens=200_000)
    assert models.cost("x", usage) == 2 * 1 + 1 * 0.5 + 0.2 * 10
    assert models.cost("y", usage) is None


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("fix.j2", "{% if %}", "fix.j2, line 1"),
        ("refine.j2", "{{ no_such_thing }}", "no_such_thing"),
        ("parts/budget.j2", "{{ request.no_such_field }}", "no_such_field"),
        ("restart.j2", '{% include "gone.j2" %}', "gone.j2"),
        ("system.j2", "{{ device.name.upper(1) }}", "system.j2"),
    ],
)
def test_a_broken_template_is_found_before_anything_is_paid(tmp_path: Path, name: str, text: str, said: str) -> None:
    path = tmp_path / "prompts" / name
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    (tmp_path / "problem.py").write_text(PROBLEM, encoding="utf-8")
    command = ["evolve", "problem.py", "--model", "m", "--base-url", LOCAL, "--prompts", "prompts", "--run", "r"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert not (tmp_path / "r").exists()


def test_the_built_in_templates_pass_their_rehearsal() -> None:
    models = open_models(RunSettings(models=(ModelSettings(name="m", label="m", base_url=LOCAL),)), {})
    assert list(models.proposers) == ["m"]


def test_a_resumed_run_keeps_its_models_and_may_take_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ModelSettings(name="m", label="m", base_url=LOCAL, api_key_env="M_KEY", reasoning_effort="high", weight=2.0)
    (tmp_path / "prompts").mkdir()
    before = RunSettings(models=(model,), prompts=str(tmp_path / "prompts"), budget_tokens=1000, hints="h")
    event, texts = start_events(
        version="0", problem=Problem(source=PROBLEM, name="p"), settings=before, start=[("k", KERNEL)]
    )
    with RunStore.create(tmp_path / "run") as store:
        store.append(event, texts=texts)
    stored = read_records(tmp_path / "run")[0].event
    assert stored == event
    # The environment says otherwise, and does not count: a run is resumed as it was.
    monkeypatch.setenv("KERNELEVO_MODEL", "another")
    monkeypatch.setenv("KERNELEVO_MAX_REPLY_TOKENS", "5")
    assert changed_settings(before, {}) == before
    more = changed_settings(before, {"budget_tokens": 5000})
    assert (more.budget_tokens, more.models) == (5000, (model,))
    moved = changed_settings(before, {"endpoint": {"base_url": "http://b/v1"}})
    assert moved.models[0].base_url == "http://b/v1" and moved.models[0].weight == 2.0
    result = CliRunner().invoke(app, ["evolve", "--resume", "run"])
    assert result.exit_code == 2 and "M_KEY is not set" in result.stderr
    monkeypatch.setenv("M_KEY", "sk-secret")
    result = CliRunner().invoke(app, ["evolve", "--resume", "run", "--base-url", "nonsense"])
    assert result.exit_code == 2 and "not the URL" in result.stderr
    result = CliRunner().invoke(app, ["evolve", "--resume", "run", "--model", "o,api_key_env=O_KEY"])
    assert result.exit_code == 2 and "O_KEY is not set" in result.stderr


def test_hints_may_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "problem.py").write_text(PROBLEM, encoding="utf-8")
    missing = CliRunner().invoke(app, ["evolve", "problem.py", "--hint", "none.txt"])
    assert missing.exit_code == 2 and "the hint none.txt does not exist" in missing.stderr
    from kernelevo_searcher.cli.evolving import advice

    (tmp_path / "a.txt").write_text("tile it\n", encoding="utf-8")
    assert advice("be brief", [tmp_path / "a.txt"]) == "be brief\n\ntile it"
    assert advice(None, None) is None


def test_the_log_holds_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("M_KEY", "sk-very-secret")
    (tmp_path / "problem.py").write_text(PROBLEM, encoding="utf-8")
    command = ["evolve", "problem.py", "--model", f"m,api_key_env=M_KEY,base_url={LOCAL}", "--run", "r", "--json"]
    result = CliRunner().invoke(app, [*command, "--evaluator", f"unix:{tmp_path}/none.sock"])
    assert result.exit_code == 3
    assert json.dumps([str(record.event) for record in read_records(tmp_path / "r")]).count("sk-very-secret") == 0
    assert b"sk-very-secret" not in b"".join(path.read_bytes() for path in (tmp_path / "r").iterdir() if path.is_file())
