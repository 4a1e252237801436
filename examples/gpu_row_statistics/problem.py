"""What a sampler wants to know of each row of logits: the best entry, its probability, and the entropy of the row."""

import torch
from torch import nn

rows = 6144
columns = 8192

KERNELEVO = {
    "languages": ["triton", "cuda_inline", "pycuda", "cute"],
    "shapes": [{"rows": 6, "columns": 1500}],
}


class Model(nn.Module):
    def forward(self, x):
        """x: (rows, columns) -> int64 index (the first, where several are equal), probability, entropy in nats: each (rows,)."""
        log_p = torch.log_softmax(x, dim=-1)
        p = log_p.exp()
        return x.argmax(dim=-1), p.amax(dim=-1), -(p * log_p).sum(dim=-1)


def get_inputs():
    return [torch.randn(rows, columns)]


def get_init_inputs():
    return []
