"""A mix of small Triton candidates over four small problems: what a search sends to an evaluator, without the search."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle, islice, product

_PROBLEM = """
import torch
from torch import nn

KERNELEVO = {{"languages": ["triton"]}}


class Model(nn.Module):
    def forward(self, x):
        return {expression}


def get_inputs():
    return [torch.randn({rows}, {columns})]


def get_init_inputs():
    return []
"""

_KERNEL = """
import torch
import triton
import triton.language as tl
from torch import nn

NAME = "{name}"


@triton.jit
def kernel(x, y, rows, columns: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    for k in tl.static_range(ROWS):
        row = tl.program_id(0) * ROWS + k
        at = tl.arange(0, BLOCK)
        mask = (at < columns) & (row < rows)
        v = tl.load(x + row * columns + at, mask=mask, other={other}).to(tl.float32)
        {body}
        tl.store(y + row * columns + at, r, mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        rows, columns = x.shape
        kernel[(triton.cdiv(rows, {rows_each}),)](x, y, rows, columns, {block}, {rows_each}, num_warps={warps})
        return y
"""


@dataclass(frozen=True, slots=True)
class Member:
    """One candidate of the mix and its problem, as sources."""

    name: str
    problem: str
    candidate: str


_PROBLEMS = {
    "softmax": (
        "torch.softmax(x, dim=-1)",
        2048,
        1024,
        "-float('inf')",
        "e = tl.exp(v - tl.max(v, 0)); r = e / tl.sum(e, 0)",
    ),
    "rms_norm": (
        "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)",
        2048,
        2048,
        "0.0",
        "r = v * tl.rsqrt(tl.sum(v * v, 0) / columns + 1e-6)",
    ),
    "sigmoid_gate": ("x * torch.sigmoid(x) * 0.5 + x", 4096, 512, "0.0", "r = v / (1 + tl.exp(-v)) * 0.5 + v"),
    "center": ("x - x.mean(-1, keepdim=True)", 1024, 4096, "0.0", "r = v - tl.sum(v, 0) / columns"),
}


def problem(name: str, rows: int | None = None, columns: int | None = None) -> str:
    """Source of one of the mix's problems, at its own size or another one."""
    expression, own_rows, own_columns, *_ = _PROBLEMS[name]
    rows, columns = rows or own_rows, columns or own_columns
    return _PROBLEM.format(expression=expression, rows=rows, columns=columns)


def candidate(name: str, *, rows_each: int, warps: int, mark: str, columns: int | None = None) -> str:
    """Source of a candidate for one of them; `mark` makes it another text, so that nothing of it is cached."""
    _, _, own_columns, other, body = _PROBLEMS[name]
    return _KERNEL.format(
        name=mark, other=other, body=body, rows_each=rows_each, block=columns or own_columns, warps=warps
    )


def mix(count: int, mark: str) -> list[Member]:
    """`count` candidates: every problem in turn, each time with other parameters."""
    parameters = cycle(product((1, 2, 4), (4, 8, 2, 16)))
    members = []
    for number, name in enumerate(islice(cycle(_PROBLEMS), count)):
        if number % len(_PROBLEMS) == 0:
            rows_each, warps = next(parameters)
        label = f"{number}-{name}-{rows_each}-{warps}"
        members.append(
            Member(name, problem(name), candidate(name, rows_each=rows_each, warps=warps, mark=f"{label}-{mark}"))
        )
    return members
