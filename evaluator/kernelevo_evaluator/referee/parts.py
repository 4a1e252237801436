"""Parts of an output, each with a bound of its own.

A norm over the whole says nothing about what is small beside the rest: where one column is a million times as large as the
others, zeros in all of these are lost in its rounding. So the norm-wise bound holds in every slice along every dimension, in
every row of the last one, and in every tile of `TILE` neighbours. Parts have `SMALLEST` elements at least: the error of fewer,
over their own size, has no typical value, since each may come near zero by cancellation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

TILE = 64
SMALLEST = 16
NEGLIGIBLE = 1e-3
"""A part whose typical value is less than this much of the whole's is measured as if it had that size: what is nothing beside
the rest may be nothing, or nearly."""


def worst_parts(error: torch.Tensor, size: torch.Tensor) -> dict[str, float]:
    """|error| / |size| in the part where it is largest, for each family of parts that there is.

    Of absolute values of one shape and floating dtype, all of them finite. Empty where nothing has parts or a size.
    """
    numel = error.numel()
    largest = float(size.max()) if numel else 0.0
    if numel < 2 * SMALLEST or largest == 0.0:
        return {}
    # Over the largest value, so that no square leaves the dtype's range.
    squares, sizes = (error / largest).square_(), (size / largest).square_()
    floor = NEGLIGIBLE**2 * float(sizes.sum()) / numel
    return {
        name: float((off / (scale + floor * count)).max()) ** 0.5
        for name, off, scale, count in _families(squares, sizes)
    }


def _families(squares: torch.Tensor, sizes: torch.Tensor) -> Iterator[tuple[str, torch.Tensor, torch.Tensor, int]]:
    """Name, sums over the parts, of both, and how many elements a part has, of each family."""
    shape, numel = squares.shape, squares.numel()
    last = shape[-1]
    if SMALLEST <= last < numel:
        yield "rows", squares.sum(-1), sizes.sum(-1), last
    for dim, extent in enumerate(shape):
        count = numel // extent
        if extent == 1 or count < SMALLEST or (len(shape) == 2 and dim == 0):
            continue  # of a matrix, the slices along the first dimension are its rows
        others = [d for d in range(len(shape)) if d != dim]
        if others:
            yield f"slices of dimension {dim}", squares.sum(others), sizes.sum(others), count
    if numel > TILE:
        flat, flats, whole = squares.reshape(-1), sizes.reshape(-1), numel - numel % TILE
        yield "tiles", flat[:whole].view(-1, TILE).sum(1), flats[:whole].view(-1, TILE).sum(1), TILE
        yield "last tile", flat[-TILE:].sum(), flats[-TILE:].sum(), TILE
