"""A static look at a candidate: remarks for whoever reads the report, never a verdict and never a pass.

A textual look cannot decide anything: what it names may be harmless, and what is hidden from it is met by the sandbox and the
referee. It saves a person's time.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from kernelevo_api.types import Finding
from kernelevo_evaluator.sources import dotted

if TYPE_CHECKING:
    from collections.abc import Callable

MAXIMUM = 32
"""Most findings of one candidate."""

_CALLS = {
    "exec": ("runs_text", "runs text as code; a reader cannot see what it does"),
    "eval": ("runs_text", "runs text as code; a reader cannot see what it does"),
    "gc.get_objects": ("searches_memory", "searches the process's memory; nothing of the referee's is there"),
    "gc.get_referrers": ("searches_memory", "searches the process's memory; nothing of the referee's is there"),
    "sys._getframe": ("reads_frames", "reads its callers' frames; nothing of the referee's is there"),
    "inspect.stack": ("reads_frames", "reads its callers' frames; nothing of the referee's is there"),
    "inspect.currentframe": ("reads_frames", "reads its callers' frames; nothing of the referee's is there"),
    "os.fork": ("starts_processes", "starts processes; they end with the candidate"),
    "os.system": ("starts_processes", "starts processes; they end with the candidate"),
    "os.popen": ("starts_processes", "starts processes; they end with the candidate"),
    "torch.compile": ("torch_compile", "compiles the reference's operators with torch.compile"),
}
_IMPORTS = {
    "subprocess": ("starts_processes", "imports subprocess; what it starts ends with the candidate"),
    "multiprocessing": ("starts_processes", "imports multiprocessing; what it starts ends with the candidate"),
    "socket": ("uses_network", "imports socket; there is no network"),
    "requests": ("uses_network", "imports requests; there is no network"),
    "urllib": ("uses_network", "imports urllib; there is no network"),
    "httpx": ("uses_network", "imports httpx; there is no network"),
}
_CLOCKS = frozenset({"time.time", "time.perf_counter", "time.perf_counter_ns", "time.monotonic", "time.monotonic_ns"})
_COMPARISONS = frozenset({"torch.allclose", "torch.equal", "torch.isclose", "torch.testing.assert_close"})
_PATCHED = {
    **dict.fromkeys(_CLOCKS, ("patches_clock", "replaces {name}; the referee reads a clock of its own")),
    **dict.fromkeys(_COMPARISONS, ("patches_comparison", "replaces {name}; the referee compares in its own process")),
}
_PATCHED_PREFIXES = {
    "torch.cuda.Event.": ("patches_clock", "replaces {name}; the referee reads a clock of its own"),
    "torch.cuda.synchronize": ("patches_clock", "replaces {name}; the referee reads a clock of its own"),
    "torch.Tensor.": ("patches_torch", "replaces {name}"),
    "torch.nn.functional.": ("patches_torch", "replaces {name}"),
    "torch.backends.": ("global_switch", "sets {name}, which the referee sets itself"),
}


def look(tree: ast.Module) -> tuple[Finding, ...]:
    """Findings in the order of their lines, each code once a line, at most `MAXIMUM`."""
    found: dict[tuple[int, str], Finding] = {}

    def add(node: ast.AST, code: str, message: str) -> None:
        line = int(getattr(node, "lineno", 1))
        found.setdefault((line, code), Finding(code=code, message=message, line=line))

    for node in ast.walk(tree):
        match node:
            case ast.Call():
                if (remark := _CALLS.get(dotted(node.func))) is not None:
                    add(node, *remark)
            case ast.Import(names=names):
                for alias in names:
                    if (remark := _IMPORTS.get(alias.name.partition(".")[0])) is not None:
                        add(node, *remark)
            case ast.ImportFrom(module=str(module), level=0):
                if (remark := _IMPORTS.get(module.partition(".")[0])) is not None:
                    add(node, *remark)
            case ast.Assign(targets=targets):
                for target in targets:
                    _patches(target, add)
            case ast.Constant(value=str(text)) if text.startswith("/proc"):
                add(node, "reads_proc", f"names {text[:40]!r}; the sandbox shows the candidate's own processes only")
            case ast.Try(handlers=handlers):
                for handler in handlers:
                    if _returns_torch(handler):
                        add(handler, "falls_back", "falls back to torch operators when its own code fails")
            case ast.ClassDef(name="ModelNew", bases=bases):
                if any(dotted(base).rpartition(".")[2] == "Model" for base in bases):
                    add(node, "subclasses_model", "ModelNew is a subclass of a class named Model")
    ordered = sorted(found.values(), key=lambda one: (one.line or 0, one.code))
    return tuple(ordered[:MAXIMUM])


def _patches(target: ast.expr, add: Callable[[ast.AST, str, str], None]) -> None:
    name = dotted(target)
    if "." not in name:
        return
    remark = _PATCHED.get(name)
    if remark is None:
        remark = next((r for prefix, r in _PATCHED_PREFIXES.items() if name.startswith(prefix)), None)
    if remark is not None:
        add(target, remark[0], remark[1].format(name=name))


def _returns_torch(handler: ast.ExceptHandler) -> bool:
    return any(
        isinstance(node, ast.Return)
        and node.value is not None
        and any(
            isinstance(part, ast.Call) and dotted(part.func).startswith(("torch.", "F.", "nn.", "super"))
            for part in ast.walk(node.value)
        )
        for node in ast.walk(handler)
    )
