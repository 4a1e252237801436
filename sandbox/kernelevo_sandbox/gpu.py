"""Which device nodes a sandbox needs for one NVIDIA GPU. Looks at /dev alone; must not load a driver's library."""

from __future__ import annotations

from pathlib import Path

_SHARED = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
"""The last one looks optional and is not: since driver 570 CUDA fails without it."""


def nvidia_devices(minor: int, dev: Path = Path("/dev")) -> tuple[Path, ...]:
    """The nodes for the GPU whose node is /dev/nvidia`minor`, and for no other one.

    The minor number is the driver's (`nvmlDeviceGetMinorNumber`), not CUDA's index.

    Raises:
        FileNotFoundError: there is no such GPU here, or the driver's nodes are not there yet (`nvidia-modprobe -u` makes them).
    """
    nodes = (dev / f"nvidia{minor}", *(dev / name for name in _SHARED))
    for node in nodes:
        if not node.exists():
            raise FileNotFoundError(f"no device node {node}")
    return nodes
