"""The seccomp filter that every sandboxed program runs under, assembled here as a classic BPF program.

`profile` says the same in the form that container engines take, from the same tables.

It denies what reaches for the kernel's large and rarely needed surfaces: namespaces, mounts, tracing, BPF, io_uring, keys,
modules, clocks, foreign architectures, socket families with a way out of the network namespace (vsock reaches a hypervisor).
Most answers are errors, so that a program which merely asks can go on. Numbers beyond the newest known call answer ENOSYS,
so that a new kernel's calls open nothing. It needs no libseccomp; and must not be the only wall: the namespaces, the uid
and the lack of capabilities stand behind it.
"""

from __future__ import annotations

import errno
import platform
import struct
from dataclasses import dataclass
from typing import Any, Literal

from kernelevo_sandbox.contract import SandboxUnavailable

Machine = Literal["x86_64", "aarch64"]

DENIED: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "create_module": (174, None),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "get_kernel_syms": (177, None),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "query_module": (178, None),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "_sysctl": (156, None),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "uselib": (134, None),
    "vhangup": (153, 58),
    "memfd_secret": (447, 447),
}
"""Calls answered with EPERM: their numbers on x86-64 and aarch64 (`None`: it has no such call)."""

NEWEST_CALL = 462
"""mseal, of Linux 6.10. The tables of both architectures are one from 424 on."""

ALLOWED_FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10}
CLONE_NEW_NAMESPACES = 0x7E020000
"""Every CLONE_NEW* that `clone` takes (CLONE_NEWTIME exists for `unshare` and `clone3` alone)."""
TIOCSTI = 0x5412
TIOCLINUX = 0x541C
PERSONALITIES = (0, 0xFFFFFFFF)
"""Plain Linux, and the question which one it is."""

ALLOW = 0x7FFF0000
KILL_PROCESS = 0x80000000
_ERRNO = 0x00050000

_X32_BIT = 0x40000000
_ARCHITECTURES: dict[Machine, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_JUMP_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_JUMP_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_JUMP_ANY_BIT = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K


def answer(error: int) -> int:
    """The filter's return value for an error number."""
    return _ERRNO | error


@dataclass(frozen=True, slots=True)
class Numbers:
    """The calls whose arguments are looked at."""

    clone: int
    clone3: int
    socket: int
    socketpair: int
    ioctl: int
    personality: int


NUMBERS: dict[Machine, Numbers] = {
    "x86_64": Numbers(clone=56, clone3=435, socket=41, socketpair=53, ioctl=16, personality=135),
    "aarch64": Numbers(clone=220, clone3=435, socket=198, socketpair=199, ioctl=29, personality=92),
}


class _Program:
    """Instructions, appended in order. Every condition is followed by what happens when it is true."""

    def __init__(self) -> None:
        self.instructions: list[tuple[int, int, int, int]] = []

    def load(self, offset: int) -> None:
        self.instructions.append((_LOAD, 0, 0, offset))

    def give(self, value: int) -> None:
        self.instructions.append((_RETURN, 0, 0, value))

    def unless_equal(self, value: int, skip: int) -> None:
        self.instructions.append((_JUMP_EQUAL, 0, skip, value))

    def if_equal(self, value: int, result: int) -> None:
        self.unless_equal(value, 1)
        self.give(result)

    def if_at_least(self, value: int, result: int) -> None:
        self.instructions.append((_JUMP_AT_LEAST, 0, 1, value))
        self.give(result)

    def if_any_bit(self, mask: int, result: int) -> None:
        self.instructions.append((_JUMP_ANY_BIT, 0, 1, mask))
        self.give(result)

    def for_call(self, number: int, body: _Program) -> None:
        """Run `body` for one call; it ends in a return."""
        self.unless_equal(number, len(body.instructions))
        self.instructions += body.instructions


def _argument(index: int) -> int:
    """Offset of an argument's low half. The kernel reads no more of the arguments that are looked at here."""
    return _ARGUMENTS + 8 * index


def _families() -> _Program:
    body = _Program()
    body.load(_argument(0))
    for family in ALLOWED_FAMILIES.values():
        body.if_equal(family, ALLOW)
    body.give(answer(errno.EAFNOSUPPORT))
    return body


def _machine(machine: str | None) -> Machine:
    name = machine if machine is not None else platform.machine()
    if name == "x86_64":
        return "x86_64"
    if name == "aarch64":
        return "aarch64"
    raise SandboxUnavailable(f"no seccomp filter for {name}: KernelEvo isolates on x86_64 and aarch64")


def program(machine: str | None = None) -> bytes:
    """The filter as an array of `struct sock_filter`, for this machine unless another is named.

    Raises:
        SandboxUnavailable: there is no table for this architecture.
    """
    name = _machine(machine)
    column = 0 if name == "x86_64" else 1
    numbers = NUMBERS[name]
    filter_ = _Program()
    filter_.load(_ARCH)
    filter_.unless_equal(_ARCHITECTURES[name], 1)
    filter_.instructions.append((0x05, 0, 0, 1))  # BPF_JMP | BPF_JA: over the next one
    filter_.give(KILL_PROCESS)
    filter_.load(_NUMBER)
    # x32's calls, marked by a bit, are such numbers too; and so is -1.
    filter_.if_at_least(NEWEST_CALL + 1, answer(errno.ENOSYS))
    # glibc falls back to `clone`, whose flags a filter can see.
    filter_.if_equal(numbers.clone3, answer(errno.ENOSYS))

    body = _Program()
    body.load(_argument(0))
    body.if_any_bit(CLONE_NEW_NAMESPACES, answer(errno.EPERM))
    body.give(ALLOW)
    filter_.for_call(numbers.clone, body)

    for number in (numbers.socket, numbers.socketpair):
        filter_.for_call(number, _families())

    body = _Program()
    body.load(_argument(1))
    for request in (TIOCSTI, TIOCLINUX):
        body.if_equal(request, answer(errno.EPERM))
    body.give(ALLOW)
    filter_.for_call(numbers.ioctl, body)

    body = _Program()
    body.load(_argument(0))
    for personality in PERSONALITIES:
        body.if_equal(personality, ALLOW)
    body.give(answer(errno.EPERM))
    filter_.for_call(numbers.personality, body)

    for columns in DENIED.values():
        if (denied := columns[column]) is not None:
            filter_.if_equal(denied, answer(errno.EPERM))
    filter_.give(ALLOW)
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in filter_.instructions)


