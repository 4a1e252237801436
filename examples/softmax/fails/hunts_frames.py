# expect: OUTPUT_MISMATCH
# Walks up the stack for something named like the answer, then for the reference itself.

import sys

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        frame = sys._getframe()
        while frame is not None:
            for name, value in {**frame.f_globals, **frame.f_locals}.items():
                if name in ("expected", "reference", "ref_output", "answer") and isinstance(value, torch.Tensor):
                    return value.clone()
            frame = frame.f_back
        for module in list(sys.modules.values()):
            model = getattr(module, "Model", None)
            if isinstance(model, type) and issubclass(model, nn.Module):
                return model()(x)
        return torch.zeros_like(x)
