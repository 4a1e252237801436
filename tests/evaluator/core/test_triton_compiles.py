"""Triton's compiler runs in a candidate's runner: it has a build's time, and a verdict says what was compiled."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest
from core_bench import seconds

from kernelevo_api.types import LimitKind, SandboxEnd, SandboxEnding, Stage, Verdict
from kernelevo_evaluator.channel import HEADER, Channel, ChannelClosed, socket_pair
from kernelevo_evaluator.messages.codec import COMMAND_LIMIT, encode
from kernelevo_evaluator.messages.runner import Compiling, Done, Run, decode_command
from kernelevo_evaluator.referee.compiles import Compiles
from kernelevo_evaluator.referee.outcome import Decided
from kernelevo_evaluator.referee.runners import Runner

pytest.importorskip("triton")

# For a GPU, on whatever host: Triton's compiler needs none.
CANDIDATE = """
import torch
import triton
import triton.language as tl
from torch import nn
from triton.backends.compiler import GPUTarget

@triton.jit
def unrolled(x, N: tl.constexpr):
    for i in tl.static_range(N):
        tl.store(x + i, i)

class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        source = triton.compiler.ASTSource(unrolled, {"x": "*fp32", "N": "constexpr"}, {(1,): TIMES})
        assert "cubin" in triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm
        return torch.relu(self.linear(x))
"""


@pytest.mark.asyncio(loop_scope="session")
async def test_a_kernel_that_unrolls_without_end_is_a_build_that_takes_too_long(bench):
    found = await bench.judge(CANDIDATE.replace("TIMES", "1 << 30"), limits={"build_time": seconds(2)})
    assert (found.verdict, found.limit, found.stage) == (Verdict.TIMEOUT, LimitKind.BUILD_TIME, Stage.BUILD)
    assert "to compile the kernel unrolled" in found.message
    compiled = await bench.judge(CANDIDATE.replace("TIMES", "4"))
    assert compiled.verdict is Verdict.PASSED, compiled.message


class Space:
    """Memory in which nothing is under way."""

    def synchronize(self):
        pass


class Host:
    """Says how a runner ended."""

    def ended(self, name):
        return SandboxEnding(kind=SandboxEnd.OUT_OF_MEMORY)


def asked(*answers, stage=0.5, builds=5.0):
    """What a referee makes of these answers to a call: messages, or seconds that pass before the next one; `None` ends it."""
    ours, theirs = socket_pair()
    runner = Runner("candidate", ours, Host(), Space())

    def answer():
        channel = Channel(theirs, COMMAND_LIMIT)
        command = decode_command(channel.receive())
        for one in answers:
            if isinstance(one, float):
                time.sleep(one)
            elif one is None:
                channel.close()
            else:
                kind, *fields = one
                nonce, *fields = fields if fields and isinstance(fields[0], int) else (command.nonce, *fields)
                try:
                    channel.send(encode(kind(nonce, *fields)))
                except ChannelClosed:
                    return

    other = threading.Thread(target=answer)
    other.start()
    try:
        runner.enter(Stage.CHECK, stage, LimitKind.CHECK_TIME)
        if builds is not None:
            runner.allow_compiling(builds)
        return runner.ask(Run(nonce=7, ring=0, slots=(0,)), Done)
    except Decided as decided:
        return decided
    finally:
        runner.close()
        other.join()
        theirs.close()


BEGIN, END = (Compiling, "k"), (Compiling,)


def test_the_stage_goes_on_where_it_was_when_a_compilation_has_ended():
    assert isinstance(asked(BEGIN, 1.0, END, (Done,)), Done)
    late = asked(BEGIN, 0.2, END, 2.0, (Done,))
    assert (late.verdict, late.limit, late.stage) == (
        Verdict.TIMEOUT,
        LimitKind.CHECK_TIME,
        Stage.CHECK,
    )


def test_all_compilations_together_have_the_time_of_a_build():
    late = asked(BEGIN, 0.4, END, BEGIN, 2.0, END, (Done,), stage=30.0, builds=0.6)
    assert (late.verdict, late.limit, late.stage) == (
        Verdict.TIMEOUT,
        LimitKind.BUILD_TIME,
        Stage.BUILD,
    )
    compiles = Compiles()
    compiles.seconds = 1.0
    compiles.turn("k")
    compiles._began -= 5.0
    assert compiles.turn("") == 1.0 and compiles.seconds == 0.0


def test_without_a_time_of_its_own_it_is_the_stages():
    late = asked(BEGIN, 2.0, END, (Done,), builds=None)
    assert (late.verdict, late.limit) == (Verdict.TIMEOUT, LimitKind.CHECK_TIME)


def test_who_announces_without_a_pause_has_no_more_time_than_others():
    ours, theirs = socket_pair()
    runner = Runner("candidate", ours, Host(), Space())
    runner.enter(Stage.CHECK, 0.2, LimitKind.CHECK_TIME)
    runner.allow_compiling(5.0)
    frames = b"".join(HEADER.pack(len(data), 0) + data for data in map(encode, (Compiling(7, "k"), Compiling(7))))
    done = encode(Done(7))

    def flood():
        theirs.setblocking(True)
        with contextlib.suppress(OSError):
            theirs.sendall(frames * 100_000 + HEADER.pack(len(done), 0) + done)

    other = threading.Thread(target=flood)
    other.start()
    with pytest.raises(Decided) as late:
        runner.ask(Run(nonce=7, ring=0, slots=(0,)), Done)
    runner.close()
    other.join()
    theirs.close()
    assert (late.value.verdict, late.value.limit) == (Verdict.TIMEOUT, LimitKind.CHECK_TIME)


def test_an_answer_ends_what_was_announced():
    ours, theirs = socket_pair()
    runner = Runner("candidate", ours, Host(), Space())
    runner.enter(Stage.CHECK, 5.0, LimitKind.CHECK_TIME)
    runner.allow_compiling(5.0)
    answers = Channel(theirs, COMMAND_LIMIT)
    for reply in (Compiling(7, "k"), Done(7)):
        answers.send(encode(reply))
    assert isinstance(runner.ask(Run(nonce=7, ring=0, slots=(0,)), Done), Done)
    answers.close()
    with pytest.raises(Decided) as gone:
        runner.ask(Run(nonce=8, ring=0, slots=(0,)), Done)
    assert gone.value.stage is Stage.CHECK and "compiled" not in gone.value.message
    runner.close()


def test_an_end_while_it_compiled_names_the_kernel():
    gone = asked(BEGIN, None)
    assert (gone.verdict, gone.limit, gone.stage) == (
        Verdict.OUT_OF_MEMORY,
        LimitKind.MEMORY,
        Stage.BUILD,
    )
    assert gone.message.startswith("the candidate, while it compiled the kernel k, used more memory")


def test_one_that_belongs_to_no_command_is_a_forgery():
    forged = asked((Compiling, 99, "k"), (Done,))
    assert forged.verdict is Verdict.SANDBOX_VIOLATION
