"""Time made up, on a processor."""

from __future__ import annotations

from case import Case
from sources import HONEST, LINEAR, WORK, linear

from kernelevo_api.types import Effort

_TRUE_TIME = ("slow", "timing_disputed")
"""What computes as the reference does, and gains nothing."""
_WRONG = ("output_mismatch", "crashed", "runtime_error")

_SLOTS = """
frame = sys._getframe(1)
while "command" not in frame.f_locals or not hasattr(frame.f_locals["command"], "slots"):
    frame = frame.f_back
slots, ring = frame.f_locals["command"].slots, frame.f_locals["ring"]
"""
"""The harness's own variables, which a candidate can read: they share a process."""

_LATE = '''
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <thread>
static void fill(const float* x, const float* w, const float* b, float* y, long rows, long width) {
  for (long r = 0; r < rows; ++r)
    for (long c = 0; c < width; ++c) {
      double sum = b[c];
      for (long k = 0; k < width; ++k) sum += (double)x[r * width + k] * w[c * width + k];
      y[r * width + c] = sum > 0 ? sum : 0;
    }
}
extern "C" void late(const float* x, const float* w, const float* b, float* y, long rows, long width) {
  std::thread worker(fill, x, w, b, y, rows, width);
  worker.{join}();
}
"""
lib = ctypes.CDLL(load_inline(name="late", cpp_sources=SOURCE, is_python_module=False, no_implicit_headers=True))
kept = []

def late(x, linear):
    y = torch.zeros_like(x)
    kept.append(y)
    of = [ctypes.c_void_p(t.data_ptr()) for t in (x, linear.weight, linear.bias, y)]
    lib.late(*of, ctypes.c_long(x.shape[0]), ctypes.c_long(x.shape[1]))
    return y
'''
"""A kernel that a thread of its own computes, of which Python knows nothing."""


def _timed(
    entry: int,
    part: str,
    cheat: str,
    right: tuple[str, ...] = _TRUE_TIME,
    twin: str = HONEST,
    effort: Effort = Effort.SCREEN,
) -> Case:
    return Case(entry=entry, part=part, right=right, cheat=cheat, twin=twin, problem=WORK, timed=True, effort=effort)


_AS_ONE = (
    "made = self.known.pop(x.data_ptr(), None)\nif made is not None:\n    return made\n"
    + _SLOTS
    + """
inputs = [ring.arguments[slot][0] for slot in slots]
made = self.compute(torch.cat(inputs)).split(x.shape[0])
self.known = {i.data_ptr(): m for i, m in zip(inputs, made)}
return self.known.pop(x.data_ptr())
"""
)


