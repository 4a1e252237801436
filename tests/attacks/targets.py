"""What of the host there is to be taken while an attack runs: files, sockets, a process, shared memory. Gone afterwards."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ALIVE_FD = 9
_IPC_CREAT, _IPC_RMID = 0o1000, 0


@contextlib.contextmanager
def host(isolated: bool) -> Iterator[dict[str, Any]]:
    """The targets by name; what is text or a number may be told to the attack."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="attack-")))
        folder.chmod(0o755)
        mark = secrets.token_hex(8)
        secret = f"host-secret-{secrets.token_hex(8)}"
        for name in ("shown", "store"):
            (folder / name).mkdir(mode=0o755)
        # The store has what others have built; the file beside it, their results.
        taken = ("secret", "results.db", "store/other.so", "store/other.json")
        for name, content in (*((name, secret) for name in taken), ("shown/mounted", "mounted")):
            (folder / name).write_text(content)
            (folder / name).chmod(0o666)
        victim = subprocess.Popen(
            [sys.executable, "-c", f"import time; '{mark}'; time.sleep(600)"], env={"CANARY": f"canary-{mark}"}
        )
        stack.callback(victim.wait)
        stack.callback(victim.kill)
        ports, datagrams = _listeners(stack)
        for address in (str(folder / "unix"), f"\0{mark}"):
            unix = stack.enter_context(socket.socket(socket.AF_UNIX))
            unix.bind(address)
            unix.listen()
        (folder / "unix").chmod(0o666)
        shm = Path("/dev/shm") / f"attack-{mark}"
        shm.write_text("x")
        stack.callback(shm.unlink)
        libc = ctypes.CDLL(None)
        key = secrets.randbelow(1 << 30) + 1
        segment = libc.shmget(key, 4096, _IPC_CREAT | 0o666)
        stack.callback(libc.shmctl, segment, _IPC_RMID, None)
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        stack.callback(os.close, read)
        stack.callback(os.close, write)
        drop = Path(tempfile.gettempdir()) / f"attack-drop-{mark}"
        stack.callback(drop.unlink, True)

        def heard() -> bool:
            with contextlib.suppress(BlockingIOError):
                return bool(datagrams.recv(16))
            return False

        def outlived() -> bool:
            probe = os.dup(read)
            try:
                return os.read(probe, 1) != b""
            except BlockingIOError:
                return True  # somebody still holds the other end
            finally:
                os.close(probe)

        yield {
            "isolated": isolated,
            "secret": str(folder / "secret"),
            "secret_text": secret,
            "token": f"token-{mark}",
            "results": str(folder / "results.db"),
            "store": str(folder / "store"),
            "mounted": str(folder / "shown" / "mounted"),
            "drop": str(drop),
            "canary": f"canary-{mark}",
            "victim": victim.pid,
            "victim_mark": mark,
            **ports,
            "unix": str(folder / "unix"),
            "abstract": mark,
            "shm": shm.name,
            "packages": _packages(),
            "ipc_key": key,
            "cores": len(os.sched_getaffinity(0)),
            "alive_fd": ALIVE_FD,
            "heard": heard,
            "outlived": outlived,
            "pipe": write,
            "folder": folder,
        }


def _listeners(stack: contextlib.ExitStack) -> tuple[dict[str, int], socket.socket]:
    """Ports by name, and the socket of the last."""
    ports = {}
    for name, family, kind, address in (
        ("port4", socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1"),
        ("port6", socket.AF_INET6, socket.SOCK_STREAM, "::1"),
        ("port_udp", socket.AF_INET, socket.SOCK_DGRAM, "127.0.0.1"),
    ):
        sock = stack.enter_context(socket.socket(family, kind))
        ports[name] = 0
        with contextlib.suppress(OSError):
            sock.bind((address, 0))
            if kind == socket.SOCK_STREAM:
                sock.listen()
            ports[name] = sock.getsockname()[1]
    sock.setblocking(False)
    return ports, sock


def _packages() -> str:
    """Where Triton is installed; empty where it is not."""
    found = importlib.util.find_spec("triton")
    return str(Path(found.origin).parents[1]) if found is not None and found.origin is not None else ""


def running(text: str) -> bool:
    """Whether a process of this host has this text among its arguments."""
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if text.encode() in place.read_bytes():
                return True
    return False
