"""Reads a problem without running it: its shape, and the `KERNELEVO` literal that is its policy.

What is found here is told with the line it stands in, and all of it at once. What can only be known by running the
problem is the audit's.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Annotated, Any, Literal

import pydantic

from kernelevo_api.errors import FieldViolation, InvalidRequest, ProblemRefused, TooLarge
from kernelevo_api.types import Language, Problem, ProblemPolicy, TimingPolicy
from kernelevo_evaluator.executor import ProblemSource
from kernelevo_evaluator.sources import SourceError, digest_of, parse

FIELD = "problem.source"
MAXIMUM_NAME = 1000
"""Characters of a problem's name: it stands in every report of it, in memory and in the store."""
_SECOND_DEVICE = re.compile(r"\bcuda:[1-9]\d*\b")
_REQUIRED = {"Model": "a class `Model`", "get_inputs": "a function `get_inputs`"}
_LEGACY = ("output_rtol", "output_atol")

_Tolerance = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
_Size = Annotated[int, pydantic.Field(gt=0)]


class _Tolerances(pydantic.BaseModel, extra="forbid", strict=True):
    rtol: _Tolerance | None = None
    atol: _Tolerance | None = None


class _Policy(pydantic.BaseModel, extra="forbid", strict=True):
    dtype: Literal["float32", "float16", "bfloat16", "float64"] = "float32"
    math: Literal["ieee", "tf32"] = "ieee"
    languages: list[Literal["triton", "cuda_inline", "pycuda", "cute", "cpp_inline", "torch"]] = []
    tolerance: _Tolerances = _Tolerances()
    shapes: list[dict[str, _Size]] = []
    dynamic_weights: bool = False
    timing: Literal["pipelined", "latency"] = "pipelined"
    output_rtol: _Tolerance | None = None
    output_atol: _Tolerance | None = None


def read_problem(problem: Problem, maximum_bytes: int) -> ProblemSource:
    """The problem with its digest and its policy.

    Raises:
        InvalidRequest: the name is longer than `MAXIMUM_NAME`.
        TooLarge: the source is longer than `maximum_bytes`.
        ProblemRefused: it is no problem; each violation names a line and what to do.
    """
    check_problem(problem, maximum_bytes)
    tree = parse(problem.source)
    if isinstance(tree, SourceError):
        raise _refused([str(tree)])
    names = _top_level_names(tree)
    complaints = [
        f"{what} is missing at the top level of the module" for name, what in _REQUIRED.items() if name not in names
    ]
    complaints += _devices(tree)
    policy = _read_policy(tree, names, complaints)
    if complaints or policy is None:
        raise _refused(complaints)
    return ProblemSource(
        source=problem.source, digest=digest_of(problem.source), name=problem.name or _title(tree), policy=policy
    )


def check_problem(problem: Problem, maximum_bytes: int) -> None:
    """Refuse what need not be read for that.

    Raises:
        InvalidRequest, TooLarge: as `read_problem`.
    """
    if len(problem.name) > MAXIMUM_NAME:
        fault = FieldViolation("problem.name", f"is longer than {MAXIMUM_NAME} characters")
        raise InvalidRequest(f"{fault.field} {fault.description}", violations=[fault])
    size = len(problem.source.encode())
    if size > maximum_bytes:
        raise TooLarge(
            f"the problem has {size} bytes; this evaluator takes {maximum_bytes}",
            violations=[FieldViolation(FIELD, f"{size} bytes")],
        )


def _refused(complaints: list[str]) -> ProblemRefused:
    return ProblemRefused(
        f"this is not a problem that can be evaluated: {'; '.join(complaints)}",
        violations=[FieldViolation(FIELD, one) for one in complaints],
    )


def _title(tree: ast.Module) -> str:
    """The first line of the module's docstring."""
    return (ast.get_docstring(tree) or "").strip().partition("\n")[0][:120]


def _top_level_names(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))
    return names


def _devices(tree: ast.Module) -> list[str]:
    return [
        f"line {node.lineno}: {node.value!r} names a second device; a problem uses one device for now"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _SECOND_DEVICE.fullmatch(node.value)
    ]


def _read_policy(tree: ast.Module, names: set[str], complaints: list[str]) -> ProblemPolicy | None:
    found: dict[str, Any] = {}
    for node in tree.body:
        name = _assigned(node)
        if name not in ("KERNELEVO", *_LEGACY):
            continue
        try:
            value = ast.literal_eval(node.value)  # type: ignore[attr-defined]
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            complaints.append(f"line {node.lineno}: {name} must be a plain literal, as it is read without running it")
            return None
        if name in _LEGACY:
            found[name] = value
        elif isinstance(value, dict):
            found.update(value)
        else:
            complaints.append(f"line {node.lineno}: KERNELEVO must be a dictionary, not {type(value).__name__}")
            return None
    try:
        policy = _Policy.model_validate(found)
    except pydantic.ValidationError as error:
        complaints += [_explain(one) for one in error.errors()]
        return None
    for shape in policy.shapes:
        unknown = sorted(set(shape) - names)
        if unknown:
            complaints.append(f"KERNELEVO['shapes'] sets {', '.join(unknown)}, which the module does not define")
    given = policy.tolerance
    return ProblemPolicy(
        dtype=policy.dtype,
        math=policy.math,
        languages=tuple(Language(one) for one in policy.languages),
        rtol=given.rtol if given.rtol is not None else policy.output_rtol,
        atol=given.atol if given.atol is not None else policy.output_atol,
        dynamic_weights=policy.dynamic_weights,
        timing=TimingPolicy(policy.timing),
        shapes=tuple(json.dumps(shape, sort_keys=True) for shape in policy.shapes),
    )


def _assigned(node: ast.stmt) -> str:
    """The name that a simple assignment sets, else an empty text."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target: ast.expr = node.targets[0]
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        target = node.target
    else:
        return ""
    return target.id if isinstance(target, ast.Name) else ""


def _explain(error: Any) -> str:
    where = "".join(f"[{part!r}]" for part in error["loc"])
    if error["type"] == "extra_forbidden":
        model = _Tolerances if error["loc"][0] == "tolerance" else _Policy
        return f"KERNELEVO{where} is not known; the keys are {', '.join(model.model_fields)}"
    return f"KERNELEVO{where}: {error['msg']}, got {error['input']!r:.80}"
