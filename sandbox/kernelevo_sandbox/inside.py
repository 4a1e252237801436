"""What a probe tries from inside a sandbox. Its source is run there as it stands: standard library only, no other module.

It prints one JSON object: for each attempt, whether it was refused, and what was seen. Nothing that it tries does harm where
it is not refused: files are opened and not written, signals are signal 0, and calls get arguments that fail by themselves.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_CLONE_NEWUSER = 0x10000000
_AF_VSOCK = 40
_MEBIBYTE = 1 << 20


def _error(failure: OSError) -> str:
    return errno.errorcode.get(failure.errno or 0, str(failure))


def _opened(paths: list[str], flags: int) -> tuple[bool, str]:
    opened, refused = [], []
    for path in paths:
        try:
            os.close(os.open(path, flags))
            opened.append(path)
        except OSError as failure:
            refused.append(f"{path}: {_error(failure)}")
    return not opened, f"opened {', '.join(opened)}" if opened else "; ".join(refused)


def _call(name: str, *arguments: Any) -> tuple[bool, str]:
    libc = ctypes.CDLL(None, use_errno=True)
    result = getattr(libc, name)(*arguments)
    code = ctypes.get_errno()
    if result != -1:
        return False, f"{name} succeeded"
    return code == errno.EPERM, f"{name}: {errno.errorcode.get(code, code)}"


def _connect(targets: list[tuple[int, Any]]) -> tuple[bool, str]:
    seen = []
    reached = False
    for family, address in targets:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as sock:
                sock.settimeout(1.0)
                sock.connect(address)
            reached = True
            seen.append(f"reached {address!r}")
        except OSError as failure:
            seen.append(f"{address!r}: {_error(failure)}")
    return not reached, "; ".join(seen)


def _status(*names: str) -> dict[str, str]:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return {name: fields.get(name, "?").strip() for name in names}


def _capabilities() -> tuple[bool, str]:
    found = _status("CapInh", "CapPrm", "CapEff", "CapAmb", "NoNewPrivs")
    none = all(set(value) == {"0"} for name, value in found.items() if name.startswith("Cap"))
    return none and found["NoNewPrivs"] == "1", " ".join(f"{name}={value}" for name, value in found.items())


def _seccomp() -> tuple[bool, str]:
    mode = _status("Seccomp")["Seccomp"]
    return mode == "2", f"Seccomp: {mode}"


def _environments(entries: list[str]) -> tuple[bool, str]:
    found: set[str] = set()
    for pid in os.listdir("/proc"):  # noqa: PTH208
        if pid.isdigit() and int(pid) != os.getpid():
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            found.update(entry for entry in entries if bytes.fromhex(entry) in environment)
    return not found, f"{len(found)} of the caller's {len(entries)} entries are in some /proc/*/environ"


def _signal(pid: int) -> tuple[bool, str]:
    try:
        os.kill(pid, 0)
    except OSError as failure:
        return True, f"kill({pid}, 0): {_error(failure)}"
    return False, f"kill({pid}, 0) was allowed"


def _fill(limit: int) -> tuple[bool, str]:
    """Write beyond the limit into a file in /tmp that is removed again."""
    written = 0
    with tempfile.TemporaryFile(dir="/tmp") as file:
        try:
            while written <= limit:
                written += os.write(file.fileno(), b"x" * 65536)
        except OSError as failure:
            return True, f"{_error(failure)} after {written} bytes"
    return False, f"{written} bytes were written"


def _private_tmp(host_file: str, limit: int) -> tuple[bool, str]:
    if Path(host_file).exists():
        return False, f"the host's {host_file} is visible"
    return _fill(limit)


def _file_size(limit: int) -> tuple[bool, str]:
    fd = os.memfd_create("probe")
    try:
        os.pwrite(fd, b"x", limit + 1)
    except OSError as failure:
        return failure.errno == errno.EFBIG, f"writing beyond {limit} bytes: {_error(failure)}"
    finally:
        os.close(fd)
    return False, f"a file grew beyond {limit} bytes"


def _vsock() -> tuple[bool, str]:
    try:
        socket.socket(_AF_VSOCK, socket.SOCK_STREAM).close()
    except OSError as failure:
        return True, f"AF_VSOCK: {_error(failure)}"
    return False, "an AF_VSOCK socket was created"


def main(given: dict[str, Any]) -> None:
    """Try everything, and print what came of it."""
    attempts: dict[str, Callable[[], tuple[bool, str]]] = {
        "no_network": lambda: _connect(
            [(socket.AF_INET, ("127.0.0.1", given["port"])), (socket.AF_UNIX, "\0" + given["abstract"])]
        ),
        "no_hypervisor_sockets": _vsock,
        "no_capabilities": _capabilities,
        "kernel_settings": lambda: _opened(["/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"], os.O_WRONLY),
        "clean_environment": lambda: _environments(given["environment"]),
        "host_files": lambda: _opened(["/etc/shadow", given["secret"]], os.O_RDONLY),
        "no_user_namespaces": lambda: _call("unshare", _CLONE_NEWUSER),
        "no_mounts": lambda: _call("mount", None, b"/nowhere", None, 0, None),
        "no_tracing": lambda: _call("ptrace", 2, 0x7FFFFFFF, 0, 0),
        "no_signals_out": lambda: _signal(given["pid"]),
        "seccomp": _seccomp,
        "private_tmp": lambda: _private_tmp(given["secret"], given["tmpfs"]),
        "file_size_limit": lambda: _file_size(given["file_size"]),
    }
    # A write beyond the limit shall fail, not kill.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    print(json.dumps({name: attempt() for name, attempt in attempts.items()}))  # noqa: T201


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
