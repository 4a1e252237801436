"""Candidates through the real executor, in the real sandbox: every failure has its verdict."""

from __future__ import annotations

import pytest
from core_bench import HONEST, PROBLEM, seconds

from kernelevo_api.types import Effort, LimitKind, Stage, Verdict
from kernelevo_evaluator.lanes.runners import RunnerPool

pytestmark = pytest.mark.asyncio(loop_scope="session")

TEMPLATE = """
import os, sys, time, ctypes, gc, threading, socket, struct
import torch
from torch import nn
{top}

class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.calls = 0
        {init}

    def compute(self, x):
        return torch.relu(self.linear(x))

    def forward(self, x):
        self.calls += 1
        {body}
        return self.compute(x)
"""


def candidate(body="pass", top="", init="pass"):
    """A candidate that is honest but for the lines given."""
    indent = "\n        "
    return TEMPLATE.format(top=top, init=init.strip().replace("\n", indent), body=body.strip().replace("\n", indent))


async def test_honest(bench):
    evaluation = await bench.judge(HONEST)
    assert evaluation.verdict is Verdict.PASSED
    assert evaluation.stage is Stage.CHECK
    assert evaluation.correctness.trials >= 1
    assert evaluation.correctness.elements_compared >= 32 * 48
    assert evaluation.timing is None
    assert {entry.stage for entry in evaluation.timeline.stages} >= {Stage.BUILD, Stage.PREPARE, Stage.CHECK}
    assert evaluation.environment.device.id == "cpu"


async def test_honest_is_timed(bench):
    evaluation = await bench.judge(HONEST, skip_timing=False)
    assert evaluation.verdict is Verdict.PASSED, evaluation.message
    timing = evaluation.timing
    assert timing.speedup.low <= timing.speedup.value <= timing.speedup.high
    assert evaluation.correctness.timed_calls_compared >= 3
    assert len(timing.candidate_samples_us) == len(timing.baseline_samples_us) >= 3


WRONG = {
    "zeros": ("return torch.zeros_like(x)", Verdict.OUTPUT_MISMATCH),
    "uninitialised": ("return torch.empty_like(x)", Verdict.OUTPUT_MISMATCH),
    "an input": ("return x", Verdict.OUTPUT_MISMATCH),
    "weights ignored": ("return torch.relu(x @ torch.ones(48, 48))", Verdict.OUTPUT_MISMATCH),
    "half precision": (
        "return torch.relu(nn.functional.linear(x.bfloat16(), self.linear.weight.bfloat16(),"
        " self.linear.bias.bfloat16())).float()",
        Verdict.OUTPUT_MISMATCH,
    ),
    "one element": ("y = self.compute(x); y[3, 7] += 1e-2; return y", Verdict.OUTPUT_MISMATCH),
    "not a number": ("y = self.compute(x); y[0, 0] = float('nan'); return y", Verdict.OUTPUT_MISMATCH),
    "nondeterministic": (
        "return self.compute(x) if self.calls % 2 == 0 else self.compute(x) + 1",
        Verdict.NONDETERMINISTIC,
    ),
    "mutated input": ("y = self.compute(x); x.add_(1); return y", Verdict.INPUT_MUTATED),
    "cached by address": (
        "if x.data_ptr() not in self.answers: self.answers[x.data_ptr()] = self.compute(x)\nreturn self.answers[x.data_ptr()]",
        Verdict.OUTPUT_MISMATCH,
    ),
    "cached by content, weights forgotten": (
        "key = bytes(x.numpy().data[:1])\nreturn self.answers.setdefault('first', self.compute(x))",
        Verdict.OUTPUT_MISMATCH,
    ),
    "dtype": ("return self.compute(x).double()", Verdict.WRONG_INTERFACE),
    "shape": ("return self.compute(x)[:, :-1]", Verdict.WRONG_INTERFACE),
    "tuple": ("return (self.compute(x),)", Verdict.WRONG_INTERFACE),
    "nothing": ("return None", Verdict.WRONG_INTERFACE),
    "sparse": ("return self.compute(x).to_sparse()", Verdict.WRONG_INTERFACE),
    "lazy subclass": (
        "class Lazy(torch.Tensor): pass\nreturn self.compute(x).as_subclass(Lazy)",
        Verdict.WRONG_INTERFACE,
    ),
    "raises": ("raise KeyError('no such kernel')", Verdict.RUNTIME_ERROR),
    "exits": ("raise SystemExit(0)", Verdict.RUNTIME_ERROR),
    "hostile exception": (
        "class E(Exception):\n    def __str__(self): raise MemoryError\nraise E",
        Verdict.RUNTIME_ERROR,
    ),
    "surrogates": ("raise ValueError('\\\\ud800')", Verdict.RUNTIME_ERROR),
    "endless recursion": ("return self.forward(x)", Verdict.RUNTIME_ERROR),
    "early exit": ("os._exit(0)", Verdict.CRASHED),
    "segfault": ("ctypes.string_at(0)", Verdict.CRASHED),
    "abort": ("os.abort()", Verdict.CRASHED),
    "channel closed": ("os.close(3)", Verdict.CRASHED),
    "output flood": ("sys.stdout.write('x' * (1 << 20)); sys.stdout.flush(); time.sleep(60)", Verdict.RUNTIME_ERROR),
    "memory": ("big = bytearray(3 << 30); big[::4096] = b'x' * len(big[::4096])", Verdict.OUT_OF_MEMORY),
}


