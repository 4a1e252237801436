"""What bubblewrap is told: the root file system and identity of one sandbox, as options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kernelevo_sandbox.bubblewrap.shapes import Identity
from kernelevo_sandbox.mounts import HOSTNAME, etc_files, needed

if TYPE_CHECKING:
    from typing import Protocol

    from kernelevo_sandbox.contract import Mount, SandboxSpec

    class PassFile(Protocol):
        """Passes a file to bubblewrap; returns its descriptor's number there."""

        def __call__(self, content: bytes, name: str) -> str: ...


_INSIDE_UID = 1000
"""What an ordinary user's sandbox calls itself inside; outside it is that user."""
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_SYSFS = ("/sys/devices/system/cpu",)
"""Core counts and caches, which numeric libraries look up."""


def options(spec: SandboxSpec, identity: Identity, uid: int | None, pass_file: PassFile) -> list[str]:
    """What bubblewrap is told of namespaces, identity, environment and files."""
    inner = str(uid if uid is not None else _INSIDE_UID)
    options = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    if identity is Identity.INSIDE:
        options += ["--cap-drop", "ALL"]
        # What setpriv needs for its drop, and has dropped when the program starts.
        for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):
            options += ["--cap-add", capability]
    else:
        options += ["--unshare-user", "--disable-userns", "--uid", inner, "--gid", inner]
    options += ["--hostname", HOSTNAME, "--new-session", "--die-with-parent", "--clearenv"]
    for name, value in spec.env.items():
        options += ["--setenv", name, value]
    size = str(max(spec.limits.tmpfs_bytes, 4096))
    options += ["--perms", "1777", "--size", size, "--tmpfs", "/tmp"]
    for place in _SYSTEM:
        path = Path(place)
        if path.is_symlink():
            options += ["--symlink", str(path.readlink()), place]
        elif path.is_dir():
            options += ["--ro-bind", place, place]
    options += ["--perms", "0755", "--dir", "/etc"]
    for name in _ETC:
        options += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for name, content in etc_files(inner).items():
        options += ["--perms", "0444", "--ro-bind-data", pass_file(content.encode(), name), f"/etc/{name}"]
    options += ["--proc", "/proc"]
    options += ["--perms", "0755", "--tmpfs", "/dev"]
    for device in _DEVICES:
        options += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    for link, target in {"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}.items():
        options += ["--symlink", f"/proc/self/{target}", f"/dev/{link}"]
    for node in spec.devices:
        options += ["--dev-bind", str(node), str(node)]
    options += ["--perms", "1777", "--size", size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    made = {"/", "/tmp", "/etc", "/proc", "/dev", "/dev/shm", *_SYSTEM}
    for place in ("/sys",) if spec.devices else _SYSFS:
        options += [*_parents(place, made), "--ro-bind-try", place, place]
    options += _mount_options(spec.mounts, made)
    options += ["--remount-ro", "/", "--chdir", "/tmp"]
    return options


def _parents(target: str, made: set[str]) -> list[str]:
    """Folders above a mount; bubblewrap itself would make them for its own uid alone."""
    options = []
    for parent in reversed(Path(target).parents):
        if str(parent) not in made:
            made.add(str(parent))
            options += ["--perms", "0755", "--dir", str(parent)]
    return options


def _mount_options(mounts: tuple[Mount, ...], made: set[str]) -> list[str]:
    options: list[str] = []
    shown = {place: Path(place) for place in _SYSTEM}
    for mount in needed(mounts, shown):
        if not any(str(place) in shown for place in Path(mount.target).parents):
            options += _parents(mount.target, made)
        options += ["--ro-bind", str(mount.source), mount.target]
        shown[mount.target] = mount.source
        made.add(mount.target)
    return options