def profile(machine: str | None = None) -> dict[str, Any]:
    """The filter as a container engine's seccomp profile.

    An engine's libseccomp leaves out calls whose names it does not know, and a profile cannot speak of numbers beyond all
    names; so `program` is loaded as well, before a contained program is executed. `personality` is stricter here: one
    condition an argument is all that a rule can hold.

    Raises:
        SandboxUnavailable: there is no table for this architecture.
    """
    name = _machine(machine)
    column = 0 if name == "x86_64" else 1
    denied = [call for call, columns in DENIED.items() if columns[column] is not None]
    rules = [_rule(denied, errno.EPERM), _rule(["clone3"], errno.ENOSYS)]
    for bit in range(32):
        if (flag := 1 << bit) & CLONE_NEW_NAMESPACES:
            rules.append(_rule(["clone"], errno.EPERM, "MASKED_EQ", 0, flag, flag))
    families = sorted(ALLOWED_FAMILIES.values())
    for call in ("socket", "socketpair"):
        for family in range(families[-1]):
            if family not in families:
                rules.append(_rule([call], errno.EAFNOSUPPORT, "EQ", 0, family))
        rules.append(_rule([call], errno.EAFNOSUPPORT, "GT", 0, families[-1]))
    rules += [_rule(["ioctl"], errno.EPERM, "MASKED_EQ", 1, 0xFFFFFFFF, request) for request in (TIOCSTI, TIOCLINUX)]
    rules.append(_rule(["personality"], errno.EPERM, "NE", 0, PERSONALITIES[1]))
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": [f"SCMP_ARCH_{name.upper()}"],
        "syscalls": rules,
    }


def _rule(
    names: list[str], error: int, operation: str | None = None, index: int = 0, value: int = 0, second: int = 0
) -> dict[str, Any]:
    rule: dict[str, Any] = {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": error}
    if operation is not None:
        rule["args"] = [{"index": index, "value": value, "valueTwo": second, "op": f"SCMP_CMP_{operation}"}]
    return rule
