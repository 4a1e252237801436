"""What documents say can be done: commands, options and settings are there, and links lead somewhere."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.main import get_command

from kernelevo_api.types import LimitKind
from kernelevo_evaluator import cli as evaluator_cli
from kernelevo_evaluator.settings import EvaluatorSettings
from kernelevo_searcher import cli as searcher_cli

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
)
COMMANDS = {"kernelevo": get_command(searcher_cli.app), "kernelevo-evaluator": get_command(evaluator_cli.app)}
_BLOCK = re.compile(r"^```(?:console|bash|sh)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(?:\$ )?(kernelevo(?:-evaluator)? [^`]+)`")
_LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)")


def commands(text: str) -> Iterator[list[str]]:
    """The words of every command of ours that a text shows."""
    lines = [line for block in _BLOCK.findall(text) for line in block.splitlines()]
    for line in [*lines, *_INLINE.findall(text.replace("\n", " "))]:
        found = re.match(r"(?:\$ )?(?:[./\w-]*/)?(kernelevo(?:-evaluator)? .*)", line.strip())
        if found:
            words = shlex.split(found[1].split(" && ")[0], comments=True)
            yield [word for word in words if word != "\\"]


def parse(command: Any, words: list[str], named: str) -> None:
    """Fails where there is no such command or option. `command`: one of click's, or of typer's own copy of it."""
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        below = command.commands.get(words[0])
        assert below is not None, f"there is no `{named} {words[0]}`"
        named, command, words = f"{named} {words[0]}", below, words[1:]
    command.make_parser(command.context_class(command, info_name=named)).parse_args(list(words))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_and_options_are_there(path: Path) -> None:
    for name, *words in commands(path.read_text(encoding="utf-8")):
        parse(COMMANDS[name], words, name)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_settings_are_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    ours = "\n".join(line for line in text.splitlines() if "helm " not in line)
    named = re.findall(r"--set (\w+)=", ours)
    named += [one.lower() for one in re.findall(r"KERNELEVO_EVALUATOR_([A-Z_]+[A-Z])", text)]
    assert not [one for one in named if one not in EvaluatorSettings.model_fields]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for target, anchor in _LINK.findall(path.read_text(encoding="utf-8")):
        there = (path.parent / target) if target else path
        assert there.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}, anchor


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_programs_are_python(path: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        compile(block, str(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_every_limit_stands_in_the_table_of_limits_with_its_setting() -> None:
    rows = [line.split("|") for line in (ROOT / "docs/security.md").read_text(encoding="utf-8").splitlines()]
    named = {row[5].strip().strip("`"): row for row in rows if len(row) == 7}
    assert {limit.value for limit in LimitKind} <= set(named)
    settings = {word for row in named.values() for word in re.findall(r"`(\w+_(?:s|bytes)|processes)`", row[2])}
    assert settings <= set(EvaluatorSettings.model_fields) and len(settings) >= 10


def test_what_is_not_there_is_seen() -> None:
    with pytest.raises(AssertionError, match="no `kernelevo evolv`"):
        parse(COMMANDS["kernelevo"], ["evolv", "problem.py"], "kernelevo")
    with pytest.raises(Exception, match="No such option"):
        parse(COMMANDS["kernelevo"], ["evolve", "problem.py", "--no-such-option"], "kernelevo")
    shown = "```\n.venv/bin/kernelevo best runs/… -o b.py  # x\n```\nand `kernelevo-evaluator status ADDRESS`, `kernelevo\nbest`"
    assert list(commands(shown)) == [
        ["kernelevo", "best", "runs/…", "-o", "b.py"],
        ["kernelevo-evaluator", "status", "ADDRESS"],
        ["kernelevo", "best"],
    ]
