"""openevolve's own command and ours, with one model and one evaluator: as many calls, as many tokens, and a kernel from each."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import side_by_side
from searching.landscape import recorded
from tests.searcher.openai_server import Asked

PNPOLY = "pnpoly-RTX3090"


def asked(text: str) -> Asked:
    return Asked("/v1/chat/completions", {}, {"messages": [{"role": "user", "content": text}]}, 0.0)


def test_the_model_reads_the_kernel_that_it_is_asked_about() -> None:
    space = recorded(PNPOLY)
    first, second = (side_by_side.kernel(space, space.ordered[place]) for place in (0, 7))
    history = f"# Program Evolution History\n```python\n{first}```\n\n"
    theirs = asked(
        f"# Current Program Information\n- Fitness: 1\n\n{history}# Current Program\n```python\n{second}```\n"
    )
    ours = asked(
        f"# The task\n\n# The kernel to beat\n\nCandidate c2\n\n```python\n{second}```\n\n```python\n{first}```\n"
    )
    for prompt in (theirs, ours):
        assert side_by_side.parent_of(prompt, space) == space.ordered[7]
    prose = asked(f"x\n# Current Program\n```python\nBROKEN```\n\n```python\n{first}```\n")
    for prompt in (prose, asked("Begin again from the reference.")):
        assert side_by_side.parent_of(prompt, space) == space.start


@pytest.mark.skipif(sys.platform != "linux", reason="the evaluator runs on Linux")
@pytest.mark.timeout(300)
def test_both_commands_make_as_many_calls_and_find_a_kernel() -> None:
    ours, theirs = side_by_side.pair(PNPOLY, 1, 36_000)
    assert ours.calls == theirs.calls >= 4
    assert ours.tokens == theirs.tokens == ours.calls * side_by_side.TOKENS
    # The start and whatever a call brought; ours measures some twice.
    assert theirs.evaluations <= theirs.calls + 1 and ours.evaluations > 1
    space = recorded(PNPOLY)
    assert min(ours.value, theirs.value) >= space.value(space.start)
    figures = {one["figure"].partition(": ")[2]: one["value"] for one in side_by_side.figures([(ours, theirs)])}
    assert figures["pairs with other calls or tokens"] == 0 and figures["model calls of each"] == ours.calls
