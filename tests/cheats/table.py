"""All cases, in the order of the collection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cpu_results
import cpu_service
import cpu_time
import gpu_results
import gpu_service
import gpu_time

if TYPE_CHECKING:
    from case import Case

CASES: list[Case] = sorted(
    [
        case
        for module in (cpu_time, cpu_results, cpu_service, gpu_time, gpu_results, gpu_service)
        for case in module.CASES
    ],
    key=lambda case: (case.entry, case.device),
)


def of(device: str) -> list[Case]:
    """The cases of "cpu" or "gpu"."""
    return [case for case in CASES if case.device == device]
