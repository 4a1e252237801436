"""What a person can choose about the Docker backend."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class GpuAccess(enum.Enum):
    """How a GPU's device nodes and driver libraries come into a container."""

    CDI = "cdi"
    """A specification that `nvidia-ctk cdi generate` wrote; Docker 25 or newer, or an older one with the feature enabled."""
    TOOLKIT = "toolkit"
    """The NVIDIA container toolkit's hook, as `docker run --gpus` asks for it."""
    NODES = "nodes"
    """The device nodes alone: the image, or a mount, has the driver's libraries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerOptions:
    """Settings of the backend."""

    image: str = "kernelevo-sandbox"
    """Name or id of an image that was built from Dockerfile.gpu. Never pulled."""
    host: str | None = None
    """The engine's socket, `unix:///…`; `None`: DOCKER_HOST, or the usual place."""
    runtime: str | None = None
    """An OCI runtime that the engine knows; `None`: its default one. A runtime with a kernel of its own (runsc) must let host
    Unix sockets be opened and pass descriptors of memory; the probe shows whether it does."""
    gpu: GpuAccess = GpuAccess.CDI
    call_seconds: float = 30.0
    """How long one call to the engine may take."""
    spares: int = 2
    """How many kinds of container (limits, mounts, devices) are kept ready, one of each."""
