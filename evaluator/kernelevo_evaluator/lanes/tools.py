"""The programs that can watch a runner from within its sandbox: compute-sanitizer and Nsight Compute, of CUDA's toolkit."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kernelevo_evaluator.languages.toolkit import cuda_root
from kernelevo_evaluator.referee.counters import METRICS
from kernelevo_sandbox import Mount

if TYPE_CHECKING:
    from collections.abc import Mapping

OUTPUT_BYTES = 4 << 20
"""Of stdout and stderr that a tool may write beyond what the candidate may."""
MEMORY_BYTES = 6 << 30
"""Of the host that a tool may take beyond what the candidate may; of the device as much, and the candidate's once more."""
PROCESSES = 128

_SANITIZER = (
    *("--target-processes", "application-only", "--report-api-errors", "explicit"),
    *("--print-limit", "32", "--show-backtrace", "no"),
)
_PROGRAMS = {
    # Allocations lie side by side: without room between them a write beyond the end of one is a write into the next.
    "memcheck": ("compute-sanitizer", ("--tool", "memcheck", "--leak-check", "no", "--padding", "512", *_SANITIZER)),
    "racecheck": ("compute-sanitizer", ("--tool", "racecheck", *_SANITIZER)),
    "ncu": (
        "ncu",
        # Clocks are the host's, and only root could set them; what is warm in a cache stays as a caller finds it.
        (
            *("--target-processes", "application-only", "--clock-control", "none", "--cache-control", "none"),
            *("--profile-from-start", "off", "--csv", "--page", "raw", "--print-units", "base"),
            *("--print-kernel-base", "function", "--metrics", ",".join(METRICS)),
        ),
    ),
}
_PACKAGES = Path("/opt/nvidia")
"""Where the toolkit's packages put what its own programs only start."""


class ToolMissing(Exception):
    """This host has no such tool; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A program that starts a runner and watches it."""

    name: str
    argv: tuple[str, ...]
    """Before the runner's own."""
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()


def find_tool(name: str) -> Tool:
    """The tool of that name ("memcheck", "racecheck" or "ncu") of this host.

    Raises:
        ToolMissing: there is none.
    """
    program, options = _PROGRAMS[name]
    root = cuda_root()
    path = root / "bin" / program if root is not None else None
    if root is None or path is None or not path.is_file():
        raise ToolMissing(f"{program} is not installed here: it comes with CUDA's toolkit (found by $CUDA_HOME)")
    # Each tensor an allocation of its own: torch's allocator would put others right behind it.
    environment = {} if name == "ncu" else {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    shown = [folder for folder in (root, _PACKAGES) if folder.is_dir() and not folder.is_relative_to("/usr")]
    return Tool(
        name=name,
        argv=(str(path), *options),
        environment=environment,
        mounts=tuple(Mount(source=folder, target=str(folder)) for folder in shown),
    )
