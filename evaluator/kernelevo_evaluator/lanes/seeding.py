"""Candidates that need no model, made in a runner of their own: what it compiles and imports touches nothing that is timed."""

from __future__ import annotations

import ast
import asyncio
import json
import secrets
from typing import TYPE_CHECKING, TypeVar

from kernelevo_api.types import Finding, Language, Seed
from kernelevo_evaluator.channel import ChannelError
from kernelevo_evaluator.executor import NO_SEED
from kernelevo_evaluator.lanes.quiet import Deadline
from kernelevo_evaluator.languages.recognise import recognise
from kernelevo_evaluator.messages.codec import MessageInvalid, encode
from kernelevo_evaluator.messages.runner import Done, Failed, LoadModule, SeedWritten, WriteSeed, decode_reply

if TYPE_CHECKING:
    from kernelevo_evaluator.executor import ProblemSource
    from kernelevo_evaluator.lanes.quiet import Quiet
    from kernelevo_evaluator.lanes.runners import HeldRunner, RunnerLimits, RunnerPool
    from kernelevo_evaluator.messages.runner import Command

R = TypeVar("R")

INDUCTOR = "inductor"
"""Name of the seed that TorchInductor wrote."""


class _NoSeed(Exception):
    """Why there is none."""


async def seeds_of(
    pool: RunnerPool, quiet: Quiet, problem: ProblemSource, limits: RunnerLimits, seconds: float
) -> tuple[tuple[Seed, ...], tuple[Finding, ...]]:
    """The seeds of a problem, or a finding that says why there are none. What they hold is as little trusted as any candidate.

    Args:
        seconds: most that it may take.

    Raises:
        ExecutorFault: no runner could be started.
    """
    runner = await pool.take(limits, label="seeds")
    deadline = Deadline(quiet, seconds)
    policy = problem.policy
    load = LoadModule(nonce=secrets.randbits(62), source=problem.source, role="reference", math=policy.math)
    write = WriteSeed(
        nonce=secrets.randbits(62),
        source=problem.source,
        dtype=policy.dtype,
        shapes=tuple(json.loads(shape) for shape in policy.shapes),
    )
    try:
        await _ask(runner, load, Done, deadline)
        written = await _ask(runner, write, SeedWritten, deadline)
        if not written.source:
            raise _NoSeed(written.reason)
        language = recognise(ast.parse(written.source))
        if policy.languages and language not in policy.languages:
            raise _NoSeed(f"what Inductor generates is {language.value}, which the problem does not allow")
        if language is Language.TORCH:
            raise _NoSeed("Inductor calls the libraries that eager calls, and generates no kernel")
    except (_NoSeed, ChannelError, MessageInvalid, TimeoutError, SyntaxError, ValueError, RecursionError) as error:
        why = str(error) or f"it took longer than {seconds:.0f} s"
        return (), (Finding(code=NO_SEED, message=f"no kernel could be generated for a start: {why}"),)
    finally:
        await pool.discard(runner)
    return (Seed(name=INDUCTOR, source=written.source, language=language),), ()


async def _ask(runner: HeldRunner, command: Command, expect: type[R], deadline: Deadline) -> R:
    await deadline.result(asyncio.create_task(runner.channel.send(encode(command))))
    reply = decode_reply(await deadline.result(asyncio.create_task(runner.channel.receive())))
    if isinstance(reply, Failed):
        raise _NoSeed(f"{reply.error}: {reply.message}")
    if not isinstance(reply, expect) or getattr(reply, "nonce", None) != command.nonce:
        raise _NoSeed(f"the runner answered with {type(reply).__name__}")
    return reply
