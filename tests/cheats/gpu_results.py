"""Results made up, on a GPU."""

from __future__ import annotations

from case import Case
from gpu_sources import HONEST, PRODUCT, ROWS, TF32, cuda_rows, product, rows

from kernelevo_api.types import Effort, Language

_WRONG = ("output_mismatch", "nondeterministic")


def _case(entry: int, part: str, right: tuple[str, ...], cheat: str, twin: str = HONEST, **more: object) -> Case:
    fields = {"problem": ROWS, "device": "gpu", "language": Language.TRITON} | more
    return Case(entry=entry, part=part, right=right, cheat=cheat, twin=twin, **fields)  # type: ignore[arg-type]


_NOTES = """
y = torch.empty_like(x)
notes = torch.empty({notes}, device=x.device)
noted[(x.shape[0],)](x, y, notes, x.shape[1])
return y
"""
_NOTED = """
@triton.jit
def noted(x, y, notes, columns: tl.constexpr):
    row = tl.program_id(0)
    at = row * columns + tl.arange(0, columns)
    v = tl.load(x + at)
    e = tl.exp(v - tl.max(v, 0))
    total = tl.sum(e, 0)
    tl.store(notes + row + 1, total)
    tl.store(y + at, e / total)
"""
"""A softmax that notes each row's sum one place too far: the allocator's blocks have room behind them."""

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
                # Two factors of 256 KiB. In TF32: unrolled multiply-adds would keep the compiler busy for minutes,
                # and nothing would be launched at all.
                i = tl.arange(0, 128)
                k = tl.arange(0, 512)
                a = tl.load(x + i[:, None] * columns + k[None, :])
                b = tl.load(x + k[:, None] * columns + i[None, :])
                tl.store(y + i[:, None] * columns + i[None, :], tl.dot(a, b, input_precision="tf32"))
            """,
        ),
    ),
    _case(
        17,
        "too much shared memory, by CUDA, which tells nobody",
        (*_WRONG, "runtime_error"),
        cuda_rows(shared="300 * 1024"),
        cuda_rows(),
        language=Language.CUDA_INLINE,
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
    _case(
        18,
        "replay from a __device__ buffer",
        _WRONG,
        cuda_rows(
            more="__device__ float kept[1 << 22];\nstatic bool known = false;",
            launch="""float* k; cudaGetSymbolAddress((void**)&k, kept);
  if (!known) rows<<<n, 64, {shared}, stream>>>(x, k, columns);
  known = true;
  cudaMemcpyAsync(y, k, size_t(n) * columns * sizeof(float), cudaMemcpyDeviceToDevice, stream);""",
        ),
        cuda_rows(
            more="__device__ float kept[1 << 22];",
            launch="""float* k; cudaGetSymbolAddress((void**)&k, kept);
  rows<<<n, 64, {shared}, stream>>>(x, k, columns);
  cudaMemcpyAsync(y, k, size_t(n) * columns * sizeof(float), cudaMemcpyDeviceToDevice, stream);""",
        ),
        language=Language.CUDA_INLINE,
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
    # What follows passes whatever is compared: only the deep check of a `final` can tell.
    _case(
        25,
        "a race that time hides",
        (*_WRONG, "finding:data_race"),
        # The first warp's sums are there long before the second one looks at them, and the other way round.
        cuda_rows(sync="for (const long long until = clock64() + 20000; clock64() < until;) {}"),
        cuda_rows(),
        language=Language.CUDA_INLINE,
        effort=Effort.FINAL,
    ),
    _case(
        25,
        "a write beyond the end that hits nobody",
        (*_WRONG, "runtime_error", "finding:memory_fault"),
        rows(_NOTES.replace("{notes}", "x.shape[0]"), top=_NOTED),
        rows(_NOTES.replace("{notes}", "x.shape[0] + 1"), top=_NOTED),
        effort=Effort.FINAL,
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
