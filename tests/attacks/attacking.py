"""Runs the attacks on one backend, with things of the host there to be taken; and writes the table of what came of it.

python tests/attacks/bench.py docs/attacks.md      # every backend that works here
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))

from attack import Attack, Result, judge, program
from attacks import ATTACKS

from kernelevo_sandbox import (
    BACKENDS,
    Limits,
    Mount,
    Sandbox,
    SandboxBroken,
    SandboxSpec,
    SandboxUnavailable,
    interpreter_mounts,
    open_sandbox,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

ALIVE_FD = 9
USUAL: dict[str, Any] = {"memory_bytes": 256 << 20, "processes": 64, "wall_seconds": 20.0, "tmpfs_bytes": 32 << 20}
_IPC_CREAT, _IPC_RMID = 0o1000, 0


@contextlib.contextmanager
def host(isolated: bool) -> Iterator[dict[str, Any]]:
    """What an attack may try to take: files, sockets, a process, shared memory; all gone afterwards."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="attack-")))
        folder.chmod(0o755)
        (folder / "shown").mkdir(mode=0o755)
        for name, content in (("secret", "host-secret"), ("shown/mounted", "mounted")):
            (folder / name).write_text(content)
            (folder / name).chmod(0o666)
        mark = secrets.token_hex(8)
        victim = subprocess.Popen(
            [sys.executable, "-c", f"import time; '{mark}'; time.sleep(600)"], env={"CANARY": f"canary-{mark}"}
        )
        stack.callback(victim.wait)
        stack.callback(victim.kill)
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
        datagrams = sock
        datagrams.setblocking(False)
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
            "mounted": str(folder / "shown" / "mounted"),
            "drop": str(drop),
            "canary": f"canary-{mark}",
            "victim": victim.pid,
            "victim_mark": mark,
            **ports,
            "unix": str(folder / "unix"),
            "abstract": mark,
            "shm": shm.name,
            "ipc_key": key,
            "cores": len(os.sched_getaffinity(0)),
            "alive_fd": ALIVE_FD,
            "heard": heard,
            "outlived": outlived,
            "pipe": write,
            "folder": folder,
        }


async def run(sandbox: Sandbox, attack: Attack) -> tuple[Result, str]:
    """Run one attack; the result, and its evidence."""
    isolated = sandbox.name != "none"
    with host(isolated) as given:
        told = {name: value for name, value in given.items() if isinstance(value, str | int)}
        mounts = interpreter_mounts() if isolated else ()
        shown = Path(given["mounted"]).parent
        write = given["pipe"]
        spec = SandboxSpec(
            argv=(sys.executable, "-I", "-S", "-c", program(attack), json.dumps(told)),
            env={"LC_ALL": "C.UTF-8"},
            limits=Limits(**{**USUAL, **attack.limits}),
            fds={ALIVE_FD: write},
            mounts=(*mounts, Mount(source=shown, target=str(shown))),
        )
        process = await sandbox.start(spec)
        # The sandbox alone holds the pipe's other end now; the one in `given` is closed for good.
        closed = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(closed, write, inheritable=False)
        os.close(closed)
        try:
            ending = await process.wait()
        except SandboxBroken as failure:
            return Result.NOT_CONTAINED, f"the backend broke: {failure}"
        finally:
            await process.kill()
        return judge(attack, ending, given)


async def _table(path: Path) -> int:
    found: dict[str, dict[str, tuple[Result, str]]] = {}
    missing = []
    for name in BACKENDS:
        sandbox = open_sandbox(name)
        try:
            found[name] = {}
            for attack in ATTACKS:
                if name == "none" and not attack.control:
                    continue
                found[name][attack.name] = await run(sandbox, attack)
        except SandboxUnavailable as failure:
            del found[name]
            missing.append(f"{name}: {failure}")
        finally:
            await sandbox.close()
    path.write_text(table(found, missing))
    bad = [
        (n, a, e) for n, one in found.items() if n != "none" for a, (r, e) in one.items() if r is Result.NOT_CONTAINED
    ]
    print(*bad, *missing, sep="\n")
    return bool(bad)


def table(found: dict[str, dict[str, tuple[Result, str]]], missing: list[str]) -> str:
    """The table as text."""
    lines = [
        "# Attacks and what came of them",
        "",
        "Made by `python tests/attacks/bench.py docs/attacks.md`; the tests run the same attacks. *Contained*: it did not get",
        "what it was after. *Limited*: it was held or ended at a limit. Under `none` nothing isolates: there an attack is a",
        "control, which must succeed; `-` marks those that would harm a host without isolation, or whose target not every host",
        "has. Contained means that this attempt failed, no more.",
        "",
        "| kind | attack | " + " | ".join(found) + " |",
        "| --- | --- |" + " --- |" * len(found),
    ]
    for attack in ATTACKS:
        cells = [found[name][attack.name][0].value if attack.name in found[name] else "-" for name in found]
        lines.append(f"| {attack.kind} | {attack.name} | {' | '.join(cells)} |")
    for name, one in found.items():
        bad = sum(result is Result.NOT_CONTAINED for result, _ in one.values())
        lines += ["", f"{name}: {len(one)} tried, {bad} not contained."]
    lines += [f"\nNot tried: {reason}" for reason in missing]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    sys.exit(asyncio.run(_table(parser.parse_args().path)))
