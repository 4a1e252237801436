"""The service harmed, on a GPU."""

from __future__ import annotations

from datetime import timedelta

from case import Case
from gpu_sources import HONEST, ROWS, rows

from kernelevo_api.types import Language

_HANGS = {"check_time": timedelta(seconds=6), "prepare_time": timedelta(seconds=12)}


def _case(entry: int, part: str, right: tuple[str, ...], cheat: str, **more: object) -> Case:
    fields = {"problem": ROWS, "device": "gpu", "language": Language.TRITON} | more
    return Case(entry=entry, part=part, right=right, cheat=cheat, twin=HONEST, **fields)  # type: ignore[arg-type]


CASES = [
    _case(
        30,
        "an illegal access",
        ("runtime_error", "crashed"),
        rows(
            "y = torch.empty_like(x); wild[(4096,)](y, 1 << 45); return y",
            top="""
            @triton.jit
            def wild(y, far):
                tl.store(y + far.to(tl.int64) + tl.program_id(0), 1.0)
            """,
        ),
    ),
    _case(
        31,
        "a kernel that never ends",
        ("timeout",),
        rows("torch.cuda._sleep(1 << 62); return self.compute(x)"),
        limits=_HANGS,
    ),
    _case(
        34,
        "a device memory bomb",
        ("out_of_memory", "runtime_error"),
        rows(
            "self.held = [torch.empty(1 << 30, dtype=torch.uint8, device='cuda') for _ in range(400)]; return self.compute(x)"
        ),
    ),
]
