"""Reading a model's reply: a short header, then one fenced block of code or SEARCH/REPLACE edits.

Pure functions of text. Every reply, however malformed, gets an outcome and never an exception: it was paid for. Code is
parsed to tell a whole module from a fragment; it is never executed or imported here.
"""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass

from kernelevo_searcher.proposers import ReplyOutcome

__all__ = ["ENTRY_POINT", "Header", "ParsedReply", "defines_entry_point", "parse_reply", "same_code", "strip_reasoning"]

ENTRY_POINT = "ModelNew"
"""The class that a candidate's module must define."""

_OPENING = re.compile(r"^(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})[ \t]*(?P<info>[^`\n]*)$")
_HEADER = re.compile(
    r"^\W{0,6}(?P<key>idea|name|change|plan|expected)\W{0,4}:\W{0,4}(?P<value>.*?)[\s*_`]*$", re.IGNORECASE
)
_REASONING = re.compile(r"^\s*<(think|thinking|reasoning)>.*?</\1>", re.DOTALL | re.IGNORECASE)
_OPEN_REASONING = re.compile(r"^\s*<(think|thinking|reasoning)>", re.IGNORECASE)
_CLOSED_REASONING = re.compile(r"</(think|thinking|reasoning)>\s*$", re.IGNORECASE)
_REFUSAL = re.compile(
    r"^\W{0,4}(i['’]?m (very |really )?sorry|sorry|i apologi[sz]e|i can(no|['’])t|i am (not able|unable)|i['’]m (not able|unable)"
    r"|i won['’]t|as an ai)\b",
    re.IGNORECASE,
)
_CODE_LINE = re.compile(r"^(import \w|from [\w.]+ import|class \w+|def \w+|@\w)", re.MULTILINE)

_LONGEST_REFUSAL = 1200
"""Characters: a longer reply that begins with an apology is prose that happens to apologise."""
_LONGEST_IDEA = 200
_LONGEST_PLAN = 4000
_CLOSINGS_TRIED = 8
"""Closing fences tried for one opening: code may itself hold a line of backticks."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a reply says of itself, one line each except the plan; empty where it says nothing."""

    name: str = ""
    idea: str = ""
    plan: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedReply:
    """What was found in a reply."""

    outcome: ReplyOutcome
    code: str | None = None
    """The chosen block, with `ReplyOutcome.OK` and a whole file asked for."""
    header: Header = Header()
    text: str = ""
    """The reply without its reasoning."""
    detail: str = ""
    """One line about what is wrong, empty when nothing is."""


@dataclass(frozen=True, slots=True)
class _Block:
    language: str
    code: str
    closed: bool


def parse_reply(text: str, *, cut: bool = False, refused: bool = False) -> ParsedReply:
    """The reply's outcome, header and code.

    `cut`: the provider says that the reply ran into its limit. `refused`: the provider says that the model refused, or
    that a filter stepped in. A whole closed block in a cut reply is still a whole candidate, and is returned.
    """
    body = strip_reasoning(text)
    header = _header(body)
    if refused:
        return ParsedReply(
            outcome=ReplyOutcome.REFUSED, header=header, text=body, detail="the provider reports a refusal"
        )
    if not body.strip():
        if cut or (_OPEN_REASONING.match(text) and not _CLOSED_REASONING.search(text)):
            return ParsedReply(
                outcome=ReplyOutcome.TRUNCATED, text=body, detail="the reply ended before it said anything"
            )
        return ParsedReply(outcome=ReplyOutcome.EMPTY, text=body, detail="the reply is empty")
    blocks = _blocks(body)
    whole = [block for block in blocks if block.closed and defines_entry_point(block.code)]
    if whole:
        # The last one: models quote the parent first and correct themselves last.
        return ParsedReply(outcome=ReplyOutcome.OK, code=_ended(whole[-1].code), header=header, text=body)
    unclosed = next((block for block in blocks if not block.closed), None)
    if unclosed is not None:
        if not cut and _parses(unclosed.code) and defines_entry_point(unclosed.code):
            return ParsedReply(outcome=ReplyOutcome.OK, code=_ended(unclosed.code), header=header, text=body)
        return ParsedReply(
            outcome=ReplyOutcome.TRUNCATED, header=header, text=body, detail="the code block was never closed"
        )
    if cut:
        return ParsedReply(
            outcome=ReplyOutcome.TRUNCATED, header=header, text=body, detail="the reply ran into its limit"
        )
    if blocks:
        return ParsedReply(outcome=ReplyOutcome.NOT_A_MODULE, header=header, text=body, detail=_why_no_module(blocks))
    bare = _bare_module(body)
    if bare is not None:
        return ParsedReply(outcome=ReplyOutcome.OK, code=_ended(bare), header=header, text=body)
    if len(body) <= _LONGEST_REFUSAL and _REFUSAL.match(body.strip()):
        return ParsedReply(outcome=ReplyOutcome.REFUSED, header=header, text=body, detail="the model declined")
    if _CODE_LINE.search(body):
        return ParsedReply(
            outcome=ReplyOutcome.NO_CODE_FENCE, header=header, text=body, detail="the code stands in no fenced block"
        )
    return ParsedReply(outcome=ReplyOutcome.PROSE, header=header, text=body, detail="the reply holds no code")


