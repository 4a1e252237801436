# expect: LOAD_ERROR
# Imports what is not there, and cannot be fetched.

import a_package_that_nobody_has_written
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x
