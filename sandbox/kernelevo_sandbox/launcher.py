"""The small trusted process that every sandboxed program is forked from, on the host or as a container's first process.

The evaluator has many threads and much memory: forking from it is slow and unsafe, and a parent-death signal would follow
the thread that forked. This program is single-threaded and small. It is run by path (`python -I -S launcher.py FD`), imports
the standard library alone, and must not import the rest of the package.

Protocol, over a SEQPACKET socket whose other end the evaluator holds:

* in: `{"cell": id, "join": [cgroup.procs paths]}` with one descriptor, the cell's own SEQPACKET socket;
* out: `{"cell": id, "status": wait status, "cpu": seconds}` when that cell has ended.

A cell is a forked child that has entered its cgroups (slow: the kernel waits for a grace period) and then waits on its own
socket for what to run, so that a spare one can be kept ready. There it says `{"pid": …}` with its pidfd attached, or
`{"error": …}`; it then takes one packet whose first descriptor is a memfd holding the JSON request and whose others are the
program's. The socket closes when the program has been executed; `{"error": …}` comes before that if it could not be.

When the evaluator dies, the control socket closes: this process thaws what was frozen, and ends all that it started.

As a container's first process (`python -I -S launcher.py PATH`) it connects to the SEQPACKET socket at PATH, says
`{"ready": 1}`, takes one packet as above, forks, and reports `{"wait-status": …}`; the packet brings a socket for errors, which
the program's execution closes. It then waits to be killed, so that what the container used can still be read, and ends by
itself, and with it everything in its namespace, when the evaluator's end closes.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
SECCOMP_MODE_FILTER = 2
BPF_INSTRUCTION_BYTES = 8
MAX_FDS = 250
PACKET = 64 * 1024
PARENT_CHECK_SECONDS = 1.0
END_SECONDS = 4.0

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int, pointer: Any = 0) -> None:
    if _libc.prctl(option, value, pointer, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def _receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    fds = array.array("i")
    message, ancillary, _, _ = sock.recvmsg(PACKET, socket.CMSG_LEN(MAX_FDS * fds.itemsize))
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return message, list(fds)


def _send(sock: socket.socket, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())] if fds else []
    sock.sendmsg([json.dumps(message).encode()], ancillary)


def _read_all(fd: int) -> bytes:
    chunks = []
    offset = 0
    while chunk := os.pread(fd, 1 << 20, offset):
        chunks.append(chunk)
        offset += len(chunk)
    return b"".join(chunks)


def _arrange_fds(targets: dict[int, int], keep: tuple[int, ...]) -> tuple[int, ...]:
    """Put descriptors at their numbers and close every other one; returns where those in `keep` ended up.

    Everything is first moved above all targets, so that no move overwrites a descriptor that is still to be moved.
    """
    base = max([2, *targets]) + 1
    lifted = {target: _lift(fd, base) for target, fd in targets.items()}
    kept = [_lift(fd, base) for fd in keep]
    for target, fd in lifted.items():
        os.dup2(fd, target, inheritable=True)
    final = []
    for place, fd in enumerate(kept):
        os.dup2(fd, base + place, inheritable=False)
        final.append(base + place)
    wanted = sorted({*targets, *final})
    for low, high in zip([-1, *wanted], [*wanted, 1 << 20], strict=True):
        if low + 1 < high:  # an empty range from 0 on would close everything
            os.closerange(low + 1, high)
    return tuple(final)


def _lift(fd: int, base: int) -> int:
    # The second half of the range: the kept ones end at base, base+1, … and must not overwrite a lifted one.
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, base + MAX_FDS)


def _default_signals() -> None:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _restrict(request: dict[str, Any]) -> None:
    """Cores, priority, limits, identity: everything that the program inherits."""
    if request.get("cpus"):
        os.sched_setaffinity(0, request["cpus"])
    if request.get("nice"):
        os.setpriority(os.PRIO_PROCESS, 0, request["nice"])
    for name, value in request["rlimits"].items():
        limit = getattr(resource, name)
        hard = resource.getrlimit(limit)[1]
        if hard != resource.RLIM_INFINITY and hard < value:
            value = hard
        resource.setrlimit(limit, (value, value))
    if request.get("uid") is not None:
        os.setgroups([])
        os.setresgid(request["uid"], request["uid"], request["uid"])
        os.setresuid(request["uid"], request["uid"], request["uid"])


class _FilterProgram(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _execute(request: dict[str, Any], errors: socket.socket) -> NoReturn:
    try:
        os.chdir(request["folder"])
        if request["seccomp"] is not None:
            code = bytes.fromhex(request["seccomp"])
            program = _FilterProgram(len(code) // BPF_INSTRUCTION_BYTES, code)
            _prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program))
        os.execve(request["argv"][0], request["argv"], request["env"])  # noqa: S606
    except OSError as failure:
        _send(errors, {"error": f"{request['argv'][0]}: {failure.strerror or failure}"})
    os._exit(127)


def _children() -> list[int]:
    """From the parents in /proc: not every kernel lists a process's children."""
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208  names, not paths
        if name.isdigit():
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{name}/stat").read_bytes()
                if int(stat.rpartition(b")")[2].split()[1]) == os.getpid():
                    found.append(int(name))
    return found


