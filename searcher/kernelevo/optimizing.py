"""`kernelevo.optimize`: a module or function of the running program, searched for a faster kernel that then takes its place.

The search is the same as the command's: candidates run in an evaluator's sandbox. The kernel that comes out of it runs in this
process. Imports torch, which the searcher itself does not need.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kernelevo.agreement import allowed_by
from kernelevo.dropin import Kernel, OptimizedFunction, put_in_place
from kernelevo.instances import problem_text
from kernelevo_api.types import Problem
from kernelevo_searcher import runs
from kernelevo_searcher.best import best_kernel, write_best
from kernelevo_searcher.face import wait_for
from kernelevo_searcher.inputs import BadInput, read_candidate
from kernelevo_searcher.settings import load_settings
from kernelevo_searcher.store import RUN_FILE, RunStore
from kernelevo_searcher.wording import ratio_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kernelevo_searcher.best import BestKernel
    from kernelevo_searcher.settings import SearcherSettings
    from kernelevo_searcher.state import RunState

__all__ = ["optimize"]


def optimize(
    module: Any,
    example_inputs: Any,
    *,
    run_dir: str | Path | None = None,
    init: str | None = None,
    inputs: str | None = None,
    sizes: Mapping[str, int] | None = None,
    policy: Mapping[str, Any] | None = None,
    start: Sequence[str | Path] = (),
    accept_unproved: bool = False,
    check_every: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    **settings: Any,
) -> Any:
    """Search for a faster kernel for a module or a function, and return what stands in its place.

        norm = kernelevo.optimize(norm.eval(), (x,), evaluations=25, run_dir="runs/norm")

    What is returned has the module's class, its weights (the very same tensors) and its hooks; its attribute `kernelevo` says
    what stands behind it. At the first call with inputs of a new kind (shapes, strides, dtypes, devices, plain values) the kernel
    runs beside the original and must agree with it; where it does not, the original runs from then on, and a warning says why.
    The original runs too in training mode, where gradients are wanted, and everywhere if no speedup was proved.

    Args:
        module: an `nn.Module` whose class stands at the top level of a file or is torch's own, or such a function.
        example_inputs: a tensor, or a tuple or list of the arguments that it is called with by position.
        run_dir: folder of the run; where it holds one already, that is gone on with, and a finished one is taken as it is.
            Absent: a new folder under `runs_dir`.
        init: what the module was made with, as the arguments of a call, where that cannot be read off its attributes.
        inputs: how random inputs are made, as the arguments of a call; absent: of the examples' shapes and dtypes.
        sizes: constants that `init` and `inputs` are written with, for further shapes.
        policy: for the problem's `KERNELEVO`, e.g. `{"shapes": [{"rows": 37}]}`.
        start: paths of kernels to begin from.
        accept_unproved: take a verified kernel although its interval does not lie above 1.
        check_every: so many calls of one kind apart the kernel is checked again; 0: only at the first.
        rtol, atol: how far its outputs may be from the original's; absent: twice the error budget of the problem's audit.
        settings: any of `SearcherSettings`, e.g. `evaluations=25`, `model=("qwen3",)`, `evaluators=("host:50051",)`.

    Raises:
        BadInput: no problem can be made of it; the message says why, and what to do.
        NoEvaluator, EvaluatorError: the run could not go on; it can be resumed by the same call with its `run_dir`.
    """
    examples = tuple(example_inputs) if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
    if not callable(module):
        raise BadInput(f"a {type(module).__name__} is neither a module nor a function.")
    if isinstance(getattr(module, "kernelevo", None), Kernel):
        raise BadInput("this is optimized already: pass the original.")
    settings.setdefault("device", f"kind={_device_kind(module, examples)}")
    loaded = load_settings(**settings)
    kernels = [(Path(path).name, read_candidate(Path(path), "the starting kernel")) for path in start]
    name = type(module).__name__ if isinstance(module, torch.nn.Module) else getattr(module, "__name__", "function")
    if run_dir is not None and (Path(run_dir) / RUN_FILE).exists():
        folder = Path(run_dir)
        changes = {key: value for key, value in _changes(loaded, settings).items() if key != "device"}
        state = wait_for(runs.resume(folder, loaded, changes))
    else:
        text = problem_text(module, examples, init=init, inputs=inputs, sizes=sizes, policy=policy)
        problem = Problem(source=text, name=name)
        folder = Path(run_dir) if run_dir is not None else runs.new_run_dir(loaded, problem)
        state = wait_for(runs.evolve(problem, kernels, loaded, run_dir=folder))
    kernel = _kernel_of(folder, state, accept_unproved=accept_unproved, check_every=check_every, rtol=rtol, atol=atol)
    made = put_in_place(module, kernel) if isinstance(module, torch.nn.Module) else OptimizedFunction(module, kernel)
    _call_once(made, examples)
    return made


def _kernel_of(
    folder: Path, state: RunState, *, accept_unproved: bool, check_every: int, rtol: float | None, atol: float | None
) -> Kernel:
    best = best_kernel(folder)
    why = _not_to_use(best, state, accept_unproved)
    assert state.registered is not None
    return Kernel(
        write_best(folder),
        [] if why else _init_inputs(folder, state),
        allowed_by(state.registered.report.budgets, rtol, atol),
        speedup=best.speedup if best is not None and best.verified else None,
        run=folder,
        check_every=check_every,
        why=why,
    )


def _not_to_use(best: BestKernel | None, state: RunState, accept_unproved: bool) -> str:
    if state.finished is None:
        return "the search was not finished"
    if best is None or not best.verified:
        return f"no kernel was verified ({state.finished.reason})"
    if not best.proved and not accept_unproved:
        found = ratio_text(best.speedup) if best.speedup is not None else "not timed"
        return f"no speedup was proved: {found} over {state.settings.baseline.value}"
    return ""


def _init_inputs(folder: Path, state: RunState) -> list[Any]:
    """What the problem makes a candidate with."""
    assert state.started is not None
    with RunStore.open(folder, read_only=True) as store:
        source = store.text(state.started.problem_digest)
    name = f"kernelevo_problem_{state.started.problem_digest[:16]}"
    module = types.ModuleType(name)
    module.__file__ = f"<{name}>"
    # Dataclasses and the like look their module up.
    sys.modules[name] = module
    exec(compile(source, module.__file__, "exec"), module.__dict__)  # noqa: S102 - the user's own code, out of its file
    return list(getattr(module, "get_init_inputs", list)())


def _changes(loaded: SearcherSettings, given: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked for in this call, for a run that is gone on with."""
    run = loaded.run_settings()
    known = {name for name in given if hasattr(run, name)}
    changes = {name: getattr(run, name) for name in known}
    return changes | ({"models": run.models} if "model" in given else {})


def _device_kind(module: Any, examples: tuple[Any, ...]) -> str:
    tensors = [one for one in torch.utils._pytree.tree_leaves(examples) if isinstance(one, torch.Tensor)]
    if isinstance(module, torch.nn.Module):
        tensors += module.state_dict().values()
    return "cuda" if any(one.device.type == "cuda" for one in tensors) else "cpu"


def _call_once(made: Any, examples: tuple[Any, ...]) -> None:
    """The first check, on the examples themselves."""
    kernel: Kernel = made.kernelevo
    if not kernel.active:
        kernel.say(f"the original runs, not the kernel: {kernel.why}")
        return
    training = getattr(made, "training", False)
    if training:
        made.eval()
    try:
        with torch.no_grad():
            made(*examples)
    finally:
        if training:
            made.train()
