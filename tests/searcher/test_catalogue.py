"""Problems found in files, folders, checkouts of KernelBench and data sets; and many of them checked."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.searcher.scripted_evaluator import PROBLEM, ScriptedEvaluator
from typer.testing import CliRunner

from kernelevo_api.errors import EvaluatorFault, FieldViolation, ProblemRefused
from kernelevo_api.pool import Endpoint, EvaluatorPool, NoEvaluator
from kernelevo_api.types import Capabilities, Limits, Problem, ProblemReport
from kernelevo_searcher.catalogue import find_problem, find_problems, sample
from kernelevo_searcher.checking import Record, State, check, count
from kernelevo_searcher.cli import app
from kernelevo_searcher.inputs import BadInput

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder in the form of a checkout of KernelBench."""
    for level, names in ((1, ["1_First", "2_Second", "10_Tenth"]), (2, ["1_Other"])):
        folder = tmp_path / "bench" / "KernelBench" / f"level{level}"
        folder.mkdir(parents=True)
        for name in names:
            (folder / f"{name}.py").write_text(f"# {level} {name}\n{PROBLEM}", encoding="utf-8")
        (folder / "notes.txt").write_text("no problem", encoding="utf-8")
    return tmp_path / "bench"


def test_a_checkout_and_its_folders(checkout: Path) -> None:
    names = ["level1/1_First", "level1/2_Second", "level1/10_Tenth", "level2/1_Other"]
    assert [entry.name for entry in find_problems(checkout)] == names
    assert [entry.name for entry in find_problems(checkout / "KernelBench", [1], [2, 10])] == names[1:3]
    assert [entry.name for entry in find_problems(checkout / "KernelBench" / "level2")] == names[3:]
    found = find_problem(checkout, 1, 10)
    assert found.name == "level1/10_Tenth"
    assert found.source == (checkout / "KernelBench/level1/10_Tenth.py").read_text(encoding="utf-8")


