"""What is ours is tried once more: a fault of the executor's own says nothing of the candidate."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import structlog

from kernelevo_api.errors import EvaluatorFault
from kernelevo_api.types import Stage
from kernelevo_evaluator.executor import ExecutorFault

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kernelevo_evaluator.executor import ProgressCallback

T = TypeVar("T")

_log = structlog.get_logger("kernelevo.evaluator")


async def once_more(attempt: Callable[[], Awaitable[T]], progress: ProgressCallback, what: str) -> T:
    """Carry `attempt` out, and once more after a fault of the executor's own.

    Raises:
        EvaluatorFault: it failed twice.
    """
    try:
        return await attempt()
    except ExecutorFault as fault:
        _log.warning("fault", what=what, message=str(fault))
        progress(Stage.QUEUE, "a fault of the evaluator's own; trying once more")
    try:
        return await attempt()
    except ExecutorFault as fault:
        raise EvaluatorFault(f"the evaluator failed twice: {fault}") from fault
