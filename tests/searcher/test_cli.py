"""The command's names, exit codes and messages: what needs no evaluator."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.searcher.scripted_evaluator import KERNEL, PROBLEM, ScriptedEvaluator
from typer.testing import CliRunner

import kernelevo
from kernelevo_api.pool import Endpoint, EvaluatorPool
from kernelevo_api.types import Effort, Evaluation, Problem, Ratio, Timing, Verdict
from kernelevo_searcher.cli import app
from kernelevo_searcher.engine import Engine, start_events
from kernelevo_searcher.evaluation_text import describe_evaluation
from kernelevo_searcher.events import RunSettings
from kernelevo_searcher.inputs import read_problem
from kernelevo_searcher.mechanisms import Mechanism, PolicyName
from kernelevo_searcher.settings import SettingsInvalid, load_settings, setting_origins
from kernelevo_searcher.state import replay
from kernelevo_searcher.store import RunStore, read_records
from kernelevo_searcher.wording import plain

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result


def kernelevo_command(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "problem.py").write_text(PROBLEM, encoding="utf-8")
    (tmp_path / "kernel.py").write_text(KERNEL, encoding="utf-8")
    return tmp_path


async def make_run(folder: Path, evaluations: int = 6, speed: float = 4.0) -> None:
    event, texts = start_events(
        version="0",
        problem=Problem(source=PROBLEM, name="p"),
        settings=RunSettings(evaluations=evaluations),
        start=[("kernel.py", KERNEL)],
    )
    with RunStore.create(folder) as store:
        store.append(event, texts=texts)
        await Engine(store, EvaluatorPool([Endpoint(name="one", transport=ScriptedEvaluator(speed=speed))])).run()


@pytest.mark.parametrize("command", ["evaluate", "evolve", "bench", "compare", "best", "apply", "report", "settings"])
def test_every_command_teaches(command: str) -> None:
    result = kernelevo_command(command, "--help")
    assert result.exit_code == 0
    assert command == "settings" or "Example" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("evaluate", "none.py", "kernel.py"), "the problem none.py does not exist"),
        (("evaluate", "problem.py", "none.py"), "the candidate none.py does not exist"),
        (("evaluate", "problem.py", "."), "is a folder"),
        (("evaluate", "problem.py", "kernel.cu"), "not a Python file"),
        (("evaluate", "problem.py", "latin.py"), "not UTF-8"),
        (("evaluate", "problem.py", "empty.py"), "is empty"),
        (("evaluate", "problem.py", "kernel.py", "--effort", "much"), "no such effort"),
        (("evaluate", "problem.py", "kernel.py", "--baseline", "numpy"), "no such baseline"),
        (("evaluate", "problem.py", "kernel.py", "--evaluator", "http://x y"), "address"),
        (("compare", "problem.py", "none.py", "kernel.py"), "candidate A none.py does not exist"),
        (("evolve",), "name a problem"),
        (("evolve", "none.py"), "does not exist"),
        (("evolve", "problem.py", "--resume", "runs/x"), "leave out PROBLEM.py"),
        (("evolve", "--resume", "runs/x"), "there is no run in runs/x"),
        (("evolve", "problem.py", "--model", "m"), "OPENAI_API_KEY is not set"),
        (("evolve", "problem.py", "--model", "m", "--base-url", "nonsense"), "not the URL"),
        (("best", "runs/x"), "there is no run in runs/x"),
    ],
)
def test_bad_input_says_what_to_do(
    files: Path, arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (files / "kernel.cu").write_text("x", encoding="utf-8")
    (files / "latin.py").write_bytes(b"# \xe9\n")
    (files / "empty.py").write_text("\n", encoding="utf-8")
    result = kernelevo_command(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr.replace("\n", " ")
    assert result.stderr.startswith("kernelevo: ")


def test_an_evaluator_that_is_not_there(files: Path) -> None:
    result = kernelevo_command("evaluate", "problem.py", "kernel.py", "--evaluator", f"unix:{files}/none.sock")
    assert result.exit_code == 3
    assert "none.sock" in result.stderr


def test_best_prints_or_writes_a_module_that_stands_alone(files: Path) -> None:
    asyncio.run(make_run(files / "run"))
    shown = kernelevo_command("best", "run")
    assert shown.exit_code == 0
    compile(shown.stdout, "best.py", "exec")
    assert shown.stdout.startswith("# Found by KernelEvo") and "Verified speedup" in shown.stdout
    written = kernelevo_command("best", "run", "-o", "out.py")
    assert written.exit_code == 0
    assert (files / "out.py").read_text(encoding="utf-8") == shown.stdout
    told = json.loads(kernelevo_command("best", "run", "--json").stdout)
    assert told["verified"] and told["speedup"]["low"] > 0
    assert kernelevo_command("best", "run", "-o", "no/such/folder.py").exit_code == 2


def test_a_finished_run_resumed_as_it_is_only_tells_its_result(files: Path) -> None:
    asyncio.run(make_run(files / "run"))
    result = kernelevo_command("evolve", "--resume", "run")
    assert result.exit_code == 0, result.stderr
    last = result.stdout.strip().splitlines()
    assert last[-1].startswith("verified speedup: ") and last[-1].endswith(" over eager")
    assert (files / "run" / "best.py").exists()
    told = json.loads(kernelevo_command("evolve", "--resume", "run", "--json").stdout)
    assert told["best"] and told["evaluated"] == 6 and told["proved"] is True


def test_a_kernel_that_is_not_proved_faster_is_no_success(files: Path) -> None:
    asyncio.run(make_run(files / "run", speed=0.5))
    result = kernelevo_command("evolve", "--resume", "run")
    assert result.exit_code == 1
    last = result.stdout.strip().splitlines()[-1]
    assert last.startswith("no speedup was proved: ") and last.endswith(" over eager")
    assert "verified speedup" not in result.stdout and "no speedup was proved" in result.stderr
    asked = kernelevo_command("evolve", "--resume", "run", "--json")
    told = json.loads(asked.stdout)
    assert asked.exit_code == 1 and told["proved"] is False and told["speedup"]["low"] <= 1.0 and told["best"]
    assert json.loads(kernelevo_command("best", "run", "--json").stdout)["proved"] is False
    assert "# No speedup was proved" in kernelevo_command("best", "run").stdout
    assert "no speedup was proved" in (files / "run" / "report.html").read_text(encoding="utf-8")


def test_a_run_in_use_says_so(files: Path) -> None:
    asyncio.run(make_run(files / "run"))
    with RunStore.open(files / "run"):
        result = kernelevo_command("evolve", "--resume", "run", "--evaluations", "9")
    assert result.exit_code == 2 and "another process" in result.stderr


def test_settings_come_from_flags_environment_file_and_defaults(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (files / "kernelevo.toml").write_text("[searcher]\nseed = 1\npatience = 7\nminutes = 3\n[evaluator]\nx = 1\n")
    monkeypatch.setenv("KERNELEVO_SEED", "2")
    monkeypatch.setenv("KERNELEVO_PATIENCE", "8")
    monkeypatch.setenv("KERNELEVO_EVALUATOR_LISTEN", "not ours")
    loaded = load_settings(seed=3)
    assert (loaded.seed, loaded.patience, loaded.minutes, loaded.budget_tokens) == (3, 8, 3.0, 1_000_000)
    origins = setting_origins(seed=3)
    assert [origins[name] for name in ("seed", "patience", "minutes", "model")] == [
        "flag",
        "environment",
        "file",
        "default",
    ]
    shown = kernelevo_command("settings")
    assert shown.exit_code == 0 and "patience = 8  (environment)" in shown.stdout


def test_policy_and_what_is_left_out_of_it_are_part_of_the_run(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELEVO_WITHOUT", '["tune"]')
    assert load_settings().run_settings().without == (Mechanism.TUNE,)
    made = kernelevo_command(
        *("evolve", "problem.py", "--no-run", "--run", "run", "--policy", "greedy"),
        *("--without", "fix", "--without", "patience"),
    )
    assert made.exit_code == 0, made.stderr
    settings = replay(read_records(files / "run")).settings
    assert settings.policy is PolicyName.GREEDY
    assert settings.without == (Mechanism.FIX, Mechanism.PATIENCE)
    assert kernelevo_command("evolve", "problem.py", "--policy", "best").exit_code == 2


@pytest.mark.parametrize(
    "content", ["[searcher]\nsed = 1\n", "[search]\nseed = 1\n", "seed = 1\n", "[searcher]\nseed = 'x'\n", "["]
)
def test_unknown_keys_and_bad_values_are_errors(files: Path, content: str) -> None:
    (files / "kernelevo.toml").write_text(content)
    with pytest.raises(SettingsInvalid):
        load_settings()


def test_an_unknown_variable_is_an_error(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELEVO_SEEED", "1")
    with pytest.raises(SettingsInvalid, match="KERNELEVO_SEEED"):
        load_settings()


def test_a_verdict_is_described_and_cannot_command_the_terminal() -> None:
    evaluation = Evaluation(
        verdict=Verdict.PASSED, message="\x1b[2Jfine", timing=Timing(speedup=Ratio(value=1.5, low=1.4, high=1.6))
    )
    text = describe_evaluation(evaluation, over="eager")
    assert "\x1b" not in text and "speedup: 1.50x [1.40, 1.60] over eager" in text
    assert plain("a\tb\nc\x07\x9b") == "a\tb\nc\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"


def test_a_problem_is_named_after_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "softmax"
    folder.mkdir()
    (folder / "problem.py").write_text(PROBLEM, encoding="utf-8")
    assert read_problem(folder / "problem.py").name == "softmax"


def test_the_public_names_load_lazily_and_bring_no_torch() -> None:
    program = (
        "import sys, kernelevo\n"
        "assert 'kernelevo_searcher' not in sys.modules and 'grpc' not in sys.modules\n"
        "import kernelevo_searcher.cli, kernelevo_searcher.engine\n"
        "assert not {'torch', 'triton', 'openai', 'fcntl_only'} & set(sys.modules)\n"
        "assert kernelevo.Effort.FULL.value == 'full' and callable(kernelevo.evolve)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=dict(os.environ))
    assert set(kernelevo.__all__) == set(dir(kernelevo))
    assert kernelevo.Effort is Effort
    with pytest.raises(AttributeError):
        kernelevo.nothing  # noqa: B018