def test_files_and_folders_of_one_s_own(tmp_path: Path) -> None:
    for name in ("relu", "deep/gelu"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "problem.py").write_text(PROBLEM, encoding="utf-8")
    assert [entry.name for entry in find_problems(tmp_path)] == ["deep/gelu", "relu"]
    assert find_problem(tmp_path / "relu").name == find_problem(tmp_path / "relu" / "problem.py").name == "relu"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "a collection of 4 problems: name one with --level and --problem-id"),
        ((1,), "3 problems of level 1: name one with --problem-id"),
        ((None, 1), "2 problems with number 1: name one with --level"),
        ((3, 1), "its levels are 1, 2"),
        ((1, 3), "its numbers go from 1 to 10"),
    ],
)
def test_a_choice_that_is_none_says_what_there_is(checkout: Path, arguments: tuple[int | None, ...], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        find_problem(checkout, *arguments)


def test_the_commands_take_a_problem_out_of_a_checkout(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkout)
    (checkout / "kernel.py").write_text("class ModelNew: pass\n", encoding="utf-8")
    nobody = ["--evaluator", f"unix:{checkout}/none.sock"]
    for command in (["evaluate", ".", "kernel.py"], ["compare", ".", "kernel.py", "kernel.py"]):
        chosen = CliRunner().invoke(app, [*command, "--level", "1", "--problem-id", "2", *nobody])
        assert chosen.exit_code == 3 and "none.sock" in chosen.stderr
        assert CliRunner().invoke(app, [*command, "--level", "1"]).exit_code == 2
    assert "--problem-id" in CliRunner().invoke(app, ["evolve", ".", "--level", "1"]).stderr
    wrong = CliRunner().invoke(app, ["evaluate", "kernel.py", "kernel.py", "--level", "1"])
    assert wrong.exit_code == 2 and "is no folder" in wrong.stderr


def test_a_list_names_files_and_folders_from_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        (tmp_path / "mine" / name).mkdir(parents=True)
        (tmp_path / "mine" / name / "problem.py").write_text("# a problem")
    (tmp_path / "lists").mkdir()
    chosen = tmp_path / "lists" / "some.txt"
    chosen.write_text("# Those that matter.\n\n../mine/two  # first\n../mine/one/problem.py\n")
    monkeypatch.chdir(tmp_path.parent)
    assert [entry.name for entry in find_problems(chosen)] == ["two", "one"]
    for line, said in (("../mine/three", "not there"), ("some.txt", "is a list"), ("# nothing", "names no problem")):
        chosen.write_text(line)
        with pytest.raises(BadInput, match=said):
            find_problems(chosen)


def test_a_sample_is_even_and_can_be_drawn_again(checkout: Path) -> None:
    entries = find_problems(checkout)
    two = sample(entries, 2, seed=3)
    assert [entry.level for entry in two] == [1, 2] and two == sample(entries, 2, seed=3)
    assert sample(entries, 9, seed=3) == entries


def test_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets", reason="needs the extra huggingface")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "kernels"
    (folder / "data").mkdir(parents=True)
    for level, number in ((1, 7), (2, 3)):
        rows = {"code": [PROBLEM], "level": [level], "problem_id": [number], "name": [f"{number}_Softmax"]}
        datasets.Dataset.from_dict(rows).to_parquet(folder / "data" / f"level_{level}-00000-of-00001.parquet")
    assert [entry.name for entry in find_problems(f"hf:{folder}")] == ["level1/7_Softmax", "level2/3_Softmax"]
    assert find_problem(f"hf:{folder}", 2, 3) == Problem(source=PROBLEM, name="level2/3_Softmax")
    with pytest.raises(BadInput, match="cannot be had"):
        find_problems(f"hf:{folder}-none")


# Many problems checked.


class Judging(ScriptedEvaluator):
    """Refuses what its source says it should."""

    async def register_problem(self, problem: Problem, **options: Any) -> ProblemReport:
        if "First" in problem.source:
            raise ProblemRefused("no", violations=[FieldViolation("problem.source", "constant_output: output 0")])
        if "Second" in problem.source:
            raise ProblemRefused("no", violations=[FieldViolation("problem.source", "timeout: it took: too long")])
        if "Other" in problem.source:
            raise EvaluatorFault("the referee failed")
        return await super().register_problem(problem, **options)


async def test_each_is_checked_once_and_a_record_goes_on(checkout: Path, tmp_path: Path) -> None:
    entries, path = find_problems(checkout), tmp_path / "record.jsonl"
    judge = Judging()
    pool = EvaluatorPool([Endpoint(name="one", transport=judge)])
    await pool.connect()
    told: list[str] = []
    results = await check(entries, pool, record=Record(path), tell=lambda one: told.append(one.name))
    assert sorted(told) == sorted(entry.name for entry in entries)
    states = {one.name: one.state for one in results}
    assert states == {
        "level1/1_First": State.REFUSED,
        "level1/2_Second": State.FAILED,
        "level1/10_Tenth": State.TAKEN,
        "level2/1_Other": State.NOT_CHECKED,
    }
    counted = count(results)
    assert counted["problems"] == 4 and counted["taken"] == 1
    assert counted["why"] == {"constant_output": 1, "timeout": 1}
    # What was learnt is not asked again, and a line that was cut off does no harm.
    path.write_text(path.read_text(encoding="utf-8") + '{"name": "cut', encoding="utf-8")
    before = judge.registrations
    again = await check(entries, pool, record=Record(path))
    assert judge.registrations == before and count(again) == counted
    assert await check(entries[:1], pool, record=Record(path)) == [
        one for one in results if one.name == entries[0].name
    ]
    (tmp_path / "other.txt").write_text("no record\nat all\n", encoding="utf-8")
    with pytest.raises(BadInput, match="no record of a check"):
        Record(tmp_path / "other.txt")


async def test_a_record_counts_for_the_limits_that_it_was_made_under(checkout: Path, tmp_path: Path) -> None:
    class Limited(ScriptedEvaluator):
        memory = 1 << 32

        async def get_capabilities(self) -> Capabilities:
            limits = Limits(memory_bytes=self.memory, check_time=timedelta(seconds=7.5), run_time=timedelta(seconds=60))
            return replace(await super().get_capabilities(), default_limits=limits)

    entries, path, judge = find_problems(checkout), tmp_path / "record.jsonl", Limited()
    registrations = []
    for memory in (1 << 32, 1 << 32, 1 << 33):
        judge.memory = memory
        pool = EvaluatorPool([Endpoint(name="one", transport=judge)])
        await pool.connect()
        results = await check(entries, pool, record=Record(path))
        registrations.append(judge.registrations)
        assert {one.limits for one in results} == {f"check_time=7.5, run_time=60, memory_bytes={memory}"}
    assert registrations == [len(entries), len(entries), 2 * len(entries)]


async def test_without_an_evaluator_the_check_ends(checkout: Path) -> None:
    judge = ScriptedEvaluator()
    pool = EvaluatorPool([Endpoint(name="one", transport=judge)])
    await pool.connect()
    judge.down = True
    with pytest.raises(NoEvaluator, match="were not checked"):
        await check(find_problems(checkout), pool)


@pytest.mark.skipif("KERNELBENCH_DIR" not in os.environ, reason="KERNELBENCH_DIR names no checkout of KernelBench")
def test_every_file_of_kernelbench_is_found_and_read() -> None:
    entries = find_problems(os.environ["KERNELBENCH_DIR"])
    assert {entry.level for entry in entries} >= {1, 2, 3}
    assert all(entry.number is not None and "class Model" in entry.read().source for entry in entries)
    assert len({(entry.level, entry.number) for entry in entries}) == len(entries)


def test_check_says_what_it_found_as_json(checkout: Path) -> None:
    """Through the command, without an evaluator: nothing is found, and that is what it says."""
    result = CliRunner().invoke(
        app, ["problem", "check", str(checkout), "--json", "--evaluator", f"unix:{checkout}/none.sock"]
    )
    assert result.exit_code == 3
    assert json.loads(result.stdout.splitlines()[-1])["counts"]["problems"] == 0
