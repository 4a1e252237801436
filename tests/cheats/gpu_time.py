"""Time made up, on a GPU."""

from __future__ import annotations

from case import Case
from gpu_sources import HONEST, ROWS, rows

from kernelevo_api.types import Language

_TRUE_TIME = ("slow", "timing_disputed")
_OR_WRONG = (*_TRUE_TIME, "output_mismatch", "nondeterministic")
_OR_REFUSED = (*_OR_WRONG, "runtime_error", "load_error", "sandbox_violation", "timeout")

# Twice the work that an honest kernel does: what hides half of it shows a gain that is not there.
_TWICE = "self.compute(self.compute(x)); return self.compute(x)"


def _timed(entry: int, part: str, right: tuple[str, ...], cheat: str, twin: str = HONEST) -> Case:
    return Case(
        entry=entry,
        part=part,
        right=right,
        cheat=cheat,
        twin=twin,
        problem=ROWS,
        device="gpu",
        language=Language.TRITON,
        timed=True,
    )


_SLOTS = """
import sys
frame = sys._getframe(1)
while "command" not in frame.f_locals:
    frame = frame.f_back
ring = frame.f_locals["ring"]
"""

CASES = [
    _timed(
        1,
        "work on a side stream",
        _OR_WRONG,
        rows(
            """
            y = torch.empty_like(x)
            with torch.cuda.stream(self.side):
                for _ in range(20):
                    self.compute(x, y)
            return y
            """,
            init="self.side = torch.cuda.Stream()",
        ),
        rows(
            """
            y = torch.empty_like(x)
            self.side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.side):
                self.compute(x, y)
            torch.cuda.current_stream().wait_stream(self.side)
            return y
            """,
            init="self.side = torch.cuda.Stream()",
        ),
    ),
    _timed(
        2,
        "an empty tensor that a thread fills",
        _OR_REFUSED,
        rows(
            """
            y = torch.empty_like(x)
            threading.Timer(0.01, lambda: self.compute(x, y)).start()
            return y
            """
        ),
    ),
    *[
        _timed(4, f"{part} replaced", _OR_REFUSED, rows(_TWICE, top=top))
        for part, top in {
            "Event.elapsed_time": "torch.cuda.Event.elapsed_time = lambda *_: 1e-6",
            "Event.record": "torch.cuda.Event.record = lambda *_, **__: None",
            "synchronize": "torch.cuda.synchronize = lambda *_, **__: None",
            "time.perf_counter": "time.perf_counter = time.perf_counter_ns = lambda: 0",
            "the C function": "torch._C._cuda_synchronize = lambda *_, **__: None",
        }.items()
    ],
    _timed(
        4,
        "synchronize replaced and all work left in the queue",
        _OR_REFUSED,
        rows(
            """
            y = torch.empty_like(x)
            with torch.cuda.stream(self.side):
                torch.cuda._sleep(400_000)
                self.compute(x, y)
            return y
            """,
            top="torch.cuda.synchronize = torch._C._cuda_synchronize = lambda *_, **__: None",
            init="self.side = torch.cuda.Stream()",
        ),
    ),
    _timed(7, "slow while it is warmed up", _TRUE_TIME, rows(f"time.sleep(0.02 if self.calls < 40 else 0); {_TWICE}")),
    _timed(
        8,
        "a block's calls as one",
        # Holding a block's results takes more memory than a block has for them.
        (*_OR_WRONG, "out_of_memory"),
        rows(
            "made = self.known.pop(x.data_ptr(), None)\nif made is not None:\n    return made\n"
            + _SLOTS
            + """
inputs = [arguments[0] for arguments in ring.arguments]
if len(inputs) > 2:
    made = self.compute(torch.cat(inputs)).split(x.shape[0])
    self.known = {i.data_ptr(): m.clone() for i, m in zip(inputs, made)}
    return self.known.pop(x.data_ptr())
return self.compute(x)
"""
        ),
    ),
    _timed(
        8,
        "all but the first from memory",
        ("output_mismatch",),
        rows(
            """
            if self.calls > 60 and self.last.shape == x.shape:
                return self.last.clone()
            self.last = self.compute(x)
            return self.last
            """
        ),
    ),
    *[
        _timed(10, f"the reference slowed: {part}", _OR_REFUSED, rows(_TWICE, top=top))
        for part, top in {
            "tf32": "torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False",
            "cudnn.benchmark": "torch.backends.cudnn.benchmark = False; torch.backends.cudnn.enabled = False",
            "matmul precision": "torch.set_float32_matmul_precision('highest')",
            "default dtype": "torch.set_default_dtype(torch.float64)",
            "thread count": "torch.set_num_threads(1)",
            "a patched forward": "torch.softmax = nn.functional.softmax = lambda x, dim: (time.sleep(0.01), x.exp())[1]",
        }.items()
    ],
    _timed(
        11,
        "work left in the queue",
        _OR_REFUSED,
        rows(
            """
            y = self.compute(x)
            with torch.cuda.stream(self.side):
                torch.cuda._sleep(2_000_000)
            return y
            """,
            init="self.side = torch.cuda.Stream()",
        ),
    ),
    _timed(
        11,
        "a kernel that stays",
        _OR_REFUSED,
        rows(
            """
            if self.calls == 1:
                with torch.cuda.stream(self.side):
                    torch.cuda._sleep(1 << 62)
            return self.compute(x)
            """,
            init="self.side = torch.cuda.Stream()",
        ),
    ),
    _timed(
        12,
        "a cool device for oneself, a hot one for the baseline",
        _TRUE_TIME,
        rows(
            """
            if self.calls % 200 == 0:
                time.sleep(0.02)
            return self.compute(x) if self.calls % 2 else self.compute(self.compute(x) * 0 + x)
            """
        ),
    ),
]
