"""Which device nodes a sandbox needs for one NVIDIA GPU, or for a MIG instance of one. Looks at /dev and /proc alone; must not
load a driver's library."""

from __future__ import annotations

from pathlib import Path

CAPABILITIES = "nvidia-caps"
"""Folder in /dev of the nodes that open parts of a GPU."""
_SHARED = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
"""The last one looks optional and is not: since driver 570 CUDA fails without it."""


def nvidia_devices(
    minor: int,
    instance: tuple[int, int] | None = None,
    *,
    dev: Path = Path("/dev"),
    mig_minors: Path = Path("/proc/driver/nvidia-caps/mig-minors"),
) -> tuple[Path, ...]:
    """The nodes for the GPU whose node is /dev/nvidia`minor`, and for no other one.

    The minor number is the driver's (`nvmlDeviceGetMinorNumber`), not CUDA's index.

    Args:
        instance: numbers of a MIG instance of it, as GPU instance and as compute instance: with the nodes that open these two.

    Raises:
        FileNotFoundError: there is no such GPU here, or the driver's nodes are not there yet (`nvidia-modprobe -u` makes them).
    """
    nodes = [dev / f"nvidia{minor}", *(dev / name for name in _SHARED)]
    if instance is not None:
        numbers = dict(line.split() for line in mig_minors.read_text().splitlines() if len(line.split()) == 2)
        gpu, compute = instance
        for name in (f"gpu{minor}/gi{gpu}/access", f"gpu{minor}/gi{gpu}/ci{compute}/access"):
            if name not in numbers:
                raise FileNotFoundError(f"{mig_minors} has no {name}")
            nodes.append(dev / CAPABILITIES / f"nvidia-cap{numbers[name]}")
    for node in nodes:
        if not node.exists():
            raise FileNotFoundError(f"no device node {node}")
    return tuple(nodes)
