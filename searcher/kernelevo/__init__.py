"""The public face of KernelEvo for Python users: a few names, loaded when they are first used.

    import kernelevo

    best = kernelevo.evolve("problem.py", start=["kernel.py"], evaluations=25)
    verdict = kernelevo.evaluate("problem.py", "kernel.py").verdict
    faster = kernelevo.optimize(module.eval(), example_inputs, evaluations=25)

They wait until they are done; within asyncio, `kernelevo_searcher.runs` does not. `optimize` imports torch, when it is first
used. Errors are those that the messages name:
`kernelevo_api.errors.EvaluatorError`, `kernelevo_api.pool.NoEvaluator`, and `BadInput` for a file that is none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelevo.optimizing import optimize
    from kernelevo_api.client import AsyncEvaluatorClient, EvaluatorClient
    from kernelevo_api.types import Candidate, Effort, EvaluateRequest, Evaluation, Problem, Verdict
    from kernelevo_searcher.best import BestKernel, best_kernel
    from kernelevo_searcher.face import evaluate, evolve
    from kernelevo_searcher.inputs import BadInput

__all__ = [
    "AsyncEvaluatorClient",
    "BadInput",
    "BestKernel",
    "Candidate",
    "Effort",
    "EvaluateRequest",
    "Evaluation",
    "EvaluatorClient",
    "Problem",
    "Verdict",
    "best_kernel",
    "evaluate",
    "evolve",
    "optimize",
]

_HOMES = {
    "kernelevo_api.client": ("AsyncEvaluatorClient", "EvaluatorClient"),
    "kernelevo_api.types": ("Candidate", "Effort", "EvaluateRequest", "Evaluation", "Problem", "Verdict"),
    "kernelevo_searcher.face": ("evaluate", "evolve"),
    "kernelevo.optimizing": ("optimize",),
    "kernelevo_searcher.best": ("BestKernel", "best_kernel"),
    "kernelevo_searcher.inputs": ("BadInput",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
