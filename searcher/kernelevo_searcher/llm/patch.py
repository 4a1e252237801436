"""SEARCH/REPLACE edits: finding them in a reply and applying them to a source, tolerantly but never by guessing.

An edit is looked for in three ways, strictest first: as it stands, with white space forgiven, and by likeness. The first
way that finds anything decides; finding more than one place is `AMBIGUOUS`, not a choice. Edits apply in order, and a
patch applies whole or not at all. This module knows nothing of models, prompts or evaluations.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from rapidfuzz import fuzz

__all__ = ["Edit", "MatchKind", "PatchOutcome", "PatchResult", "PatchSettings", "apply_edits", "parse_edits"]


class PatchOutcome(enum.Enum):
    """What became of a patch."""

    APPLIED = "applied"
    NO_OP = "no_op"
    """Every edit was found, and the source is what it was."""
    NO_EDITS = "no_edits"
    MALFORMED = "malformed"
    """A marker without its partner, or an edit with nothing to search for."""
    NOT_FOUND = "not_found"
    AMBIGUOUS = "ambiguous"
    """The searched text stands in several places, or two places are about equally like it."""


class MatchKind(enum.Enum):
    """How the place of an edit was found."""

    EXACT = "exact"
    WHITESPACE = "whitespace"
    SIMILAR = "similar"


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace `search` by `replace`; both without a final newline."""

    search: str
    replace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchSettings:
    """How tolerant the matching is."""

    similarity: float = 0.9
    """Least likeness (0 to 1, rapidfuzz's ratio of the white-space-normalised texts) of a place that is taken as meant."""
    margin: float = 0.05
    """By how much the best place must beat every other that does not overlap it."""
    least_characters: int = 24
    """Shorter searches are not matched by likeness: any two short lines are alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchResult:
    """The patched source, or why there is none."""

    outcome: PatchOutcome
    source: str | None = None
    """Set with `APPLIED` and `NO_OP`."""
    matches: tuple[MatchKind, ...] = ()
    """One for each edit that was placed."""
    failed_edit: int | None = None
    """Index of the edit that could not be placed."""
    detail: str = ""
    """One line for people and for the next prompt."""


_SEARCH = re.compile(r"^\s{0,8}<{5,9} ?SEARCH\s*:?\s*$")
_DIVIDER = re.compile(r"^\s{0,8}={5,9}\s*$")
_REPLACE = re.compile(r"^\s{0,8}>{5,9} ?REPLACE\s*$")


def parse_edits(text: str) -> tuple[tuple[Edit, ...], bool]:
    """The edits in `text`, and whether every marker had its partner.

    Markers are lines of their own: `<<<<<<< SEARCH`, `=======`, `>>>>>>> REPLACE`. What stands outside them is ignored.
    """
    edits: list[Edit] = []
    search: list[str] = []
    replace: list[str] = []
    state = "outside"
    sound = True
    for line in _lines(text):
        if _SEARCH.match(line):
            sound = sound and state == "outside"
            state, search, replace = "search", [], []
        elif state == "search" and _DIVIDER.match(line):
            state = "replace"
        elif _REPLACE.match(line):
            if state == "replace":
                edits.append(Edit("\n".join(search), "\n".join(replace)))
            else:
                sound = False
            state = "outside"
        elif state == "search":
            search.append(line)
        elif state == "replace":
            replace.append(line)
    return tuple(edits), sound and state == "outside"


def apply_edits(source: str, edits: tuple[Edit, ...], settings: PatchSettings | None = None) -> PatchResult:
    """`source` with every edit applied in order, or the reason why it was left alone."""
    settings = settings or PatchSettings()
    if not edits:
        return PatchResult(outcome=PatchOutcome.NO_EDITS, detail="the reply holds no SEARCH/REPLACE edit")
    lines = _lines(source)
    matches: list[MatchKind] = []
    for number, edit in enumerate(edits):
        if not edit.search.strip():
            return PatchResult(
                outcome=PatchOutcome.MALFORMED,
                failed_edit=number,
                detail=f"edit {number + 1} has nothing to search for",
                matches=tuple(matches),
            )
        placed = _place(lines, edit, settings)
        if isinstance(placed, PatchOutcome):
            return PatchResult(
                outcome=placed, failed_edit=number, detail=_explain(placed, number, edit), matches=tuple(matches)
            )
        lines, kind = placed
        matches.append(kind)
    patched = "\n".join(lines)
    unchanged = patched == "\n".join(_lines(source))
    return PatchResult(
        outcome=PatchOutcome.NO_OP if unchanged else PatchOutcome.APPLIED,
        source=patched,
        matches=tuple(matches),
        detail="the edits change nothing" if unchanged else "",
    )


def _explain(outcome: PatchOutcome, number: int, edit: Edit) -> str:
    first = next(line.strip() for line in _lines(edit.search) if line.strip())
    found = "stands in several places" if outcome is PatchOutcome.AMBIGUOUS else "was not found"
    return f"the text of edit {number + 1}, which begins with {first[:80]!r}, {found}"


def _lines(text: str) -> list[str]:
    """Lines by newline alone: form feeds and the like stay in the text, as Python's own tokenizer has it."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _place(lines: list[str], edit: Edit, settings: PatchSettings) -> tuple[list[str], MatchKind] | PatchOutcome:
    exact = _place_exact(lines, edit)
    if exact is not None:
        return exact if isinstance(exact, PatchOutcome) else (exact, MatchKind.EXACT)
    search, replace = _without_outer_blanks(_lines(edit.search), _lines(edit.replace) if edit.replace else [])
    wanted = [_squeeze(line) for line in search]
    have = [_squeeze(line) for line in lines]
    starts = [at for at in range(len(have) - len(wanted) + 1) if have[at : at + len(wanted)] == wanted]
    if len(starts) > 1:
        return PatchOutcome.AMBIGUOUS
    if starts:
        span = slice(starts[0], starts[0] + len(wanted))
        return _replaced(lines, span, search, replace), MatchKind.WHITESPACE
    found = _most_similar(have, wanted, settings)
    if isinstance(found, PatchOutcome):
        return found
    return _replaced(lines, found, search, replace), MatchKind.SIMILAR