@pytest.mark.parametrize("name", WRONG)
async def test_wrong_candidates(bench, name):
    body, verdict = WRONG[name]
    body = body.replace("\\\\", "\\")
    evaluation = await bench.judge(candidate(body, init="self.answers = {}"))
    assert evaluation.verdict is verdict, evaluation.message
    assert evaluation.message
    assert len(evaluation.message) < 20_000


async def test_mismatch_says_where(bench):
    evaluation = await bench.judge(candidate("y = self.compute(x); y[3, 7] += 1e-2; return y"))
    mismatch = evaluation.correctness.mismatch
    assert tuple(mismatch.index) == (3, 7)
    assert mismatch.elements_wrong == 1
    assert mismatch.error > mismatch.budget


async def test_runtime_error_names_the_line(bench):
    source = candidate("raise KeyError('here')")
    line = next(n for n, text in enumerate(source.splitlines(), 1) if "KeyError" in text)
    evaluation = await bench.judge(source)
    assert evaluation.error.line == line
    assert "here" in evaluation.error.message


IMPORTS = {
    "syntax": ("def broken(:", Verdict.COMPILE_ERROR),
    "import error": ("import no_such_module_anywhere", Verdict.LOAD_ERROR),
    "exits at import": ("os._exit(0)", Verdict.CRASHED),
    "system exit": ("sys.exit(0)", Verdict.LOAD_ERROR),
    "stdout flood": ("print('x' * (1 << 20), flush=True)\ntime.sleep(60)", Verdict.RUNTIME_ERROR),
    "null bytes": ("x = '\\0'", Verdict.PASSED),
}


@pytest.mark.parametrize("name", IMPORTS)
async def test_imports(bench, name):
    top, verdict = IMPORTS[name]
    evaluation = await bench.judge(candidate(top=top))
    assert evaluation.verdict is verdict, evaluation.message


async def test_no_model(bench):
    evaluation = await bench.judge("x = 1\n")
    assert evaluation.verdict is Verdict.WRONG_INTERFACE
    assert "ModelNew" in evaluation.message


async def test_not_a_module(bench):
    evaluation = await bench.judge(
        "class ModelNew:\n    def __init__(self, n): pass\n    def forward(self, x): return x\n"
    )
    assert evaluation.verdict is Verdict.WRONG_INTERFACE


@pytest.mark.parametrize(
    ("source", "limit", "stage"),
    [
        (candidate(top="while True: pass"), {"build_time": seconds(3)}, Stage.BUILD),
        (candidate(init="time.sleep(60)"), {"prepare_time": seconds(4)}, Stage.PREPARE),
        (candidate("if self.calls > 1: time.sleep(60)"), {"check_time": seconds(4)}, Stage.CHECK),
    ],
    ids=["import", "construct", "forward"],
)
async def test_timeouts(bench, source, limit, stage):
    evaluation = await bench.judge(source, limits=limit)
    assert evaluation.verdict is Verdict.TIMEOUT
    assert evaluation.stage is stage
    assert evaluation.limit is LimitKind(next(iter(limit)))
    await bench.works()


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ("open('/tmp/big', 'wb').write(bytes(100 << 20))", LimitKind.TEMPORARY_FILES),
        ("os.truncate(os.memfd_create('big'), 1 << 30)", LimitKind.FILE_SIZE),
        ("files = [open('/dev/null') for _ in range(2000)]", LimitKind.OPEN_FILES),
        (
            "for _ in range(500): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            LimitKind.PROCESSES,
        ),
    ],
    ids=lambda value: value.value if isinstance(value, LimitKind) else "",
)
async def test_a_limit_that_says_no_is_named(bench, body, limit):
    evaluation = await bench.judge(candidate(body))
    assert (evaluation.verdict, evaluation.limit) == (Verdict.RUNTIME_ERROR, limit), evaluation.message


