"""Edits: what is placed, what is refused, and that nothing is ever guessed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelevo_searcher.llm.patch import Edit, MatchKind, PatchOutcome, PatchSettings, apply_edits, parse_edits

SOURCE = """\
import torch

BLOCK = 64


class ModelNew(torch.nn.Module):
    def forward(self, x):
        for i in range(BLOCK):
            x = x + i
        return x.contiguous()
"""


def block(search: str, replace: str) -> str:
    return f"<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE"


def test_edits_are_found_among_prose_and_fences() -> None:
    text = f"Idea: wider\n```\n{block('BLOCK = 64', 'BLOCK = 128')}\n```\nand\n{block('    a', '')}\n"
    assert parse_edits(text) == ((Edit("BLOCK = 64", "BLOCK = 128"), Edit("    a", "")), True)


@pytest.mark.parametrize(
    "text",
    [
        "<<<<<<< SEARCH\na\n=======\nb\n",
        "<<<<<<< SEARCH\na\n>>>>>>> REPLACE\n",
        "<<<<<<< SEARCH\na\n<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n",
        "b\n>>>>>>> REPLACE\n",
    ],
)
def test_markers_without_partners_are_noticed(text: str) -> None:
    assert parse_edits(text)[1] is False


def test_an_exact_edit() -> None:
    result = apply_edits(SOURCE, (Edit("BLOCK = 64", "BLOCK = 128"),))
    assert result.outcome is PatchOutcome.APPLIED
    assert result.source == SOURCE.replace("BLOCK = 64", "BLOCK = 128")
    assert result.matches == (MatchKind.EXACT,)


def test_part_of_a_line_that_stands_once() -> None:
    result = apply_edits(SOURCE, (Edit("x + i", "x + 2 * i"),))
    assert result.source == SOURCE.replace("x + i", "x + 2 * i")


def test_deleting_lines() -> None:
    result = apply_edits(SOURCE, (Edit("            x = x + i", ""),))
    assert result.source == SOURCE.replace("            x = x + i\n", "")


def test_lost_indentation_is_given_back() -> None:
    search = "    def forward(self, x) -> Tensor:\n        for i in range(BLOCK):"
    edit = Edit(search, "    def forward(self, x):\n        for i in ():")
    result = apply_edits(SOURCE, (edit,), PatchSettings(similarity=0.8))
    assert (result.outcome, result.matches) == (PatchOutcome.APPLIED, (MatchKind.SIMILAR,))
    assert result.source == SOURCE.replace("range(BLOCK)", "()")


@pytest.mark.parametrize(
    ("source", "edits", "outcome", "failed"),
    [
        (SOURCE, (), PatchOutcome.NO_EDITS, None),
        (SOURCE, (Edit("", "x"),), PatchOutcome.MALFORMED, 0),
        (SOURCE, (Edit("  \n ", "x"),), PatchOutcome.MALFORMED, 0),
        (SOURCE, (Edit("BLOCK = 64", "BLOCK = 64"),), PatchOutcome.NO_OP, None),
        (SOURCE, (Edit("BLOCK = 64", "B"), Edit("BLOCK = 64", "C")), PatchOutcome.NOT_FOUND, 1),
        (SOURCE, (Edit("something quite different that is long", "x"),), PatchOutcome.NOT_FOUND, 0),
        (SOURCE, (Edit("BLOCK", "B"),), PatchOutcome.AMBIGUOUS, 0),
        ("a = 1\nb\na = 1\n", (Edit("a = 1", "a = 2"),), PatchOutcome.AMBIGUOUS, 0),
        ("if x:\n    a = 1\nelse:\n  a = 1\n", (Edit("\ta = 1", "a = 2"),), PatchOutcome.AMBIGUOUS, 0),
        (
            "value_one = compute(first, 16)\nmiddle()\nvalue_two = compute(first, 16)\n",
            (Edit("value_ona = compute(first, 16)", "x"),),
            PatchOutcome.AMBIGUOUS,
            0,
        ),
    ],
)
def test_outcomes(source: str, edits: tuple[Edit, ...], outcome: PatchOutcome, failed: int | None) -> None:
    result = apply_edits(source, edits)
    assert (result.outcome, result.failed_edit) == (outcome, failed)
    assert (result.source is None) == (outcome is not PatchOutcome.NO_OP)
    assert result.detail


lines = st.text(alphabet="abcdefgh_= ()+:\t", min_size=0, max_size=24)
sources = st.lists(lines, min_size=1, max_size=30).map("\n".join)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_replacing_a_place_that_stands_once_does_just_that(data: st.DataObject) -> None:
    source = data.draw(sources)
    rows = source.split("\n")
    first = data.draw(st.integers(0, len(rows) - 1))
    last = data.draw(st.integers(first, len(rows) - 1))
    search = "\n".join(rows[first : last + 1])
    replace = data.draw(sources)
    places = [at for at in range(len(rows)) if rows[at : at + last - first + 1] == rows[first : last + 1]]
    result = apply_edits(source, (Edit(search, replace),))
    if not search.strip():
        assert result.outcome is PatchOutcome.MALFORMED
    elif len(places) > 1:
        assert result.outcome is PatchOutcome.AMBIGUOUS
    else:
        expected = "\n".join(rows[:first] + (replace.split("\n") if replace else []) + rows[last + 1 :])
        assert result.source == expected
        assert result.outcome is (PatchOutcome.NO_OP if expected == source else PatchOutcome.APPLIED)


@given(sources, st.lists(st.builds(Edit, sources, sources), max_size=4).map(tuple))
@settings(max_examples=150, deadline=None)
def test_any_patch_has_an_outcome_and_a_source_or_a_reason(source: str, edits: tuple[Edit, ...]) -> None:
    result = apply_edits(source, edits)
    if result.outcome in {PatchOutcome.APPLIED, PatchOutcome.NO_OP}:
        assert result.source is not None and len(result.matches) == len(edits)
        assert (result.source == source) == (result.outcome is PatchOutcome.NO_OP)
    else:
        assert result.source is None and result.detail


@given(st.lists(st.tuples(sources, sources), max_size=4))
@settings(max_examples=100, deadline=None)
def test_what_was_written_is_read_back(pairs: list[tuple[str, str]]) -> None:
    pairs = [pair for pair in pairs if not any(set(row.strip()) == {"="} for text in pair for row in text.split("\n"))]
    text = "\nsome prose\n".join(block(search, replace) for search, replace in pairs)
    edits, sound = parse_edits(text)
    assert sound
    assert edits == tuple(Edit(search, replace) for search, replace in pairs)


@given(st.text(max_size=300))
@settings(max_examples=150, deadline=None)
def test_no_text_is_too_odd_to_parse(text: str) -> None:
    edits, _ = parse_edits(text)
    apply_edits(text, edits)