def strip_reasoning(text: str) -> str:
    """`text` without the reasoning that some open models print ahead of their reply."""
    text = text.replace("\r\n", "\n")
    while (match := _REASONING.match(text)) is not None:
        text = text[match.end() :]
    if (end := text.rfind("</think>")) >= 0 and "```" not in text[end:].split("\n", 1)[0]:
        # Templates that put the opening tag into the prompt leave only the closing one in the reply.
        text = text[end + len("</think>") :]
    return "" if _OPEN_REASONING.match(text) else text


def defines_entry_point(code: str) -> bool:
    """Whether `code` is a module that defines, or binds at its top level, the class a candidate must have."""
    tree = _tree(code)
    if tree is None:
        return False
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == ENTRY_POINT:
            return True
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == ENTRY_POINT for target in node.targets
        ):
            return True
    return False


def same_code(one: str, other: str) -> bool:
    """Whether two modules are the same but for comments and layout; by text where they do not parse."""
    first, second = _tree(one), _tree(other)
    if first is None or second is None:
        return one.split() == other.split()
    try:
        return ast.dump(first) == ast.dump(second)
    except RecursionError:
        return one.split() == other.split()


def _ended(code: str) -> str:
    return code.rstrip() + "\n"


def _parses(code: str) -> bool:
    return _tree(code) is not None


def _tree(code: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _why_no_module(blocks: list[_Block]) -> str:
    meant = next((block for block in reversed(blocks) if f"class {ENTRY_POINT}" in block.code), None)
    if meant is None:
        return f"no code block defines {ENTRY_POINT}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(meant.code)
    except SyntaxError as error:
        return f"the code does not parse: line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"the code does not parse: {type(error).__name__}"
    return f"{ENTRY_POINT} is not defined at the top level of the module"


def _header(body: str) -> Header:
    found: dict[str, str] = {}
    plan: list[str] = []
    in_plan = False
    for line in body.split("\n"):
        if _OPENING.match(line):
            break
        match = _HEADER.match(line.strip())
        if match is not None:
            key, value = match["key"].lower(), match["value"].strip()
            in_plan = key == "plan"
            if in_plan:
                plan = [value] if value else []
            else:
                found.setdefault(key, value)
        elif in_plan:
            plan.append(line.rstrip())
    idea = found.get("idea") or found.get("change") or ""
    return Header(
        name=found.get("name", "")[:_LONGEST_IDEA],
        idea=idea[:_LONGEST_IDEA],
        plan="\n".join(plan).strip()[:_LONGEST_PLAN],
    )


def _blocks(body: str) -> list[_Block]:
    lines = body.split("\n")
    blocks: list[_Block] = []
    at = 0
    while at < len(lines):
        opening = _OPENING.match(lines[at])
        if opening is None:
            at += 1
            continue
        closing = re.compile(rf"^[ \t]*{re.escape(opening['fence'][0])}{{{len(opening['fence'])},}}[ \t]*$")
        language = (opening["info"].split() or [""])[0].lower().strip("{}.")
        ends = [end for end in range(at + 1, len(lines)) if closing.match(lines[end])]
        if not ends:
            blocks.append(_Block(language, _dedented(lines[at + 1 :], opening["indent"]), closed=False))
            break
        end = ends[0]
        if language in {"python", "py", "python3", ""}:
            # A line of backticks may belong to the code; the first closing that leaves whole Python is the right one.
            tried = ends[:_CLOSINGS_TRIED]
            end = next((e for e in tried if _parses(_dedented(lines[at + 1 : e], opening["indent"]))), end)
        blocks.append(_Block(language, _dedented(lines[at + 1 : end], opening["indent"]), closed=True))
        at = end + 1
    return blocks


def _dedented(lines: list[str], indent: str) -> str:
    if not indent:
        return "\n".join(lines)
    return "\n".join(line[len(indent) :] if line.startswith(indent) else line for line in lines)


def _bare_module(body: str) -> str | None:
    """The tail of an unfenced reply, from its first line of code, if it is a whole module."""
    for match in _CODE_LINE.finditer(body):
        tail = body[match.start() :]
        return tail if defines_entry_point(tail) else None
    return None