async def test_processor_time_is_named(bench, monkeypatch):
    monkeypatch.setattr(RunnerPool, "cpu_seconds", 6.0)
    evaluation = await bench.judge(candidate(top="os.fork()\nwhile True: pass"))
    assert (evaluation.verdict, evaluation.limit) == (Verdict.TIMEOUT, LimitKind.CPU_TIME), evaluation.message


async def test_a_message_that_is_too_long_is_named(bench):
    evaluation = await bench.judge(candidate("os.write(3, struct.pack('>IB', 0xffffffff, 0))"))
    assert (evaluation.verdict, evaluation.limit) == (Verdict.SANDBOX_VIOLATION, LimitKind.MESSAGE_SIZE)


# --- The result channel

SEND = """
def say(*parts):
    data = b''.join(parts)
    os.write(3, data)
def frame(payload, count=0):
    return struct.pack('>IB', len(payload), count) + payload
def done(nonce):
    from kernelevo_evaluator.messages.codec import encode
    from kernelevo_evaluator.messages.runner import Done
    return frame(encode(Done(nonce=nonce)))
"""

CHANNEL = {
    "garbage": ("say(b'garbage' * 100)", {Verdict.SANDBOX_VIOLATION}),
    "huge header": ("say(struct.pack('>IB', 0xffffffff, 0))", {Verdict.SANDBOX_VIOLATION}),
    "announced descriptors": ("say(frame(b'x', 3))", {Verdict.SANDBOX_VIOLATION}),
    "not a message": ("say(frame(b'\\xc1' * 50))", {Verdict.SANDBOX_VIOLATION}),
    "deep": ("say(frame(b'\\x91' * 100000))", {Verdict.SANDBOX_VIOLATION}),
    "made up": ("say(done(12345))", {Verdict.SANDBOX_VIOLATION}),
    "made up often": ("say(done(1) * 2000)", {Verdict.SANDBOX_VIOLATION}),
    "half a frame": (
        "say(struct.pack('>IB', 5000, 0) + b'abc'); os._exit(0)",
        {Verdict.SANDBOX_VIOLATION, Verdict.CRASHED},
    ),
    "descriptors sent": (
        "s = socket.socket(fileno=os.dup(3)); socket.send_fds(s, [frame(b'x' * 9)], [0, 1, 2])",
        {Verdict.SANDBOX_VIOLATION},
    ),
}


@pytest.mark.parametrize("when", ["import", "forward"])
@pytest.mark.parametrize("name", CHANNEL)
async def test_result_channel(bench, name, when):
    action, verdicts = CHANNEL[name]
    source = candidate(action, top=SEND) if when == "forward" else candidate(top=SEND + action)
    evaluation = await bench.judge(source)
    assert evaluation.verdict in verdicts, evaluation.message


async def test_done_sent_before_the_work_is_done(bench):
    """An answer with the right nonce, and nothing in the output slot."""
    body = """
frame_ = sys._getframe()
while 'command' not in frame_.f_locals: frame_ = frame_.f_back
say(done(frame_.f_locals['command'].nonce))
time.sleep(0.5)
"""
    evaluation = await bench.judge(candidate(body, top=SEND))
    assert evaluation.verdict in (Verdict.OUTPUT_MISMATCH, Verdict.SANDBOX_VIOLATION), evaluation.message


async def test_flood_of_replies_does_not_hold_the_referee(bench):
    """An endless stream of well-formed replies is neither waited out nor taken for a fault of the evaluator."""
    body = """
message = done(7) * 1000
def flood():
    s = socket.socket(fileno=os.dup(3)); s.setblocking(True)
    while True: s.sendall(message)
threading.Thread(target=flood, daemon=True).start()
time.sleep(60)
"""
    evaluation = await bench.judge(candidate(body, top=SEND))
    assert evaluation.verdict is Verdict.SANDBOX_VIOLATION
    await bench.works()


async def test_claims_are_bounded(bench):
    body = """
from kernelevo_evaluator.messages.codec import encode
from kernelevo_evaluator.messages.runner import Failed
frame_ = sys._getframe()
while 'command' not in frame_.f_locals: frame_ = frame_.f_back
nonce = frame_.f_locals['command'].nonce
say(frame(encode(Failed(nonce=nonce, kind='runtime', error='E', message='x' * 100000))))
time.sleep(60)
"""
    evaluation = await bench.judge(candidate(body, top=SEND))
    assert evaluation.verdict is Verdict.SANDBOX_VIOLATION
    assert len(evaluation.message) < 2000


