"""Replies of every shape have an outcome; whole candidates are found wherever they stand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelevo_searcher.llm.reply import parse_reply, same_code, strip_reasoning
from kernelevo_searcher.proposers import ReplyOutcome

CODE = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x\n"
OTHER = CODE.replace("return x", "return x + 0")


def fenced(code: str, language: str = "python", fence: str = "```") -> str:
    return f"{fence}{language}\n{code}{fence}\n"


@pytest.mark.parametrize(
    "text",
    [
        fenced(CODE),
        "Idea: fuse\n\n" + fenced(CODE),
        fenced(CODE, ""),
        fenced(CODE, "Python"),
        fenced(CODE, "python", "~~~"),
        fenced(CODE, "python", "````"),
        fenced(CODE).replace("\n", "\r\n"),
        "Here you are:\n" + fenced(CODE) + "\nThis is faster because of reasons.",
        "The parent was:\n" + fenced(OTHER) + "\nand now:\n" + fenced(CODE),
        fenced("x = 1\n") + fenced(CODE) + fenced("make\n", "bash"),
        "1. do this:\n" + "".join(f"   {line}\n" for line in fenced(CODE).splitlines()),
        "<think>Maybe\n" + fenced(OTHER) + "</think>\n" + fenced(CODE),
        "Maybe\n" + fenced(OTHER) + "no.\n</think>\n\n" + fenced(CODE),
        "```python\n" + CODE,
        "Sure.\n" + CODE,
    ],
)
def test_the_candidate_is_found(text: str) -> None:
    reply = parse_reply(text)
    assert (reply.outcome, reply.code) == (ReplyOutcome.OK, CODE)


def test_code_that_holds_a_fence_is_not_cut_there() -> None:
    code = CODE + '\n"""\n```\nquoted\n```\n"""\nLAST = 1\n'
    assert parse_reply(fenced(code)).code == code


def test_a_whole_block_in_a_cut_reply_was_paid_for_and_counts() -> None:
    assert parse_reply(fenced(CODE) + "This is fast bec", cut=True).outcome is ReplyOutcome.OK


@pytest.mark.parametrize(
    ("text", "options", "outcome"),
    [
        ("", {}, ReplyOutcome.EMPTY),
        (" \n", {}, ReplyOutcome.EMPTY),
        ("<think>hm</think>", {}, ReplyOutcome.EMPTY),
        ("", {"cut": True}, ReplyOutcome.TRUNCATED),
        ("<think>and then", {}, ReplyOutcome.TRUNCATED),
        ("```python\n" + CODE[:-12], {"cut": True}, ReplyOutcome.TRUNCATED),
        ("```python\n" + CODE, {"cut": True}, ReplyOutcome.TRUNCATED),
        ("```python\nimport torch\nclass ModelNew(", {}, ReplyOutcome.TRUNCATED),
        ("A plan that goes on", {"cut": True}, ReplyOutcome.TRUNCATED),
        ("whatever", {"refused": True}, ReplyOutcome.REFUSED),
        ("I'm sorry, but I can't help with that.", {}, ReplyOutcome.REFUSED),
        ("I cannot assist with this request.", {}, ReplyOutcome.REFUSED),
        ("The kernel is limited by memory; nothing can be done.", {}, ReplyOutcome.PROSE),
        ("Change it so:\nimport torch\ny = torch.add(x, 1)\n", {}, ReplyOutcome.NO_CODE_FENCE),
        (fenced("x = 1\n"), {}, ReplyOutcome.NOT_A_MODULE),
        (fenced(CODE.replace("):", ")")), {}, ReplyOutcome.NOT_A_MODULE),
        (fenced("if True:\n    class ModelNew: ...\n"), {}, ReplyOutcome.NOT_A_MODULE),
        (fenced("class ModelNew: ...\n\0\n"), {}, ReplyOutcome.NOT_A_MODULE),
    ],
)
def test_what_is_of_no_use_says_why(text: str, options: dict[str, bool], outcome: ReplyOutcome) -> None:
    reply = parse_reply(text, **options)
    assert (reply.outcome, reply.code) == (outcome, None)
    assert reply.detail


@pytest.mark.parametrize(
    "head",
    [
        "Name: fused-rows\nIdea: one pass over each row\nPlan: 1. load\n2. add\n\n",
        "**Name:** fused-rows\n**Idea:** one pass over each row\n**Plan:**\n1. load\n2. add\n",
        "- Name: `fused-rows`\n- IDEA: one pass over each row\n### Plan:\n1. load\n2. add\n",
    ],
)
def test_the_header_is_read(head: str) -> None:
    header = parse_reply(head + fenced(CODE)).header
    assert (header.name, header.idea) == ("fused-rows", "one pass over each row")
    assert header.plan == "1. load\n2. add"


def test_same_code_forgives_comments_and_layout() -> None:
    assert same_code(CODE, "# new\n" + CODE.replace("return x", "return  x  # fast"))
    assert not same_code(CODE, OTHER)
    assert same_code("not python (", "not   python (")


@given(st.text(max_size=400), st.booleans(), st.booleans())
@settings(max_examples=200, deadline=None)
def test_every_text_has_an_outcome(text: str, cut: bool, refused: bool) -> None:
    reply = parse_reply(text, cut=cut, refused=refused)
    assert (reply.outcome is ReplyOutcome.OK) == (reply.code is not None)


@given(
    st.lists(st.sampled_from(["```", "```python", "~~~", "<think>", "</think>", "Idea: x", CODE, "x", "", "   ```"]))
)
@settings(max_examples=200, deadline=None)
def test_every_heap_of_fences_has_an_outcome(parts: list[str]) -> None:
    reply = parse_reply("\n".join(parts))
    assert (reply.outcome is ReplyOutcome.OK) == (reply.code is not None)


@given(st.text(alphabet="ab<>/think\n ", max_size=80))
def test_reasoning_is_cut_off_the_front_only(text: str) -> None:
    assert text.endswith(strip_reasoning(text))