def _supervise(request: dict[str, Any], errors: socket.socket, report: int) -> NoReturn:
    """Run the program below this process, and end every process that it leaves (for the backend without a namespace)."""
    watched = {signal.SIGTERM, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    program = os.fork()
    if program == 0:
        _default_signals()
        os.close(report)
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        _restrict(request)
        _execute(request, errors)
    errors.close()
    for fd in request["fds"]:
        os.close(int(fd))
    ending = False
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid == program:
            ending = True
            with contextlib.suppress(BrokenPipeError):
                os.write(report, json.dumps({"wait-status": status}).encode() + b"\n")
        if pid != 0:
            continue  # reap all that have ended before looking for more
        if ending:
            # What its children leave behind comes here as well, since this process is their subreaper.
            for child in _children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
        arrived = signal.sigtimedwait(watched, 0.01 if ending else 1.0)
        ending = ending or (arrived is not None and arrived.si_signo == signal.SIGTERM)
    os._exit(0)


def _cell(sock: socket.socket, join: list[str]) -> NoReturn:
    signal.set_wakeup_fd(-1)
    _default_signals()
    try:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for path in join:
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            os.write(fd, b"0")
            os.close(fd)
        _send(sock, {"pid": os.getpid()}, (os.pidfd_open(os.getpid()),))
        message, fds = _receive(sock)
        if not message:
            os._exit(0)
        request = json.loads(_read_all(fds[0]))
        targets = {int(number): fds[index] for number, index in request["fds"].items()}
        os.setsid()
        os.umask(0o077)
        # Numbers change hands now: an object that still owned its old one would close another's.
        own = sock.detach()
        if request["supervise"]:
            moved, report = _arrange_fds(targets, (own, fds[request["report"]]))
            _supervise(request, socket.socket(fileno=moved), report)
        (moved,) = _arrange_fds(targets, (own,))
        sock = socket.socket(fileno=moved)
        _restrict(request)
        # After the change of identity, which clears it.
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        _execute(request, sock)
    except BaseException as failure:
        with contextlib.suppress(OSError):
            _send(sock, {"error": f"{type(failure).__name__}: {failure}"})
    os._exit(127)


def contain(path: str) -> NoReturn:
    """Run one program as a container's first process. See the module's docstring."""
    # Same uid as the program's: undumpable, neither its memory nor its descriptors can be opened by it.
    _prctl(PR_SET_DUMPABLE, 0)
    owner = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    owner.connect(path)
    # The engine's own pipes end here: what nobody can write to need not be read, limited or waited for.
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    _send(owner, {"ready": 1})
    message, fds = _receive(owner)
    if not message:
        os._exit(0)
    request = json.loads(_read_all(fds[0]))
    program = os.fork()
    if program == 0:
        _contained(request, fds)
    for fd in fds:
        os.close(fd)
    while True:
        readable, _, _ = select.select([owner.fileno(), wake_read], [], [])
        if owner.fileno() in readable:
            os._exit(0)  # nothing more is ever sent: it has closed
        os.read(wake_read, 4096)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0] != 0:
                if ended[0] == program:
                    owner.send(json.dumps({"wait-status": ended[1]}).encode() + b"\n")