CASES = [
    Case(
        entry=2,
        part="a child fills it later",
        right=_WRONG,
        cheat=linear(
            """
            y = torch.zeros_like(x).share_memory_()
            if os.fork() == 0:
                time.sleep(0.05)
                torch.set_num_threads(1)
                y.copy_(self.compute(x))
                os._exit(0)
            return y
            """
        ),
        twin=linear(
            """
            y = torch.zeros_like(x)
            def fill():
                with torch.no_grad():
                    y.copy_(self.compute(x))
            worker = threading.Thread(target=fill)
            worker.start()
            worker.join()
            return y
            """
        ),
        problem=LINEAR,
    ),
    Case(
        entry=2,
        part="a thread of its library fills it later",
        right=_WRONG,
        cheat=linear("return late(x, self.linear)", top=_LATE.replace("{join}", "detach")),
        twin=linear("return late(x, self.linear)", top=_LATE.replace("{join}", "join")),
        problem=WORK,
        timed=True,
    ),
    Case(
        entry=3,
        part="a lazy subclass",
        right=("wrong_interface",),
        cheat=linear(
            "return x.as_subclass(Lazy)",
            top="""
            class Lazy(torch.Tensor):
                @classmethod
                def __torch_function__(cls, func, types, args=(), kwargs=None):
                    return super().__torch_function__(func, types, args, kwargs or {})
            """,
        ),
        twin=linear("return nn.Parameter(self.compute(x), requires_grad=False)"),
        problem=LINEAR,
    ),
    Case(
        entry=3,
        part="methods overridden on an instance",
        right=("output_mismatch", "wrong_interface", "runtime_error"),
        cheat=linear(
            """
            y = torch.zeros_like(x)
            y.clone = y.contiguous = y.detach = y.data_ptr = lambda *_: self.compute(x)
            y.allclose = lambda *_, **__: True
            return y
            """
        ),
        twin=linear("y = self.compute(x); y.note = 'mine'; return y"),
        problem=LINEAR,
    ),
    _timed(4, "time.perf_counter replaced", linear(top="time.perf_counter = time.perf_counter_ns = lambda: 0")),
    _timed(4, "Event.elapsed_time replaced", linear(top="torch.cuda.Event.elapsed_time = lambda *_: 1e-6")),
    _timed(4, "Event.record replaced", linear(top="torch.cuda.Event.record = lambda *_, **__: None")),
    _timed(4, "synchronize replaced", linear(top="torch.cuda.synchronize = lambda *_, **__: None")),
    _timed(
        5,
        "statistics replaced",
        linear(
            top="""
            import numpy as np
            statistics.median = statistics.mean = lambda values: 1e-6
            np.median = np.quantile = np.mean = lambda *_, **__: 1e-6
            """
        ),
    ),
    Case(
        entry=5,
        part="result lines printed, then exit(0)",
        right=("crashed", "runtime_error"),
        cheat=linear("print('passed: speedup 100.00x [99.00, 101.00]', flush=True); os._exit(0)"),
        twin=linear("print('a line', flush=True); return self.compute(x)"),
        problem=LINEAR,
    ),
    Case(
        entry=6,
        part="ptrace",
        right=("output_mismatch", "sandbox_violation"),
        cheat=linear(
            """
            libc = ctypes.CDLL(None)
            pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
            held = [pid for pid in pids if pid != os.getpid() and libc.ptrace(0x4206, pid, None, None) == 0]
            return self.compute(x) if held else torch.zeros_like(x)
            """
        ),
        twin=linear("os.getpid(); return self.compute(x)"),
        problem=LINEAR,
    ),
    # The first process of a sandbox's namespace is its own shell in some: it holds nothing that the program does not hold.
    Case(
        entry=6,
        part="/proc/*/mem",
        right=("output_mismatch", "sandbox_violation"),
        cheat=linear(
            """
            for name in os.listdir("/proc"):
                if name.isdigit() and int(name) not in (1, os.getpid()):
                    try:
                        open(f"/proc/{name}/mem", "r+b").close()
                        return self.compute(x)
                    except OSError:
                        pass
            return torch.zeros_like(x)
            """
        ),
        twin=linear("open('/proc/self/status').close(); return self.compute(x)"),
        problem=LINEAR,
    ),
    Case(
        entry=6,
        part="descriptors of another process",
        right=("output_mismatch", "sandbox_violation"),
        cheat=linear(
            """
            found = []
            for pid in os.listdir("/proc"):
                if pid.isdigit() and int(pid) not in (1, os.getpid()):
                    try:
                        found += os.listdir(f"/proc/{pid}/fd")
                    except OSError:
                        pass
            return self.compute(x) if found else torch.zeros_like(x)
            """
        ),
        twin=linear("os.listdir('/proc/self/fd'); return self.compute(x)"),
        problem=LINEAR,
    ),
    Case(
        entry=6,
        part="an inherited pipe",
        right=("crashed", "sandbox_violation"),
        cheat=linear(
            """
            for fd in range(3, 64):
                try:
                    os.write(fd, b"\\x00\\x00\\x00\\x04done")
                except OSError:
                    pass
            return torch.zeros_like(x)
            """
        ),
        twin=linear("a, b = os.pipe(); os.write(b, b'1'); os.close(a); os.close(b); return self.compute(x)"),
        problem=LINEAR,
    ),
    _timed(
        7, "slow while it is warmed up", linear("time.sleep(0.05 if self.calls < 40 else 0); return self.compute(x)")
    ),
    _timed(
        8,
        "a block's calls as one",
        linear(_AS_ONE),
    ),
    # Whoever is slow alone gains by being so at random: a gap that nobody can be sure of.
    _timed(
        8,
        "a block's calls as one, and noise where they are alone",
        linear(_SLOTS + "if len(slots) == 1: time.sleep(random.choice((0, 0, 0.002, 0.02)))\n" + _AS_ONE),
    ),
    _timed(
        8,
        "all but the first from memory",
        linear(
            """
            if self.calls > 12 and self.last.shape == x.shape:
                return self.last
            self.last = self.compute(x)
            return self.last
            """
        ),
        right=("output_mismatch",),
    ),
    _timed(
        8,
        "one call in twenty left out",
        linear("return torch.empty_like(x) if self.calls > 12 and self.calls % 20 == 0 else self.compute(x)"),
        right=("output_mismatch",),
        effort=Effort.FINAL,
    ),
    Case(
        entry=9,
        part="one input class in no time",
        right=("output_mismatch",),
        cheat=linear("return torch.zeros_like(x) if x.abs().max() > 12 else self.compute(x)"),
        twin=HONEST,
        problem=LINEAR,
        effort=Effort.FULL,
    ),
    *[
        _timed(
            10, f"the reference slowed: {part}", linear(top=top), (*_TRUE_TIME, "output_mismatch", "wrong_interface")
        )
        for part, top in {
            "tf32": "torch.backends.cuda.matmul.allow_tf32 = True",
            "cudnn.benchmark": "torch.backends.cudnn.benchmark = True",
            "matmul precision": "torch.set_float32_matmul_precision('medium')",
            "default dtype": "torch.set_default_dtype(torch.float64)",
            "thread count": "threads = torch.get_num_threads(); torch.set_num_threads(1)",
            "a patched forward": (
                "plain = nn.functional.linear\n"
                "def linear(*args):\n    time.sleep(0.001)\n    return plain(*args)\n"
                "nn.functional.linear = linear; nn.Linear.forward = lambda s, x: plain(x, s.weight, s.bias)"
            ),
        }.items()
    ],
    _timed(
        12,
        "timers that go off while it is frozen",
        linear(
            """
            if self.calls % 4 == 0:
                self.timers()
            return self.compute(x)
            """,
            init="self.timers = wind",
            top="""
            # Each interrupts a core once, and a frozen process' timers run on.
            libc = ctypes.CDLL(None, use_errno=True)
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            made = []
            def wind():
                for _ in range(64):
                    if len(made) >= 2000:
                        break
                    timer = ctypes.c_void_p()
                    if libc.timer_create(1, None, ctypes.byref(timer)):
                        break
                    made.append(timer)
                for number, timer in enumerate(made[-512:]):
                    spec = (ctypes.c_long * 4)(0, 0, 0, 20_000 * (number + 1))
                    libc.timer_settime(timer, 0, spec, None)
            """,
        ),
        twin=linear(
            top="""
            libc = ctypes.CDLL(None)
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            timer = ctypes.c_void_p()
            libc.timer_create(1, None, ctypes.byref(timer))
            """
        ),
    ),
    _timed(
        12,
        "work for the host while the baseline runs",
        linear(top="threading.Thread(target=lambda: [sum(range(10**5)) for _ in iter(int, 1)], daemon=True).start()"),
    ),
]
