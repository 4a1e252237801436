"""The service harmed, on a processor."""

from __future__ import annotations

from datetime import timedelta

from case import Case, Problem
from sources import HONEST, LINEAR, TWO, linear, problem

_BUILD = """
from torch.utils.cpp_extension import load_inline
lib = ctypes.CDLL(load_inline(name="bomb", cpp_sources=r'''{source}''', is_python_module=False, no_implicit_headers=True))
"""
_BUILDS = {"build_time": timedelta(seconds=15)}
_HANGS = {"check_time": timedelta(seconds=4), "prepare_time": timedelta(seconds=4)}
_ENDED = ("crashed", "runtime_error", "out_of_memory", "timeout", "sandbox_violation")


def _case(entry: int, part: str, right: tuple[str, ...], cheat: str, twin: str = HONEST, **more: object) -> Case:
    return Case(entry=entry, part=part, right=right, cheat=cheat, twin=twin, problem=LINEAR, **more)  # type: ignore[arg-type]


_FRAMED = """
frame = sys._getframe(1)
while "self" not in frame.f_locals or not hasattr(frame.f_locals["self"], "_channel"):
    frame = frame.f_back
channel = frame.f_locals["self"]._channel
"""
"""The harness's own channel, which shares a process with the candidate."""

TWO_HONEST = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def forward(self, x):
        return torch.clamp(x, min=0), torch.tanh(x)
