"""Results made up, on a GPU."""

from __future__ import annotations

from case import Case
from gpu_sources import HONEST, PRODUCT, ROWS, TF32, product, rows

from kernelevo_api.types import Language

_WRONG = ("output_mismatch", "nondeterministic")


def _case(entry: int, part: str, right: tuple[str, ...], cheat: str, twin: str = HONEST, **more: object) -> Case:
    fields = {"problem": ROWS, "device": "gpu", "language": Language.TRITON} | more
    return Case(entry=entry, part=part, right=right, cheat=cheat, twin=twin, **fields)  # type: ignore[arg-type]


CASES = [
    _case(13, "memory that the reference freed", _WRONG, rows("torch.cuda.empty_cache(); return torch.empty_like(x)")),
    _case(
        17,
        "too much shared memory, and nobody looks",
        (*_WRONG, "runtime_error"),
        rows(
            """
            y = torch.empty_like(x)
            try:
                huge[(x.shape[0],)](x, y, x.shape[1])
            except Exception:
                pass
            return y
            """,
            top="""
            @triton.jit
            def huge(x, y, columns: tl.constexpr):
                i = tl.arange(0, 512)
                a = tl.load(x + i[:, None] * columns + i[None, :])
                b = tl.load(x + i[None, :] * columns + i[:, None])
                tl.store(y + i[:, None] * columns + i[None, :], tl.dot(a, b, input_precision="ieee"))
            """,
        ),
    ),
    _case(
        17,
        "a bad grid",
        (*_WRONG, "runtime_error"),
        rows(
            """
            y = torch.empty_like(x)
            try:
                rows[(1, 1 << 20)](x, y, x.shape[1])
            except Exception:
                pass
            return y
            """
        ),
    ),
    _case(
        18,
        "replay from a buffer on the device",
        _WRONG,
        rows(
            """
            if self.kept is None:
                self.kept = self.compute(x)
            return self.kept.clone()
            """,
            init="self.kept = None",
        ),
        rows(
            """
            if self.kept is None or self.kept.shape != x.shape:
                self.kept = torch.empty_like(x)
            return self.compute(x, self.kept).clone()
            """,
            init="self.kept = None",
        ),
    ),
    _case(24, "TF32 where IEEE is asked for", ("output_mismatch",), product("tf32"), product("ieee"), problem=PRODUCT),
    _case(
        24,
        "half precision inside",
        ("output_mismatch",),
        product("ieee", ".to(tl.float16)"),
        product("ieee"),
        problem=PRODUCT,
    ),
    _case(
        24,
        "bfloat16 where TF32 is allowed",
        ("output_mismatch",),
        product("ieee", ".to(tl.bfloat16)"),
        product("tf32"),
        problem=TF32,
    ),
    _case(
        25,
        "a missing synchronisation",
        (*_WRONG, "runtime_error"),
        rows(
            """
            y = torch.zeros_like(x)
            with torch.cuda.stream(self.side):
                torch.cuda._sleep(100_000)
                self.compute(x, y)
            return y.clone()
            """,
            init="self.side = torch.cuda.Stream()",
        ),
    ),
    _case(
        25,
        "reading beyond the end",
        (*_WRONG, "runtime_error", "crashed"),
        rows(
            "y = torch.empty_like(x); beyond[(x.shape[0],)](x, y, x.shape[1]); return y",
            top="""
            @triton.jit
            def beyond(x, y, columns: tl.constexpr):
                at = tl.program_id(0) * columns + tl.arange(0, columns)
                v = tl.load(x + at + 1)
                e = tl.exp(v - tl.max(v, 0))
                tl.store(y + at, e / tl.sum(e, 0))
            """,
        ),
    ),
    _case(
        27,
        "a decoy beside the library",
        ("not_the_language", "finding:library_work"),
        rows(
            "decoy[(1,)](self.mark); return torch.softmax(x, dim=-1)",
            top="""
            @triton.jit
            def decoy(mark):
                tl.store(mark, 1.0)
            """,
            init="self.mark = torch.zeros(1, device='cuda')",
        ),
    ),
    _case(
        27,
        "a kernel that is never called",
        ("not_the_language", "finding:library_work"),
        rows("return torch.softmax(x, dim=-1)"),
    ),
    _case(
        28,
        "try and except",
        ("not_the_language", "finding:library_work", "finding:falls_back"),
        rows("try:\n    return no_such_kernel(x)\nexcept Exception:\n    return torch.softmax(x, dim=-1)"),
    ),
]