def _place_exact(lines: list[str], edit: Edit) -> list[str] | PatchOutcome | None:
    search = _lines(edit.search)
    replace = _lines(edit.replace) if edit.replace else []
    starts = [at for at in range(len(lines) - len(search) + 1) if lines[at : at + len(search)] == search]
    if len(starts) > 1:
        return PatchOutcome.AMBIGUOUS
    if starts:
        return lines[: starts[0]] + replace + lines[starts[0] + len(search) :]
    # A part of a line, as in `BLOCK = 64`, is as exact as a whole one when it stands only once.
    text, part = "\n".join(lines), "\n".join(search)
    at = text.find(part)
    if at < 0:
        return None
    if text.find(part, at + 1) >= 0:
        return PatchOutcome.AMBIGUOUS
    if text[text.rfind("\n", 0, at) + 1 : at].strip() == "" and _ends_line(text, at + len(part)):
        # Only the indentation differs: what replaces it must be indented too, which the tolerant way sees to.
        return None
    return _lines(text[:at] + "\n".join(replace) + text[at + len(part) :])


def _ends_line(text: str, at: int) -> bool:
    end = text.find("\n", at)
    return text[at : end if end >= 0 else len(text)].strip() == ""


def _without_outer_blanks(search: list[str], replace: list[str]) -> tuple[list[str], list[str]]:
    """Blank lines around the searched text say nothing; as many go from the replacement, so that none is added."""
    search, replace = list(search), list(replace)
    while search and not search[0].strip():
        search.pop(0)
        if replace and not replace[0].strip():
            replace.pop(0)
    while search and not search[-1].strip():
        search.pop()
        if replace and not replace[-1].strip():
            replace.pop()
    return search, replace


def _squeeze(line: str) -> str:
    return " ".join(line.split())


def _most_similar(have: list[str], wanted: list[str], settings: PatchSettings) -> slice | PatchOutcome:
    text = "\n".join(wanted)
    if len(text) < settings.least_characters:
        return PatchOutcome.NOT_FOUND
    scored: list[tuple[float, slice]] = []
    for size in {max(1, len(wanted) - 1), len(wanted), len(wanted) + 1}:
        for at in range(len(have) - size + 1):
            # A window that starts or ends on a blank line is another window with an accident attached.
            if not have[at] or not have[at + size - 1]:
                continue
            score = fuzz.ratio(text, "\n".join(have[at : at + size]), score_cutoff=settings.similarity * 100) / 100
            if score > 0:
                scored.append((score, slice(at, at + size)))
    if not scored:
        return PatchOutcome.NOT_FOUND
    best_score, best = max(scored, key=lambda entry: (entry[0], -entry[1].start))
    for score, span in scored:
        apart = span.stop <= best.start or span.start >= best.stop
        if apart and score > best_score - settings.margin:
            return PatchOutcome.AMBIGUOUS
    return best


def _replaced(lines: list[str], span: slice, search: list[str], replace: list[str]) -> list[str]:
    """`lines` with `span` replaced, the replacement moved to the indentation that the matched text really has."""
    found_indent = _indent(lines[span.start])
    asked_indent = _indent(search[0])
    moved = [_reindent(line, asked_indent, found_indent) for line in replace]
    return lines[: span.start] + moved + lines[span.stop :]


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _reindent(line: str, asked: str, found: str) -> str:
    if not line.strip() or asked == found:
        return line
    if line.startswith(asked):
        return found + line[len(asked) :]
    # Less indented than the searched text: keep its distance from it as far as there is room.
    missing = len(asked) - len(_indent(line))
    return found[: max(0, len(found) - missing)] + line.lstrip()
