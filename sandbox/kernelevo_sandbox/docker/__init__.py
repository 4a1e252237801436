"""The Docker backend: one container for each sandbox, single use, made ready before it is needed.

The engine gives namespaces, control groups, a read-only root from an image of our own, and the seccomp profile. What a
container's program needs beyond that comes as with every backend, by read-only mounts. Descriptors cross by a Unix socket
in a folder that is mounted into that container alone; its first process (`launcher.py`) takes one program over it and runs
it. The engine's own streams end there, so that nothing is attached that a flood could block.

The evaluator runs as root on the engine's own host: it freezes and kills through the kernel, which costs a fraction of a
millisecond where asking the engine costs tens.
"""

from __future__ import annotations

from kernelevo_sandbox.docker.backend import DockerSandbox
from kernelevo_sandbox.docker.options import DockerOptions, GpuAccess

__all__ = ["DockerOptions", "DockerSandbox", "GpuAccess"]
