"""CuTe DSL: a row is seen as packs of four values, which a thread loads, reckons with and stores as a whole."""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import make_ptr
from torch import nn

THREADS = 256
PACK = 4


@cute.kernel
def chain_kernel(a: cute.Tensor, b: cute.Tensor, bias: cute.Tensor, y: cute.Tensor, alpha: cutlass.Float32):
    thread, _, _ = cute.arch.thread_idx()
    block, row, _ = cute.arch.block_idx()
    column = block * THREADS + thread
    if column < a.shape[1]:
        u = a[None, column, row].load()
        v = b[None, column, row].load()
        s = u + bias[None, column].load()
        low, high = cute.full_like(v, -3.0), cute.full_like(v, 3.0)
        clamped = cute.where(v > high, high, cute.where(v < low, low, v))
        d = u - v
        y[None, column, row].store(s / (1.0 + cute.math.exp(-s, fastmath=True)) * clamped + alpha * d * d)


@cute.jit
def chain(
    a: cute.Pointer,
    b: cute.Pointer,
    bias: cute.Pointer,
    y: cute.Pointer,
    rows: cutlass.Int32,
    packs: cutlass.Int32,
    alpha: cutlass.Float32,
    stream: cuda.CUstream,
):
    # Told that rows begin on whole packs, the compiler moves sixteen bytes at a time.
    layout = cute.make_layout((PACK, packs, rows), stride=(1, PACK, cute.assume(PACK * packs, divby=PACK)))
    chain_kernel(
        cute.make_tensor(a, layout),
        cute.make_tensor(b, layout),
        cute.make_tensor(bias, cute.make_layout((PACK, packs), stride=(1, PACK))),
        cute.make_tensor(y, layout),
        alpha,
    ).launch(grid=[cute.ceil_div(packs, THREADS), rows, 1], block=[THREADS, 1, 1], stream=stream)


def pointer(address):
    return make_ptr(cutlass.Float32, address, cute.AddressSpace.gmem, assumed_align=16)


compiled = cute.compile(
    chain,
    *(pointer(16) for _ in range(4)),
    cutlass.Int32(1),
    cutlass.Int32(1),
    cutlass.Float32(1.0),
    cuda.CUstream(0),
)


class ModelNew(nn.Module):
    def __init__(self, features, alpha):
        super().__init__()
        self.alpha = alpha
        self.bias = nn.Parameter(torch.empty(features))

    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        y = torch.empty_like(a)
        rows, features = a.shape
        if features % PACK or rows >= 65536:
            raise ValueError(f"fewer than 65536 rows of a multiple of {PACK} values are taken")
        compiled(
            *(pointer(tensor.data_ptr()) for tensor in (a, b, self.bias, y)),
            rows,
            features // PACK,
            self.alpha,
            cuda.CUstream(torch.cuda.current_stream().cuda_stream),
        )
        return y
