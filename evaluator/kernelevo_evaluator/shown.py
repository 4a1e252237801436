"""What a source shows without being run: its language, and remarks on it."""

from __future__ import annotations

from dataclasses import dataclass

from kernelevo_api.types import Finding, Language  # noqa: TC001 - read by these types
from kernelevo_evaluator.findings import look
from kernelevo_evaluator.languages.recognise import recognise
from kernelevo_evaluator.sources import SourceError, parse


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a source shows."""

    language: Language
    findings: tuple[Finding, ...] = ()


def show(source: str) -> Shown | SourceError:
    """What it shows, or why it cannot be parsed. Takes about 8 s of a core for a MiB."""
    tree = parse(source)
    return tree if isinstance(tree, SourceError) else Shown(language=recognise(tree), findings=look(tree))