# --- What lives on, and what is reached for

HARMLESS = {
    "child holds the channel": (
        "if self.calls == 2:\n    if os.fork() == 0:\n        time.sleep(60); os._exit(0)\n    os._exit(0)",
        {Verdict.CRASHED},
    ),
    "daemon and threads": (
        "def spin():\n    while True: pass\n"
        "if self.calls == 1:\n"
        "    threading.Thread(target=spin, daemon=True).start()\n"
        "    if os.fork() == 0:\n        os.setsid()\n        time.sleep(600); os._exit(0)",
        {Verdict.PASSED},
    ),
    "shared memory cut": (
        "for fd in os.listdir('/proc/self/map_files') if os.path.isdir('/proc/self/map_files') else []:\n"
        "    try: os.truncate('/proc/self/map_files/' + fd, 0)\n    except OSError: pass",
        {Verdict.PASSED},
    ),
    "functions replaced": (
        "torch.equal = torch.allclose = lambda *a, **k: True\n"
        "time.perf_counter_ns = lambda: 0\n"
        "time.monotonic = lambda: 0.0\n"
        "torch.Tensor.__eq__ = lambda *a: True\nreturn torch.zeros_like(x)",
        {Verdict.OUTPUT_MISMATCH},
    ),
    "copy replaced": (
        "torch.Tensor.copy_ = lambda self, *a, **k: self",
        {Verdict.OUTPUT_MISMATCH, Verdict.RUNTIME_ERROR},
    ),
    "output rewritten later": (
        "ring = next(o for o in gc.get_objects() if type(o).__name__ == 'Ring')\n"
        "def later():\n    time.sleep(0.3)\n    ring.outputs[0][0].copy_(self.compute(ring.inputs[0][0]))\n"
        "threading.Thread(target=later).start()\nreturn torch.zeros_like(x)",
        {Verdict.OUTPUT_MISMATCH},
    ),
    "written into the slot": (
        "ring = next(o for o in gc.get_objects() if type(o).__name__ == 'Ring')\n"
        "return ring.outputs[0][0].copy_(self.compute(x))",
        {Verdict.WRONG_INTERFACE},
    ),
    "expected outputs sought": (
        "found = [o for o in gc.get_objects() if isinstance(o, torch.Tensor) and o.shape == x.shape"
        " and o.dtype == torch.float64]\n"
        "pids = [p for p in os.listdir('/proc') if p.isdigit()]\n"
        "for p in pids:\n"
        "    try: maps = open(f'/proc/{p}/maps').read()\n"
        "    except OSError: continue\n"
        "    if 'kernelevo-expected' in maps: raise ValueError('reached')\n"
        "if found: raise ValueError('reached')",
        {Verdict.PASSED},
    ),
}


@pytest.mark.parametrize("name", HARMLESS)
async def test_reaching_further(bench, name):
    body, verdicts = HARMLESS[name]
    evaluation = await bench.judge(candidate(body))
    assert evaluation.verdict in verdicts, evaluation.message


async def test_right_while_checked_wrong_while_timed(bench):
    evaluation = await bench.judge(
        candidate("if self.calls > 100 and self.calls % 2: return torch.zeros_like(x)"), skip_timing=False
    )
    assert evaluation.verdict is Verdict.OUTPUT_MISMATCH
    assert evaluation.stage is Stage.TIME
    assert "timed" in evaluation.message


async def test_loads_once_and_not_again(bench, monkeypatch):
    """FINAL loads a candidate a second time; one that then fails is to blame, not the evaluator."""
    load, loaded = bench.executor._lanes[0].loader.load, []

    async def second_fails(runner, source, **options):
        loaded.append(source)
        return await load(runner, source if len(loaded) == 1 else "raise RuntimeError('unlucky')", **options)

    job = await bench.job(HONEST, effort=Effort.FINAL, skip_timing=False)
    monkeypatch.setattr(bench.executor._lanes[0].loader, "load", second_fails)
    evaluation = await bench.executor.evaluate(job, bench.tell)
    if len(loaded) > 1:  # the first timing was not disputed
        assert evaluation.verdict is Verdict.LOAD_ERROR
        assert "not again" in evaluation.message
    monkeypatch.undo()
    await bench.works()


async def test_what_was_printed_comes_back(bench):
    evaluation = await bench.judge(candidate("print('seen', self.calls)"))
    assert "seen 1" in evaluation.output.head


assert "ModelNew" not in PROBLEM
