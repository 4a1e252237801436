"""The runner's harness as a plain process: what it answers to each command, and that user code does not end it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
import torch

from kernelevo_evaluator.channel import Channel, ChannelClosed, socket_pair
from kernelevo_evaluator.messages.codec import BUILD_REQUEST_LIMIT, encode
from kernelevo_evaluator.messages.runner import (
    BuildReply,
    BuildRequest,
    Construct,
    Constructed,
    Described,
    DescribeOutputs,
    Done,
    Failed,
    LoadModule,
    LoadWeights,
    MakeInputs,
    MapRing,
    Ready,
    Run,
    RunExpected,
    StoreInputs,
    StoreWeights,
    decode_reply,
)
from kernelevo_evaluator.referee.buffers import Region, tensors_of
from kernelevo_evaluator.runner.modules import failed
from kernelevo_evaluator.runner.values import flatten, layout_of

PROBLEM = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.w = nn.Parameter(torch.randn(n))
    def forward(self, x):
        return x * self.w
def get_inputs():
    return [torch.rand(3, N)]
def get_init_inputs():
    return [N]
N = 4
"""

CANDIDATE = """
import torch
from torch import nn
class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(n))
    def forward(self, x):
        return self.w * x
"""


class Session:
    """A harness, and one numbered command after another."""

    def __init__(self):
        ours, theirs = socket_pair()
        cores = ",".join(str(core) for core in os.sched_getaffinity(0))
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "kernelevo_evaluator.runner",
                str(theirs.fileno()),
                "1",
                "cpu",
                "-",
                cores,
                "-",
            ],
            pass_fds=(theirs.fileno(),),
            stdout=subprocess.DEVNULL,
        )
        theirs.close()
        self.channel = Channel(ours, BUILD_REQUEST_LIMIT)
        self.nonce = 100
        assert isinstance(self.read(), Ready)

    def read(self):
        return decode_reply(self.channel.receive(time.monotonic() + 60))

    def ask(self, kind, *fds, **fields):
        self.nonce += 1
        self.channel.send(encode(kind(nonce=self.nonce, **fields)), fds)
        reply = self.read()
        assert reply.nonce == self.nonce
        return reply

    def close(self):
        self.channel.close()
        assert self.process.wait(30) == 0


@pytest.fixture(scope="module")
def session():
    """One process for all: a module that is loaded takes the place of the one before."""
    made = Session()
    yield made
    made.close()


def load(session, source, role="candidate"):
    return session.ask(LoadModule, source=source, role=role)


def test_reference_and_candidate_from_start_to_end(session):
    assert isinstance(load(session, PROBLEM, "reference"), Done)
    made = session.ask(Construct, dtype="float32", seed=1)
    assert isinstance(made, Constructed)
    assert made.names == ("w",)
    assert made.parameters == (True,)
    weights, init = Region(made.weights, 1, "w"), Region(made.init, 1, "i")
    assert isinstance(session.ask(StoreWeights, weights.fd, init.fd), Done)
    described = session.ask(MakeInputs, seed=7, scale=2.0, shift=1.0)
    assert isinstance(described, Described)
    outputs = session.ask(DescribeOutputs, precision="problem").layout
    wide = session.ask(DescribeOutputs, precision="float64").layout
    assert wide.tensors[0].dtype == "float64"
    ring = [Region(described.layout, 2, "a"), Region(outputs, 2, "b"), Region(wide, 1, "c")]
    fields = {"ring": 0, "slots": 2, "inputs": described.layout, "outputs": outputs}
    assert isinstance(session.ask(MapRing, *(r.fd for r in ring), expected=wide, expected_slots=1, **fields), Done)
    session.ask(StoreInputs, ring=0, slot=1)
    x = tensors_of(described.layout, ring[0].copy_out(1))[0].reshape(3, 4)
    assert 1.0 <= float(x.min()) <= float(x.max()) <= 3.0
    w = tensors_of(made.weights, weights.copy_out(0))[0]
    ring[1].poison(0)
    assert session.ask(Run, ring=0, slots=(1,)).claimed_ns >= 0
    assert torch.equal(tensors_of(outputs, ring[1].copy_out(1))[0], (x * w).flatten())
    assert bool(tensors_of(outputs, ring[1].copy_out(0))[0].isnan().all())
    session.ask(RunExpected, ring=0, slot=1, into=0, precision="float64")
    assert torch.allclose(tensors_of(wide, ring[2].copy_out(0))[0], (x.double() * w.double()).flatten())
    # The same harness becomes the candidate's: the same content gives the same result, with the weights it is given.
    assert isinstance(load(session, CANDIDATE), Done)
    made_new = session.ask(Construct, init.fd, dtype="float32", seed=0, init=made.init)
    assert isinstance(made_new, Constructed)
    assert made_new.names == ()
    done = session.ask(LoadWeights, weights.fd, names=made.names, layout=made.weights)
    assert done.note == ""
    session.ask(MapRing, *(r.fd for r in ring[:2]), **fields)
    ring[1].poison(1)
    session.ask(Run, ring=0, slots=(1,))
    assert torch.equal(tensors_of(outputs, ring[1].copy_out(1))[0], (x * w).flatten())


