"""The seccomp filter's decisions: simulated over every call, compared with libseccomp's, and tried for real."""

from __future__ import annotations

import errno
import os
import struct
from typing import Any

import pytest

from kernelevo_sandbox import BubblewrapSandbox, EndKind, SandboxUnavailable, interpreter_mounts
from kernelevo_sandbox.conformance import Kit
from kernelevo_sandbox.seccomp import (
    ALLOW,
    CLONE_NEW_NAMESPACES,
    DENIED,
    KILL_PROCESS,
    NEWEST_CALL,
    NUMBERS,
    TIOCSTI,
    Machine,
    answer,
    program,
)

ARCHITECTURES: dict[Machine, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
MACHINES: list[Machine] = ["x86_64", "aarch64"]
EPERM, ENOSYS, EAFNOSUPPORT = (answer(code) for code in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT))


def simulate(code: bytes, arch: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """Run a classic BPF program over one `struct seccomp_data`, as the kernel would; returns its verdict."""
    padded = (*arguments, *[0] * (6 - len(arguments)))
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, arch, 0, *padded)
    instructions = [struct.unpack_from("<HBBI", code, offset) for offset in range(0, len(code), 8)]
    accumulator = place = 0
    while True:
        operation, jump_true, jump_false, operand = instructions[place]
        place += 1
        match operation:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, operand)
            case 0x05:
                place += operand
            case 0x15:
                place += jump_true if accumulator == operand else jump_false
            case 0x25:
                place += jump_true if accumulator > operand else jump_false
            case 0x35:
                place += jump_true if accumulator >= operand else jump_false
            case 0x45:
                place += jump_true if accumulator & operand else jump_false
            case 0x54:
                accumulator &= operand
            case 0x06:
                return operand
            case _:
                raise AssertionError(f"unknown instruction {operation:#x}")


@pytest.mark.parametrize("machine", MACHINES)
def test_every_call(machine: Machine) -> None:
    code = program(machine)
    assert len(code) // 8 < 4096
    column = 0 if machine == "x86_64" else 1
    denied = {columns[column] for columns in DENIED.values()}
    numbers = NUMBERS[machine]
    for number in range(NEWEST_CALL + 200):
        verdict = simulate(code, ARCHITECTURES[machine], number, (0xFFFFFFFF, 0))
        if number > NEWEST_CALL or number == numbers.clone3:
            assert verdict == ENOSYS, number
        elif number in denied or number == numbers.clone:
            assert verdict == EPERM, number
        elif number in (numbers.socket, numbers.socketpair):
            assert verdict == EAFNOSUPPORT, number
        else:
            assert verdict == ALLOW, number


@pytest.mark.parametrize("machine", MACHINES)
def test_arguments(machine: Machine) -> None:
    code, arch, numbers = program(machine), ARCHITECTURES[machine], NUMBERS[machine]
    threads = 0x003D0F00  # what a thread library passes
    assert simulate(code, arch, numbers.clone, (threads,)) == ALLOW
    assert simulate(code, arch, numbers.clone, (17,)) == ALLOW
    for bit in range(32):
        if CLONE_NEW_NAMESPACES >> bit & 1:
            assert simulate(code, arch, numbers.clone, (threads | 1 << bit,)) == EPERM
    for family in range(64):
        wanted = ALLOW if family in (1, 2, 10) else EAFNOSUPPORT
        assert simulate(code, arch, numbers.socket, (family,)) == wanted
        # The kernel reads an int: what stands above it changes nothing, and must not change the answer.
        assert simulate(code, arch, numbers.socket, (family | 1 << 32,)) == wanted
    assert simulate(code, arch, numbers.ioctl, (0, TIOCSTI)) == EPERM
    assert simulate(code, arch, numbers.ioctl, (0, TIOCSTI | 7 << 32)) == EPERM
    assert simulate(code, arch, numbers.ioctl, (0, 0x5401)) == ALLOW
    assert simulate(code, arch, numbers.personality, (0xFFFFFFFF,)) == ALLOW
    assert simulate(code, arch, numbers.personality, (0x0400000,)) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_foreign_architectures_and_x32(machine: Machine) -> None:
    code = program(machine)
    for arch in (0x40000003, 0x40000028, 0xC000003E, 0xC00000B7, 0):
        if arch != ARCHITECTURES[machine]:
            assert simulate(code, arch, 1) == KILL_PROCESS
    for number in (0x40000000, 0x40000001, 0x40000000 + 272, 0xFFFFFFFF):
        assert simulate(code, ARCHITECTURES[machine], number) == ENOSYS


def test_no_table_is_said() -> None:
    with pytest.raises(SandboxUnavailable, match="riscv64"):
        program("riscv64")


@pytest.mark.parametrize("machine", MACHINES)
def test_agrees_with_libseccomp(machine: Machine, tmp_path: Any) -> None:
    """The same denials, written by name and compiled by libseccomp: it knows the numbers independently of our table."""
    try:
        import pyseccomp
    except (ImportError, RuntimeError):
        pytest.skip("libseccomp is not installed")
    filter_ = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    native = {"x86_64": pyseccomp.Arch.X86_64, "aarch64": pyseccomp.Arch.AARCH64}
    for arch in native.values():
        if filter_.exist_arch(arch):
            filter_.remove_arch(arch)
    filter_.add_arch(native[machine])
    column = 0 if machine == "x86_64" else 1
    unknown = []
    for name, columns in DENIED.items():
        if columns[column] is None:
            continue
        try:
            filter_.add_rule(pyseccomp.ERRNO(errno.EPERM), name)
        except (OSError, ValueError):
            unknown.append(name)
    path = tmp_path / "filter"
    with path.open("wb") as file:
        filter_.export_bpf(file)
    theirs, ours = path.read_bytes(), program(machine)
    special = {getattr(NUMBERS[machine], name) for name in NUMBERS[machine].__slots__}
    missing = {DENIED[name][column] for name in unknown}
    for number in range(NEWEST_CALL + 1):
        if number not in special and number not in missing:
            arch = ARCHITECTURES[machine]
            assert simulate(ours, arch, number) == simulate(theirs, arch, number), number
    assert len(unknown) <= 4, unknown


async def test_in_force() -> None:
    """Asked of the kernel, from inside: errors for what is denied, and death for another architecture's calls."""
    sandbox = BubblewrapSandbox()
    kit = Kit(sandbox=sandbox, mounts=interpreter_mounts())
    try:
        if os.uname().machine == "x86_64":
            numbers = {
                "bpf": 321,
                "io_uring_setup": 425,
                "clone3": 435,
                "keyctl": 250,
                "x32 getpid": 0x40000000 + 39,
                "beyond": 999,
            }
            found = await kit.report(
                "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\n"
                f"print(json.dumps({{n: (c.syscall(k, 0, 0, 0, 0, 0), ctypes.get_errno())[1] for n, k in {numbers!r}.items()}}))"
            )
            for name in ("bpf", "io_uring_setup", "keyctl"):
                assert found[name] == errno.EPERM, found
            for name in ("clone3", "x32 getpid", "beyond"):
                assert found[name] == errno.ENOSYS, found
            # mov eax, 20; int 0x80; ret: getpid by i386's gate.
            ending = await kit.run(
                "import ctypes, mmap\nm = mmap.mmap(-1, 4096, prot=7)\nm.write(b'\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3')\n"
                "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()"
            )
            # A kernel without 32-bit support ends it by SIGSEGV before any filter is asked.
            assert ending.kind in (EndKind.FORBIDDEN_CALL, EndKind.SIGNALED), ending
    finally:
        await sandbox.close()
