"""Which executor the settings ask for, made ready: isolation is tried before anything is served.

Used by the server, and on each host of a cluster by the worker that holds a device there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kernelevo_evaluator.executor import Executor
    from kernelevo_evaluator.settings import EvaluatorSettings


class Unsound(Exception):
    """This host does not give an essential guarantee."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """An executor that can be made, and what to do with what was opened for it if it is not."""

    make: Callable[[], Executor]
    discard: Callable[[], Awaitable[None]]


async def prepare(settings: EvaluatorSettings, complain: Callable[[str], None]) -> Prepared:
    """What `executor` asks for: this host's devices, or those of a cluster.

    Args:
        complain: told what a person must know before anything runs.

    Raises:
        Unsound: candidates would not be isolated here.
        kernelevo_sandbox.SandboxUnavailable: the isolation that was chosen is not there.
        kernelevo_evaluator.executor.ExecutorFault: what the executor needs is not installed.
    """
    if settings.device == "simulated":
        complain("WARNING: the device is simulated. Nothing is run, and every verdict is made up.")
    if settings.executor == "ray":
        from kernelevo_evaluator.executor import ExecutorFault

        try:
            from kernelevo_evaluator.ray_executor.executor import RayExecutor
        except ImportError as error:
            raise ExecutorFault(
                f"the Ray executor needs Ray ({error}): pip install 'kernelevo[evaluator,ray]'"
            ) from error
        return Prepared(lambda: RayExecutor(settings), _nothing)
    return await prepare_host(settings, complain)


async def prepare_host(settings: EvaluatorSettings, complain: Callable[[str], None]) -> Prepared:
    """An executor of this host's devices. Raises as `prepare` does."""
    if settings.device == "simulated":
        from kernelevo_evaluator.simulated_executor import SimulatedExecutor

        return Prepared(lambda: SimulatedExecutor(settings.executor_settings()), _nothing)
    from kernelevo_evaluator.local_executor import LocalExecutor

    sandbox = settings.open_sandbox()
    guarantees = None
    try:
        if settings.sandbox == "none":
            complain(
                "WARNING: --sandbox none runs candidates as this user, with its files, network and devices. "
                "Use it for code that you wrote yourself, and for nothing else."
            )
        else:
            guarantees = await sandbox.probe()
            missing = [one for one in guarantees if one.essential and not one.holds]
            if missing:
                lines = [f"  {one.name}: {one.evidence}. {one.remedy}".rstrip() for one in missing]
                raise Unsound(
                    "this host does not isolate what runs here, so the evaluator does not start:\n"
                    + "\n".join(lines)
                    + "\n`kernelevo-evaluator doctor` shows everything; --sandbox none is for code that one wrote oneself"
                )
    except BaseException:
        await sandbox.close()
        raise
    # Once it is made the executor owns the sandbox.
    return Prepared(
        lambda: LocalExecutor(sandbox=sandbox, settings=settings.executor_settings(), guarantees=guarantees),
        sandbox.close,
    )


async def _nothing() -> None:
    return
