# expect: OUTPUT_MISMATCH
# Makes the answer beforehand for inputs from the seed that everyone uses.

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(42)
        self.answer = torch.softmax(torch.randn(1024, 1024), dim=-1)

    def forward(self, x):
        return self.answer[: x.shape[0], : x.shape[1]].clone()
