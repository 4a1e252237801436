"""Long sources are read in a process of their own: the same is found, within bounds, and nobody waits for it who need not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from scripted_executor import PROBLEM, candidate

from kernelevo_api.errors import InvalidRequest, ProblemRefused, TooLarge
from kernelevo_api.types import Candidate, Language, Problem, Verdict
from kernelevo_evaluator import apart
from kernelevo_evaluator.apart import LONG_BYTES, TOO_MUCH, Reader
from kernelevo_evaluator.problem import read_problem
from kernelevo_evaluator.shown import Shown, show
from kernelevo_evaluator.sources import SourceError

pytestmark = pytest.mark.timeout(120)
MIB = 1 << 20
COMMENT = "# a comment that is no code\n" * (LONG_BYTES // 28 + 1)


def dense(size: int) -> str:
    """A source that Python takes long to parse."""
    return f"x = [{'a,' * (size // 2)}]\n"


def readers() -> list[str]:
    """Processes that read, of this one."""
    children = Path(f"/proc/self/task/{Path('/proc/thread-self').resolve().name}/children").read_text().split()
    return [one for one in children if b"kernelevo_evaluator.reading" in Path(f"/proc/{one}/cmdline").read_bytes()]


@pytest.mark.parametrize(
    "source",
    [
        "import triton, subprocess\nx = open('/proc/self/maps')\n",
        "class class:\n",
        "x = '\0'\n",
        "",
        "x = '\ud83d\ude42 \u2028'\n".encode("utf-16", "surrogatepass").decode("utf-16"),
    ],
    ids=["findings", "syntax", "nul", "nothing", "unicode"],
)
async def test_the_same_is_found_in_a_long_source(source: str) -> None:
    long = f"{source}{COMMENT}"
    assert len(long) > LONG_BYTES
    assert await Reader().show(long) == show(long)
    assert await Reader().show(source) == show(source)


async def test_the_same_is_found_in_a_long_problem() -> None:
    long = Problem(source=f"{PROBLEM}{COMMENT}", name="long")
    assert await Reader().problem(long, MIB) == read_problem(long, MIB)
    bad = Problem(source=f"KERNELEVO = {{'dtype': 'int', 'math': 1}}\n{COMMENT}")
    with pytest.raises(ProblemRefused) as here:
        read_problem(bad, MIB)
    with pytest.raises(ProblemRefused) as there:
        await Reader().problem(bad, MIB)
    assert (there.value.message, there.value.violations) == (here.value.message, here.value.violations)
    with pytest.raises(TooLarge):
        await Reader().problem(long, LONG_BYTES)
    with pytest.raises(InvalidRequest):
        await Reader().problem(Problem(source=long.source, name="n" * 2000), MIB)


@pytest.mark.parametrize(("bound", "value"), [("MEMORY_BYTES", 256 << 20), ("CPU_S", 1)])
async def test_a_source_that_takes_too_much_is_an_error_of_its_own(
    bound: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, bound, value)
    found = await Reader().show(dense(MIB))
    assert isinstance(found, SourceError)
    assert "too large, to be parsed" in found.message or found.message == TOO_MUCH
    with pytest.raises(ProblemRefused, match=r"too large, to be parsed|more time or memory"):
        await Reader().problem(Problem(source=f"{PROBLEM}{dense(MIB)}"), 2 * MIB)


async def test_who_stops_waiting_leaves_no_process() -> None:
    task = asyncio.create_task(Reader().show(dense(MIB)))
    while not readers():
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert readers() == []


async def test_others_are_answered_while_a_long_candidate_is_admitted(host: Any, make_request: Any) -> None:
    """The server is in this process, and so is who asks: one that parsed here would answer nobody until it is done."""
    client = await host.start()
    await client.register_problem(Problem(source=PROBLEM))
    await client.evaluate(make_request())
    source = candidate() + dense(MIB // 4)
    long = host.ask(make_request(candidate=Candidate(source=source)))
    while not readers():
        await asyncio.sleep(0.01)
    asked = cached = 0
    while readers():
        await client.get_capabilities()
        asked += 1
        cached += (await client.evaluate(make_request())).from_cache
    evaluation = await long
    assert evaluation.verdict is Verdict.PASSED
    assert evaluation.language is Language.TORCH
    assert cached >= 10, f"{asked} calls were answered meanwhile"
    # What a source shows is kept, and not looked for again.
    again = host.ask(make_request(candidate=Candidate(source=source), fresh=True))
    await again.queued()
    assert readers() == []
    assert (await again).verdict is Verdict.PASSED


async def test_what_is_wrong_with_a_long_candidate_is_its_verdict(host: Any, make_request: Any) -> None:
    client = await host.start()
    evaluation = await client.evaluate(make_request(candidate=Candidate(source=f"class class:\n{COMMENT}")))
    assert evaluation.verdict is Verdict.COMPILE_ERROR
    assert evaluation.error.line == 1
    assert isinstance(await Reader().show(COMMENT), Shown)
