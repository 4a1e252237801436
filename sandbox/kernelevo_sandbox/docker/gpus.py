"""How a container gets the GPUs whose device nodes a spec names: CDI, the container toolkit, or the bare nodes.

Pure but for two looks: at what the driver says of its GPUs in /proc, and at the toolkit's version.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from kernelevo_sandbox.contract import SandboxUnavailable
from kernelevo_sandbox.docker.options import GpuAccess
from kernelevo_sandbox.gpu import CAPABILITIES

DRIVER = Path("/proc/driver/nvidia/gpus")
SAFE_TOOLKIT = (1, 17, 8)
"""Older ones let an image run code as root on the host (CVE-2025-23266, CVE-2025-23267)."""
_GPU_NODE = re.compile(r"nvidia(\d+)")
_SECONDS = 10.0


def gpu_request(devices: tuple[Path, ...], access: GpuAccess, driver: Path = DRIVER) -> dict[str, Any]:
    """The fields of a container's HostConfig that make `devices` usable inside.

    Nodes that are no GPU's are passed as they are. With a GPU's, CDI and the toolkit bring the driver's shared nodes.

    Raises:
        SandboxUnavailable: a named GPU is none that the driver knows; or it is a MIG instance, which cannot come that way.
    """
    minors = [int(match.group(1)) for node in devices if (match := _GPU_NODE.fullmatch(node.name))]
    if not minors or access is GpuAccess.NODES:
        return {"Devices": [_node(node) for node in devices]}
    if any(node.parent.name == CAPABILITIES for node in devices):
        # Named by its GPU, the container would get the whole of it.
        raise SandboxUnavailable(
            f"a MIG instance comes into a container by its nodes alone, not by {access.value}: docker_gpu = nodes"
        )
    plain = [node for node in devices if not node.name.startswith("nvidia")]
    # By UUID: the toolkit counts GPUs in an order of its own, and minor numbers are the driver's.
    uuids = [_uuid(minor, driver) for minor in minors]
    if access is GpuAccess.CDI:
        request: dict[str, Any] = {"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={uuid}" for uuid in uuids]}
    else:
        request = {"Driver": "nvidia", "DeviceIDs": uuids, "Capabilities": [["gpu", "compute", "utility"]]}
    return {"Devices": [_node(node) for node in plain], "DeviceRequests": [request]}


def toolkit_refusal(program: str = "nvidia-ctk") -> str | None:
    """Why the container toolkit of this host is not to be used; `None`: it is.

    Blocks while it asks it for its version.
    """
    found = shutil.which(program)
    if found is None:
        return "the NVIDIA container toolkit is missing: install it, or give containers bare device nodes"
    try:
        said = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError) as failure:
        return f"{found} does not tell its version: {failure}"
    version = re.search(r"(\d+)\.(\d+)\.(\d+)", said)
    if version is None or tuple(map(int, version.groups())) < SAFE_TOOLKIT:
        needed = ".".join(map(str, SAFE_TOOLKIT))
        found_version = version.group() if version else "of no known version"
        return f"the NVIDIA container toolkit is {found_version}: {needed} or newer is needed"
    return None


def _node(path: Path) -> dict[str, str]:
    return {"PathOnHost": str(path), "PathInContainer": str(path), "CgroupPermissions": "rw"}


def _uuid(minor: int, driver: Path) -> str:
    for place in sorted(driver.glob("*/information")):
        fields = dict(line.split(":", 1) for line in place.read_text().splitlines() if ":" in line)
        values = {name.strip(): value.strip() for name, value in fields.items()}
        if values.get("Device Minor") == str(minor) and values.get("GPU UUID"):
            return values["GPU UUID"]
    raise SandboxUnavailable(f"the driver knows no GPU with the node /dev/nvidia{minor}")
