# expect: OUTPUT_MISMATCH
# Captures its kernel into a CUDA graph over the inputs of the first call, and replays that for every later one.

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def add_rms_norm(x, residual, weight, y, features, eps, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < features
    at = tl.program_id(0) * features + column
    v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) + tl.load(residual + at, mask=inside, other=0.0).to(
        tl.float32
    )
    scale = tl.rsqrt(tl.sum(v * v, axis=0) / features + eps)
    tl.store(y + at, v * scale * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32), mask=inside)


graphs = {}


class ModelNew(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(features))

    def launch(self, x, residual, y):
        rows, features = x.shape
        add_rms_norm[(rows,)](
            x, residual, self.weight, y, features, self.eps, BLOCK=triton.next_power_of_2(features), num_warps=16
        )

    def forward(self, x, residual):
        if x.shape not in graphs:
            kept = x.clone(), residual.clone(), torch.empty_like(x)
            self.launch(*kept)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.launch(*kept)
            graphs[x.shape] = graph, kept
        graph, (_, _, y) = graphs[x.shape]
        graph.replay()
        return y
