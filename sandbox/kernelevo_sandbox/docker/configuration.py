"""What the engine is told of one container. Pure: it asks nothing and touches nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelevo_sandbox import seccomp
from kernelevo_sandbox.mounts import HOSTNAME, needed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernelevo_sandbox.contract import Mount, SandboxSpec

PYTHON = "/usr/bin/python3"
"""The image's own: it runs the container's first process, whatever Python the program brings."""
BOX = "/.sandbox"
"""Where the folder is mounted that holds the first process's source and, until it has connected, its socket."""
SOCKET = "control"
LAUNCHER = "launcher.py"
OWN_PROCESSES = 1
"""The container's first process: in its count, not the program's."""
_LEAST_TMPFS_BYTES = 4096
_LOG = {"Type": "json-file", "Config": {"max-size": "64k", "max-file": "1"}}
"""For what goes wrong before the first process is ready; it then closes its streams."""
_SYSFS_KEPT = "/sys/devices/system/cpu"
"""Core counts and caches, which numeric libraries look up."""
_MASKED = (
    *("/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats"),
    *("/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats"),
    *("/sys/firmware", "/sys/fs/cgroup", "/sys/devices/virtual/powercap"),
)
_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What is settled when a container is created: containers of one shape are interchangeable."""

    memory_bytes: int
    processes: int
    tmpfs_bytes: int
    mounts: tuple[Mount, ...]
    devices: tuple[Path, ...]
    cpus: frozenset[int] | None

    @classmethod
    def of(cls, spec: SandboxSpec) -> Shape:
        """The shape that a spec needs."""
        limits = spec.limits
        return cls(
            memory_bytes=limits.memory_bytes,
            processes=limits.processes,
            tmpfs_bytes=limits.tmpfs_bytes,
            mounts=spec.mounts,
            devices=spec.devices,
            cpus=spec.cpus,
        )


def configuration(
    shape: Shape,
    *,
    image: str,
    uid: int,
    box: Path,
    etc: Mapping[str, Path],
    labels: Mapping[str, str],
    runtime: str | None,
    gpus: Mapping[str, Any],
) -> dict[str, Any]:
    """The body of the request that creates a container.

    `uid` is the program's inside; `box` is mounted at `BOX`, the files of `etc` by their names below /etc; `gpus` are fields from
    `kernelevo_sandbox.docker.gpus.gpu_request`.
    """
    tmpfs = max(shape.tmpfs_bytes, _LEAST_TMPFS_BYTES)
    binds = [_bind(box, BOX), *(_bind(file, f"/etc/{name}") for name, file in etc.items())]
    filesystems = {"/tmp": f"rw,exec,nosuid,nodev,size={tmpfs},mode=1777"}
    if not shape.devices:
        # Nothing of /sys but what is needed; with devices, drivers look up buses and topology there.
        filesystems["/sys"] = "ro,noexec,nosuid,nodev,size=4096,mode=0555"
        binds.append(_bind(Path(_SYSFS_KEPT), _SYSFS_KEPT))
    binds += [_bind(mount.source, mount.target) for mount in needed(shape.mounts, {})]
    host: dict[str, Any] = {
        "NetworkMode": "none",
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges:true", f"seccomp={json.dumps(seccomp.profile())}"],
        "Privileged": False,
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "PidsLimit": shape.processes + OWN_PROCESSES,
        "Memory": shape.memory_bytes,
        # Together with swap: so none.
        "MemorySwap": shape.memory_bytes,
        "ShmSize": tmpfs,
        "Tmpfs": filesystems,
        "Mounts": binds,
        "MaskedPaths": list(_MASKED),
        "ReadonlyPaths": list(_READ_ONLY),
        "Ulimits": [{"Name": name, "Soft": 0, "Hard": 0} for name in ("core", "msgqueue")],
        "LogConfig": _LOG,
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
        **gpus,
    }
    if shape.cpus is not None:
        host["CpusetCpus"] = ",".join(str(cpu) for cpu in sorted(shape.cpus))
    if runtime is not None:
        host["Runtime"] = runtime
    # An image for GPUs may ask for all of them; only a device request gives any.
    environment = ["LC_ALL=C.UTF-8", *([] if gpus.get("DeviceRequests") else ["NVIDIA_VISIBLE_DEVICES=void"])]
    return {
        "Image": image,
        "Entrypoint": [PYTHON, "-I", "-S", "-B", f"{BOX}/{LAUNCHER}", f"{BOX}/{SOCKET}"],
        "Cmd": [],
        "User": f"{uid}:{uid}",
        "WorkingDir": "/tmp",
        "Hostname": HOSTNAME,
        "NetworkDisabled": True,
        "Env": environment,
        "Labels": dict(labels),
        "Healthcheck": {"Test": ["NONE"]},
        "Tty": False,
        "OpenStdin": False,
        "AttachStdin": False,
        "AttachStdout": False,
        "AttachStderr": False,
        "HostConfig": host,
    }


def _bind(source: Path, target: str) -> dict[str, Any]:
    # Not recursive: what is mounted below a source would keep its own flags, and be writable.
    options = {"Propagation": "rprivate", "NonRecursive": True}
    return {"Type": "bind", "Source": str(source), "Target": target, "ReadOnly": True, "BindOptions": options}