def _contained(request: dict[str, Any], fds: list[int]) -> NoReturn:
    signal.set_wakeup_fd(-1)
    _default_signals()
    errors = socket.socket(fileno=fds[request["errors"]])
    try:
        _prctl(PR_SET_DUMPABLE, 1)  # the parent's stays with the parent
        # The kernel shall take the program, not this one's parent, whose word on its end would be missed.
        Path("/proc/self/oom_score_adj").write_text("1000")
        os.setsid()
        os.umask(0o077)
        targets = {int(number): fds[index] for number, index in request["fds"].items()}
        (moved,) = _arrange_fds(targets, (errors.detach(),))
        errors = socket.socket(fileno=moved)
        _restrict(request)
        _execute(request, errors)
    except BaseException as failure:
        with contextlib.suppress(OSError):
            _send(errors, {"error": f"{type(failure).__name__}: {failure}"})
    os._exit(127)


def main() -> None:
    """Serve until the control socket closes."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.setblocking(True)
    # Orphans of a dying namespace come here and not to a host's init that may not reap.
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    parent = os.getppid()
    cells: dict[int, int] = {}
    thaw: dict[int, list[tuple[str, str]]] = {}
    try:
        while True:
            readable, _, _ = select.select([control.fileno(), wake_read], [], [], PARENT_CHECK_SECONDS)
            if os.getppid() != parent:
                break  # a process that the evaluator forked may still hold the socket's other end
            if wake_read in readable:
                os.read(wake_read, 4096)
                _reap(control, cells, thaw)
            if control.fileno() in readable:
                message, fds = _receive(control)
                if not message:
                    break
                request = json.loads(message)
                pid = os.fork()
                if pid == 0:
                    control.close()
                    _cell(socket.socket(fileno=fds[0]), request["join"])
                os.close(fds[0])
                cells[pid] = request["cell"]
                thaw[pid] = request["thaw"]
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        _end_all(set(cells), thaw)


def _end_all(cells: set[int], thaw: dict[int, list[tuple[str, str]]]) -> None:
    """End every process below this one, frozen or stopped, and wait until it is gone.

    Parent-death signals alone do not: a process that was frozen before it had asked for one gets none when its parent dies.
    It comes here then, as this process is a subreaper.
    """
    for pid in cells:
        # A supervising cell ends its children first.
        for number in (signal.SIGTERM, signal.SIGCONT):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    for paths in thaw.values():
        _thaw(paths)
    began = time.monotonic()
    while (waited := time.monotonic() - began) < END_SECONDS:
        try:
            while (ended := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                cells.discard(ended)
        except ChildProcessError:
            return
        for child in _children():
            if child not in cells or waited > END_SECONDS / 2:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
        time.sleep(0.005)


def _thaw(paths: list[tuple[str, str]]) -> None:
    for path, value in paths:
        with contextlib.suppress(OSError):
            Path(path).write_text(value)


def _reap(control: socket.socket, cells: dict[int, int], thaw: dict[int, list[tuple[str, str]]]) -> None:
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        cell = cells.pop(pid, None)
        # Whether it or its evaluator ended first cannot be told from here, and no tree is to stay frozen without its cell.
        _thaw(thaw.pop(pid, []))
        if cell is not None:
            _send(control, {"cell": cell, "status": status, "cpu": usage.ru_utime + usage.ru_stime})


if __name__ == "__main__":
    if sys.argv[1].isdigit():
        main()
    else:
        contain(sys.argv[1])
