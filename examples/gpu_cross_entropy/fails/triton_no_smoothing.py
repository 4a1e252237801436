# expect: OUTPUT_MISMATCH
# The plain cross-entropy: the share of the loss that goes to the other labels is left out.

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def cross_entropy(logits, targets, losses, vocabulary, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    start = logits + row.to(tl.int64) * vocabulary
    column = tl.arange(0, BLOCK)
    largest = tl.full((BLOCK,), -3.0e38, dtype=tl.float32)
    powers = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, vocabulary, BLOCK):
        v = tl.load(start + first + column, mask=column < vocabulary - first, other=float("-inf"))
        now = tl.maximum(largest, v)
        powers = powers * tl.exp(largest - now) + tl.exp(v - now)
        largest = now
    highest = tl.max(largest, axis=0)
    log_sum = highest + tl.log(tl.sum(powers * tl.exp(largest - highest), axis=0))
    tl.store(losses + row, log_sum - tl.load(start + tl.load(targets + row)))


class ModelNew(nn.Module):
    def __init__(self, smoothing):
        super().__init__()

    def forward(self, logits, targets):
        rows, vocabulary = logits.shape
        losses = logits.new_empty(rows)
        cross_entropy[(rows,)](logits, targets, losses, vocabulary, BLOCK=4096, num_warps=8)
        return losses
