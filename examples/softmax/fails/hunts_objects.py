# expect: OUTPUT_MISMATCH
# Looks among all objects of the process for a tensor that could be the expected output.

import gc

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        for found in gc.get_objects():
            if type(found) is torch.Tensor and found.shape == x.shape and found.data_ptr() != x.data_ptr():
                return found.clone()
        return torch.zeros_like(x)
