"""Cross-entropy with label smoothing over a large vocabulary, one loss for each row."""

import torch
import torch.nn.functional as F
from torch import nn

rows = 2048
vocabulary = 32000

KERNELEVO = {
    "languages": ["triton", "cuda_inline", "pycuda", "cute"],
    "shapes": [{"rows": 5, "vocabulary": 10007}],
}


class Model(nn.Module):
    def __init__(self, smoothing):
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits, targets):
        """logits: (rows, vocabulary), targets: int64 (rows,) -> (rows,)."""
        return F.cross_entropy(logits, targets, label_smoothing=self.smoothing, reduction="none")


def get_inputs():
    return [torch.randn(rows, vocabulary), torch.randint(0, vocabulary, (rows,))]


def get_init_inputs():
    return [0.1]
