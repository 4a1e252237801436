"""Checks one Triton candidate of a GPU example under Triton's interpreter, at the first of the problem's further shapes.

    python interpret_candidate.py examples/<name>/passes/<candidate>.py

A process of its own: Triton looks at TRITON_INTERPRET once, when it is imported. Prints one JSON object: `ok`, and for each
output and input class the norm-wise error, what is allowed, and the mismatch in words. Weights, precision and budgets are as the
evaluator's, by its own functions; isolation and secrecy are not.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from kernelevo_api.types import Problem
from kernelevo_evaluator.problem import read_problem
from kernelevo_evaluator.referee.classes import DECLARED, SCALED, InputClass
from kernelevo_evaluator.referee.compare import budget_from, compare, describe, honest_error
from kernelevo_evaluator.runner.modules import import_source

ROUNDS = 3

FLOATS = {
    "fp32": (torch.float32, np.float32),
    "fp16": (torch.float16, np.float16),
    "bf16": (torch.bfloat16, np.uint16),
    "fp8e4nv": (torch.float8_e4m3fn, np.uint8),
}
"""Triton's name of a dtype: torch's, and numpy's under which the interpreter keeps it."""


def mend_interpreter() -> None:
    """Let torch convert between floating dtypes. Triton 3.7's interpreter truncates to bfloat16 and to fp8 where a device rounds,
    and multiplies the bits of bfloat16 as integers in `tl.dot`."""
    as_before = interpreter.InterpreterBuilder.create_dot

    def convert(data: Any, source: Any, target: Any, rounding_mode: Any) -> Any:
        (from_torch, from_numpy), (to_torch, _) = FLOATS[source.name], FLOATS[target.name]
        bits = torch.from_numpy(np.ascontiguousarray(data).view(from_numpy).copy()).view(from_torch)
        width = getattr(np, f"uint{target.primitive_bitwidth}")
        return bits.to(to_torch).view(torch.uint8).numpy().view(width).reshape(data.shape)

    def dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return as_before(self, wide(a), wide(b), *rest)

    def wide(handle: Any) -> Any:
        if handle.dtype.scalar.name not in ("bf16", "fp8e4nv"):
            return handle
        data = convert(handle.data, handle.dtype.scalar, tl.float32, None).view(np.float32)
        return interpreter.TensorHandle(data, tl.float32)

    interpreter._convert_float = convert
    interpreter.InterpreterBuilder.create_dot = dot


def main() -> None:
    mend_interpreter()
    candidate_path = Path(sys.argv[1])
    source = (candidate_path.parents[1] / "problem.py").read_text(encoding="utf-8")
    policy = read_problem(Problem(source=source), 1 << 20).policy
    problem = import_source(source, "problem")
    vars(problem).update(json.loads(policy.shapes[0]))
    candidate = import_source(candidate_path.read_text(encoding="utf-8"), "candidate")
    dtype = getattr(torch, policy.dtype)

    torch.manual_seed(1)
    init = problem.get_init_inputs()
    model = problem.Model(*init).to(dtype).eval()
    wide = copy.deepcopy(model).to(torch.float64)
    with torch.no_grad():
        new = candidate.ModelNew(*init).to(dtype).eval()
        give_weights(new, model.state_dict())
        results = []
        for input_class in (DECLARED, SCALED):
            results += check(problem, model, wide, new, dtype, input_class, policy)
    print(json.dumps({"ok": all(one["ok"] for one in results), "outputs": results}))


def give_weights(model: torch.nn.Module, state: dict[str, torch.Tensor]) -> None:
    """The reference's state, as a candidate gets it."""
    packer = getattr(model, "load_reference_state", None)
    if packer is not None:
        packer({name: tensor.clone() for name, tensor in state.items()})
    else:
        model.load_state_dict(state)


def draw(problem: Any, dtype: torch.dtype, input_class: InputClass) -> list[torch.Tensor]:
    """The problem's inputs at its dtype."""
    return [
        t.to(dtype) * input_class.scale + input_class.shift if t.dtype.is_floating_point else t
        for t in problem.get_inputs()
    ]


def outputs_of(model: torch.nn.Module, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """A model's outputs on copies of the inputs."""
    result = model(*(t.clone() for t in inputs))
    return list(result) if isinstance(result, tuple) else [result]


def widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.dtype.is_floating_point else tensor


def check(
    problem: Any, model: Any, wide: Any, new: Any, dtype: torch.dtype, input_class: InputClass, policy: Any
) -> list[dict[str, Any]]:
    """The candidate's outputs on one input set, against budgets from a few others."""
    runs = []
    for _ in range(ROUNDS):
        inputs = draw(problem, dtype, input_class)
        runs.append((outputs_of(model, inputs), outputs_of(wide, [widened(t) for t in inputs])))
    inputs = draw(problem, dtype, input_class)
    before = [t.clone() for t in inputs]
    expected = outputs_of(wide, [widened(t) for t in inputs])
    own = outputs_of(model, inputs)
    got = new(*inputs)
    assert all(torch.equal(a, b) for a, b in zip(before, inputs, strict=True)), "the candidate changed an input"
    results = []
    for index, output in enumerate(list(got) if isinstance(got, tuple) else [got]):
        floating = output.dtype.is_floating_point
        want = expected[index] if floating else own[index]
        assert output.dtype == own[index].dtype, f"output {index} has dtype {output.dtype}, not {own[index].dtype}"
        assert output.shape == want.shape, f"output {index} has shape {tuple(output.shape)}, not {tuple(want.shape)}"
        errors = [honest_error(a[index], e[index]) for a, e in runs] if floating else [(0.0, 0.0)]
        budget = budget_from(
            input_class.name,
            index,
            output.dtype,
            max(largest for largest, _ in errors),
            max(norm for _, norm in errors),
            policy.rtol,
            policy.atol,
        )
        comparison = compare(output, want, budget, index, input_class.name)
        results.append(
            {
                "ok": comparison.ok,
                "norm_error": comparison.norm_error,
                "norm_budget": budget.norm_rtol,
                "mismatch": describe(comparison.mismatch) if comparison.mismatch else "",
            }
        )
    return results


if __name__ == "__main__":
    main()
