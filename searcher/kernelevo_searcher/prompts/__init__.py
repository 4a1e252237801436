"""The prompts: one Jinja template a file, and their loading.

A user's folder comes first: a file there replaces the one of the same name here, and may include the others. An unknown
variable is an error, not an empty string. Text that comes out of candidates, compilers and models is put between markers
that it cannot forge; the system prompt says that what stands between them is data.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ACTION_TEMPLATES", "PromptError", "PromptLibrary", "fenced", "one_line", "untrusted"]

ACTION_TEMPLATES = ("rewrite.j2", "refine.j2", "fix.j2", "merge.j2", "restart.j2")
"""One for each action that a model carries out; `system.j2` stands before each."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f\u2028\u2029]")
_KEPT_NEWLINE = "\x1e"
"""Stands for a newline inside quoted text while a prompt is put together."""


class PromptError(Exception):
    """A template is missing or broken; the message names the file."""


def fenced(code: str, language: str = "") -> str:
    """`code` as a Markdown block whose fence is longer than any run of backticks inside it."""
    longest = max((len(run) for run in re.findall(r"`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{code.rstrip()}\n{fence}"


def untrusted(text: str, kind: str, limit: int = 4000) -> str:
    """`text` between markers named after its own digest, which it can therefore not hold; the middle is cut at `limit`."""
    text = _CONTROL.sub("?", text.replace("\r\n", "\n").replace("\r", "\n")).strip("\n")
    if len(text) > limit:
        cut = len(text) - limit
        text = f"{text[: limit // 2]}\n[... {cut} characters cut ...]\n{text[-(limit - limit // 2) :]}"
    mark = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]
    return f"[begin {kind} {mark}]\n{text}\n[end {kind} {mark}]"


def one_line(text: str, limit: int = 200) -> str:
    """`text` on one line, without control characters, cut at `limit`."""
    line = " ".join(_CONTROL.sub(" ", text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def number(value: float | None, digits: int = 4) -> str:
    """A measured number with as many digits as mean something; "unknown" where it is absent."""
    if value is None:
        return "unknown"
    if abs(value) >= 10**digits:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


class PromptLibrary:
    """The templates of this package, each replaceable by a file of the same name in `folder`."""

    def __init__(self, folder: Path | None = None) -> None:
        if folder is not None and not folder.is_dir():
            raise PromptError(f"no such folder of prompts: {folder}")
        folders = [Path(__file__).parent] if folder is None else [folder, Path(__file__).parent]
        self._environment = jinja2.Environment(  # noqa: S701 - prompts are plain text; escaping would corrupt the code in them
            loader=jinja2.FileSystemLoader([str(path) for path in folders], encoding="utf-8"),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=False,
        )
        self._environment.filters.update(
            fenced=_kept(fenced), untrusted=_kept(untrusted), one_line=one_line, number=number
        )

    def names(self) -> list[str]:
        """Names of all templates."""
        return self._environment.list_templates(extensions=["j2"])

    def check(self) -> None:
        """Parse every template, so that a broken one is found before anything is paid.

        Raises:
            PromptError: one does not parse.
        """
        for name in self.names():
            try:
                self._environment.get_template(name)
            except jinja2.TemplateSyntaxError as error:
                raise PromptError(f"prompt {error.filename or name}, line {error.lineno}: {error.message}") from error

    def render(self, name: str, **values: object) -> str:
        """One template with its values.

        Raises:
            PromptError: it is missing, does not parse, or uses something that is not there.
        """
        try:
            text = self._environment.get_template(name).render(**values)
        except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
            # A template calls what it likes; jinja passes such errors on as they are.
            raise PromptError(f"prompt {name}: {type(error).__name__}: {error}") from error
        except jinja2.TemplateError as error:
            where = name
            if isinstance(error, jinja2.TemplateSyntaxError):
                where = f"{error.filename or error.name}, line {error.lineno}"
            raise PromptError(f"prompt {where}: {error.message or type(error).__name__}") from error
        text = re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
        # A lone surrogate in a candidate's text would make the whole request impossible to send.
        return text.replace(_KEPT_NEWLINE, "\n").encode("utf-8", "replace").decode("utf-8")


def _kept(filtered: Callable[..., str]) -> Callable[..., str]:
    """A filter whose result keeps its empty lines when those that templates leave behind are taken out."""

    def keep(*arguments: object, **options: object) -> str:
        return filtered(*arguments, **options).replace(_KEPT_NEWLINE, "?").replace("\n", _KEPT_NEWLINE)

    return keep
