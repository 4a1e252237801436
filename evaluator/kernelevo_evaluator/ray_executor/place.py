"""What a worker has of its host beside its GPU: a share of the cores, so that lanes of one host do not time on the same ones.

Ray gives a worker one GPU and hides the others; cores it only counts. Knows nothing of Ray.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kernelevo_evaluator.lanes.gpu import NoGpu, find_gpus, share_cpus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelevo_evaluator.lanes.gpu import Gpu

_HIDES = "CUDA_VISIBLE_DEVICES"


def cores_of_lane(
    lanes: int, usable: frozenset[int], given: Sequence[frozenset[int]] | None = None, *, gpu: bool = True
) -> frozenset[int]:
    """The cores of this process' lane, of several on its host; CUDA_VISIBLE_DEVICES says which one it is.

    Args:
        lanes: how many the cluster counts on this host.
        usable: cores that a process may use here.
        given: cores of each lane, where a person has said so.
        gpu: whether devices are GPUs, rather than GPUs in name only.
    """
    visible = os.environ.get(_HIDES, "")
    mine, gpus = _gpus() if gpu else (None, ())
    if mine is not None:
        number, shares = gpus.index(mine), share_cpus(gpus, usable)
    elif visible.isdecimal():
        number, shares = int(visible), _even(usable, lanes)
    else:
        # A part of a GPU that NVML does not show, or none: nobody can tell which of them this is.
        number, shares = 0, (usable,)
    shares = tuple(given or shares)
    return shares[number % len(shares)]


def _gpus() -> tuple[Gpu | None, tuple[Gpu, ...]]:
    """The GPU that this process may use, if that is one, and all of its host."""
    hidden = os.environ.get(_HIDES)
    try:
        mine = find_gpus()
        os.environ.pop(_HIDES, None)
        everyone = find_gpus()
    except NoGpu:
        return None, ()
    finally:
        if hidden is not None:
            os.environ[_HIDES] = hidden
    return (mine[0] if len(mine) == 1 else None), everyone


def _even(cores: frozenset[int], count: int) -> tuple[frozenset[int], ...]:
    ordered, count = sorted(cores), max(1, count)
    shares = (ordered[n * len(ordered) // count : (n + 1) * len(ordered) // count] for n in range(count))
    return tuple(frozenset(share or ordered) for share in shares)