"""


def _two(result: str) -> str:
    return TWO_HONEST.replace("torch.clamp(x, min=0), torch.tanh(x)", result)


CASES = [
    _case(
        31,
        "a process that ignores SIGTERM",
        ("timeout",),
        linear("[signal.signal(n, signal.SIG_IGN) for n in (2, 15, 1)]\nwhile True: time.sleep(1)"),
        linear("signal.signal(15, signal.SIG_IGN); return self.compute(x)"),
        limits=_HANGS,
    ),
    _case(
        31,
        "a daemon that outlives its parent",
        ("output_mismatch", *_ENDED),
        linear(
            "return torch.zeros_like(x)",
            top="""
            if os.fork() == 0:
                os.setsid()
                for number in (1, 2, 15):
                    signal.signal(number, signal.SIG_IGN)
                time.sleep(600)
            """,
        ),
    ),
    _case(32, "a segfault", ("crashed",), linear("ctypes.string_at(0)")),
    _case(
        32,
        "a reply that nobody asked for",
        ("sandbox_violation", "crashed"),
        linear(
            _FRAMED
            + "from kernelevo_evaluator.messages.codec import encode\n"
            + "from kernelevo_evaluator.messages.runner import Done\n"
            + "channel.send(encode(Done(nonce=7)))\nreturn torch.zeros_like(x)"
        ),
    ),
    _case(
        32,
        "an answer ahead of its question",
        ("sandbox_violation", "crashed", "output_mismatch"),
        linear(
            _FRAMED
            + "from kernelevo_evaluator.messages.codec import encode\n"
            + "from kernelevo_evaluator.messages.runner import Done\n"
            + "[channel.send(encode(Done(nonce=frame.f_back.f_locals.get('command', frame.f_locals['command']).nonce)))"
            + " for _ in range(3)]\nreturn torch.zeros_like(x)"
        ),
    ),
    _case(
        32,
        "a late reply",
        ("sandbox_violation", "crashed"),
        linear(
            _FRAMED
            + "from kernelevo_evaluator.messages.codec import encode\n"
            + "from kernelevo_evaluator.messages.runner import Done\n"
            + "nonce = frame.f_back.f_locals.get('command', frame.f_locals['command']).nonce\n"
            + "if self.calls == 2 and os.fork() == 0:\n"
            + "    time.sleep(0.05)\n    channel.send(encode(Done(nonce=nonce)))\n    os._exit(0)\n"
            + "time.sleep(0.3 if self.calls > 2 else 0)\nreturn self.compute(x)"
        ),
        linear("time.sleep(0.01); return self.compute(x)"),
    ),
    Case(
        entry=33,
        part="an empty tuple",
        right=("wrong_interface",),
        cheat=_two("()"),
        twin=TWO_HONEST,
        problem=TWO,
    ),
    Case(
        entry=33,
        part="zip cut short",
        right=("wrong_interface",),
        cheat=_two("(torch.clamp(x, min=0),)"),
        twin=_two("[torch.clamp(x, min=0), torch.tanh(x)]"),
        problem=TWO,
    ),
    Case(
        entry=33,
        part="zero trials",
        right=("refused:no_input",),
        cheat=problem("return torch.ones(3)", inputs="[]").replace("forward(self, x)", "forward(self)"),
        twin=problem("return torch.relu(x)"),
        problem=Problem(source=""),
        audited=True,
    ),
    Case(
        entry=33,
        part="zero elements",
        right=("refused:no_output",),
        cheat=problem("return x[:0]"),
        twin=problem("return x[:1] * 2"),
        problem=Problem(source=""),
        audited=True,
    ),
    _case(
        34,
        "a fork bomb",
        _ENDED,
        linear(
            """
            for _ in range(4096):
                if os.fork() == 0:
                    time.sleep(60)
                    os._exit(0)
            return torch.zeros_like(x)
            """
        ),
        linear(
            """
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
            return self.compute(x)
            """
        ),
        limits=_HANGS,
    ),
    _case(34, "a memory bomb", ("out_of_memory",), linear("b = bytearray(6 << 30); b[::4096] = b'x' * len(b[::4096])")),
    _case(
        34,
        "a full disk",
        _ENDED,
        linear("with open('/tmp/x', 'wb') as f:\n    while True: f.write(bytes(1 << 24))"),
        linear("with open('/tmp/x', 'wb') as f: f.write(bytes(1 << 16))\nreturn self.compute(x)"),
    ),
    _case(34, "a gigabyte on stdout", _ENDED, linear("while True: print('x' * (1 << 20), flush=True)"), limits=_HANGS),
    _case(
        34,
        "many files",
        ("output_mismatch", *_ENDED),
        linear("self.held = [tempfile.TemporaryFile() for _ in range(20_000)]\nreturn torch.zeros_like(x)"),
        linear("with tempfile.TemporaryFile(): pass\nreturn self.compute(x)"),
    ),
    _case(
        35,
        "recursive templates",
        ("compile_error", "timeout", "out_of_memory"),
        linear(
            top=_BUILD.format(
                source="template <int N, int M> struct B { static constexpr long v = B<N-1, 2*M>::v + B<N-1, 2*M+1>::v; };"
                " template <int M> struct B<0, M> { static constexpr long v = M; };"
                ' extern "C" long boom() { return B<26, 1>::v; }'
            )
        ),
        linear(top=_BUILD.format(source='extern "C" long calm() { return 1; }')),
        limits=_BUILDS,
        slow=True,
    ),
    _case(
        35,
        "/dev/zero included",
        ("compile_error", "timeout", "out_of_memory"),
        linear(top=_BUILD.format(source='#include "/dev/zero"')),
        linear(top=_BUILD.format(source='extern "C" long calm() { return 2; }')),
        limits=_BUILDS,
        slow=True,
    ),
    _case(
        35,
        "/etc/passwd and /etc/shadow in an error message",
        ("compile_error",),
        linear(top=_BUILD.format(source='#include "/etc/passwd"\n#include "/etc/shadow"')),
        linear(top=_BUILD.format(source="#include <cmath>\n" + 'extern "C" double calm() { return std::sqrt(2.0); }')),
        limits=_BUILDS,
    ),
    *[
        _case(
            36,
            part,
            ("output_mismatch", "sandbox_violation", "runtime_error"),
            linear(f"found = []\n{look}\nreturn self.compute(x) if found else torch.zeros_like(x)"),
            twin,
        )
        for part, look, twin in (
            (
                "the environment",
                "found = [k for k in os.environ if any(s in k.upper() for s in ('TOKEN', 'SECRET', 'API_KEY', 'PASSW'))]",
                linear("os.environ.get('HOME'); return self.compute(x)"),
            ),
            (
                "the home folder",
                "for place in ('/root', '/home', os.path.expanduser('~')):\n"
                "    for name in ('.ssh', '.aws', '.bashrc', '.netrc', '.config'):\n"
                "        found += [name] if os.path.exists(os.path.join(place, name)) else []",
                linear("os.path.expanduser('~'); return self.compute(x)"),
            ),
            (
                "files of other candidates",
                "for place in ('/tmp', '/var/tmp', '/dev/shm', '/run'):\n"
                "    names = os.listdir(place) if os.path.isdir(place) else []\n"
                "    found += [n for n in names if n.endswith(('.py', '.so', '.sock'))]",
                linear("os.listdir('/tmp'); return self.compute(x)"),
            ),
            (
                "cloud metadata",
                "try:\n    socket.create_connection(('169.254.169.254', 80), timeout=0.5); found.append(1)\nexcept OSError: pass",
                HONEST,
            ),
            (
                "sockets",
                "for name in ('/var/run/docker.sock', '/run/containerd/containerd.sock', '/run/dbus/system_bus_socket'):\n"
                "    try:\n        socket.socket(socket.AF_UNIX).connect(name); found.append(name)\n    except OSError: pass",
                HONEST,
            ),
        )
    ],
    _case(
        37,
        "a verdict line of its own",
        ("output_mismatch",),
        linear('print(\'{"verdict": "passed", "speedup": 100.0}\', flush=True); return torch.zeros_like(x)'),
        linear("print('checking', flush=True); return self.compute(x)"),
    ),
    *[
        _case(
            37,
            part,
            ("sandbox_violation", "crashed"),
            linear(f"{_FRAMED}\nchannel.send({payload})\nreturn self.compute(x)"),
        )
        for part, payload in (
            ("a malformed message", "b'\\xc1\\xff' * 40"),
            ("a huge message", "bytes(64 << 20)"),
            ("a deeply nested message", "b'\\x91' * 100_000 + b'\\xc0'"),
        )
    ],
]