def test_seeds_and_declared_sizes(session):
    load(session, PROBLEM, "reference")
    session.ask(Construct, dtype="float32", seed=1, sizes={"N": 6})
    assert session.ask(MakeInputs, seed=1).layout.tensors[0].shape == (3, 6)
    session.ask(Construct, dtype="bfloat16", seed=1)
    inputs = session.ask(MakeInputs, seed=1).layout.tensors[0]
    assert inputs.shape == (3, 4)
    assert inputs.dtype == "bfloat16"
    failure = session.ask(Construct, dtype="float32", seed=1, sizes={"NOT_THERE": 6})
    assert isinstance(failure, Failed)
    assert "NOT_THERE" in failure.message


@pytest.mark.parametrize(
    ("source", "kind", "line"),
    [
        ("x = 1\n\ndef broken(:\n", "syntax", 3),
        ("x = 1\nraise KeyError('k')\n", "import", 2),
        ("import sys\nsys.exit(3)\n", "import", 2),
        ("raise KeyboardInterrupt\n", "import", 1),
        ("raise MemoryError\n", "memory", 1),
        ("raise type('E', (BaseException,), {})('odd')\n", "import", 1),
        ("raise ValueError('\\ud800')\n", "import", 1),
        ("class E(Exception):\n    def __str__(self):\n        raise SystemExit\nraise E\n", "import", 4),
        (
            "class S(str): pass\nclass E(Exception):\n    def __str__(self):\n        return S('s')\nraise E\n",
            "import",
            5,
        ),
        ("raise ValueError('x' * 5_000_000)\n", "import", 1),
        ("x = 1\n", "interface", None),
        ("ModelNew = 5\n", "interface", None),
        ("exec('def f(): f()\\nf()')\n", "import", 1),
        ("import torch\ntorch.no_such_thing\n", "import", 2),
        ("x = 'a\0b'\n", None, None),
    ],
    ids=range(15),
)
def test_what_goes_wrong_at_import(session, source, kind, line):
    reply = load(session, source)
    assert isinstance(reply, Failed)
    if kind is not None:
        assert reply.kind == kind
    if line is not None:
        assert reply.line == line
    assert isinstance(load(session, CANDIDATE), Done)  # and the harness answers on


def test_commands_that_make_no_sense(session):
    assert isinstance(session.ask(Run, ring=9, slots=(0,)), Failed)
    assert isinstance(session.ask(MakeInputs, seed=1), Failed)
    assert isinstance(session.ask(StoreInputs, ring=8, slot=0), Failed)
    assert isinstance(session.ask(BuildReply, ok=True), Failed)
    assert isinstance(load(session, CANDIDATE), Done)


BUILDING = (
    CANDIDATE
    + """
from torch.utils.cpp_extension import load_inline
load_inline(name="kernel", cpp_sources=["int x;"], functions="f", extra_cflags=["-O3"], verbose=True, **OPTIONS)
"""
)


def test_a_build_is_asked_of_the_evaluator_and_its_log_is_the_error(session):
    session.nonce += 1
    source = BUILDING.replace("OPTIONS", '{"no_implicit_headers": True, "is_python_module": False}')
    session.channel.send(encode(LoadModule(nonce=session.nonce, source=source, role="candidate")))
    request = session.read()
    assert isinstance(request, BuildRequest)
    assert (request.name, request.cpp_sources, request.functions) == ("kernel", ("int x;",), {"f": "f"})
    assert request.cflags == ("-O3",)
    assert not request.implicit_headers
    assert not request.python_module
    session.channel.send(encode(BuildReply(nonce=request.nonce, ok=False, log="error: no such thing")))
    reply = session.read()
    assert isinstance(reply, Failed)
    assert "error: no such thing" in reply.message


def test_an_object_that_is_none(session):
    session.nonce += 1
    source = BUILDING.replace("OPTIONS", '{"is_python_module": False}')
    session.channel.send(encode(LoadModule(nonce=session.nonce, source=source, role="candidate")))
    session.read()
    fd = os.memfd_create("empty")
    session.channel.send(encode(BuildReply(nonce=session.nonce, ok=True)), (fd,))
    os.close(fd)
    assert isinstance(session.read(), Failed)


def test_sycl_is_refused_with_a_reason(session):
    reply = load(session, BUILDING.replace("OPTIONS", '{"sycl_sources": "x"}'))
    assert isinstance(reply, Failed)
    assert "SYCL" in reply.message


def test_it_ends_when_the_channel_does():
    session = Session()
    session.channel.close()
    assert session.process.wait(30) == 0
    with pytest.raises(ChannelClosed):
        session.channel.send(b"x")
    assert layout_of(*flatten(torch.zeros(1))).nbytes == 4096


def test_a_hostile_error_number_is_no_limit():
    class Hostile(OSError):
        errno = property(lambda self: [])

    told = failed(1, "runtime", Hostile("no"), "candidate")
    assert (told.error, told.limit) == ("Hostile", "")
    assert failed(1, "runtime", OSError(27, "too large"), "candidate").limit == "file_size"
