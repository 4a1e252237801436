"""Isolation of untrusted processes: the Sandbox contract, its backends, limits and probes. Knows nothing of kernels."""

from __future__ import annotations

import sys

from kernelevo_sandbox.contract import (
    Captured,
    Ending,
    EndKind,
    Guarantee,
    Limits,
    MemoryEnforcement,
    Mount,
    Sandbox,
    SandboxBroken,
    SandboxError,
    SandboxProcess,
    SandboxSpec,
    SandboxUnavailable,
)

__all__ = [
    "BACKENDS",
    "BubblewrapSandbox",
    "Captured",
    "DockerOptions",
    "DockerSandbox",
    "EndKind",
    "Ending",
    "GpuAccess",
    "Guarantee",
    "Limits",
    "MemoryEnforcement",
    "Mount",
    "NoSandbox",
    "Sandbox",
    "SandboxBroken",
    "SandboxError",
    "SandboxProcess",
    "SandboxSpec",
    "SandboxUnavailable",
    "interpreter_mounts",
    "open_sandbox",
]

from kernelevo_sandbox.bubblewrap import BubblewrapSandbox
from kernelevo_sandbox.docker import DockerOptions, DockerSandbox, GpuAccess
from kernelevo_sandbox.mounts import interpreter_mounts
from kernelevo_sandbox.none import NoSandbox

BACKENDS = ("bubblewrap", "docker", "none")
"""Names that `open_sandbox` takes."""


def open_sandbox(name: str, *, docker: DockerOptions | None = None) -> Sandbox:
    """The backend of that name, with options of its own if it takes any. The caller closes it.

    Raises:
        SandboxUnavailable: this operating system has no such isolation, or there is no such backend.
    """
    if not sys.platform.startswith("linux"):
        raise SandboxUnavailable(f"running candidates needs Linux: {sys.platform} gives no namespaces and no /proc")
    if name == "bubblewrap":
        return BubblewrapSandbox()
    if name == "docker":
        return DockerSandbox(docker)
    if name == "none":
        return NoSandbox()
    raise SandboxUnavailable(f"no sandbox backend is called {name!r}: there are {', '.join(BACKENDS)}")
