"""What crosses into a sandbox and out of it: streams, environment, descriptors, and nothing else."""

from __future__ import annotations

import array
import asyncio
import mmap
import os
import socket

from kernelevo_sandbox.conformance.kit import Kit, check, closing, eventually, readable, told
from kernelevo_sandbox.contract import EndKind


@check
async def streams_are_captured_apart(kit: Kit) -> None:
    ending = await kit.run("import sys; print('out'); print('err', file=sys.stderr)")
    assert (ending.stdout.text(), ending.stderr.text()) == ("out\n", "err\n"), told(ending)


@check
async def long_output_keeps_head_and_tail(kit: Kit) -> None:
    ending = await kit.run("import sys; sys.stdout.write('first' + 'x' * 500_000 + 'last')")
    assert ending.kind is EndKind.EXITED, told(ending)
    assert ending.stdout.total_bytes == 500_009
    assert ending.stdout.head.startswith(b"first") and ending.stdout.tail.endswith(b"last")
    assert len(ending.stdout.head) + len(ending.stdout.tail) < 200_000


@check
async def output_is_seen_while_it_runs(kit: Kit) -> None:
    async with kit.running("import time; print('now', flush=True); time.sleep(30)") as process:
        await eventually(lambda: process.output()[0].head == b"now\n")


@check
async def environment_is_exactly_as_given(kit: Kit) -> None:
    given = {"LC_ALL": "C.UTF-8", "ODD": "ü = \n'\"$x", "EMPTY": ""}
    found = await kit.report("print(json.dumps(dict(os.environ)))", env=given)
    found.pop("PWD", None)
    assert found == given, found


@check
async def only_mapped_descriptors_cross(kit: Kit) -> None:
    read, write = os.pipe()
    # Inheritable, as a careless library leaves them: it must not cross all the same.
    stray = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(stray, True)
    one, two = os.memfd_create("one"), os.memfd_create("two")
    os.write(one, b"1")
    os.write(two, b"2")
    with closing(read, write, stray, one, two):
        found = await kit.report(
            "seen = []\n"
            "for n in range(1024):\n"
            "    try: os.fstat(n); seen.append(n)\n"
            "    except OSError: pass\n"
            "os.write(9, b'ok')\n"
            "print(json.dumps([seen, os.pread(4, 1, 0).decode(), os.pread(3, 1, 0).decode(), sys.stdin.read()]))",
            # Crossed on purpose: moves in the wrong order would overwrite one with the other.
            fds={3: two, 4: one, 9: write},
        )
        assert found == [[0, 1, 2, 3, 4, 9], "1", "2", ""], found
        assert await readable(read) == b"ok"


@check
async def socket_passes_memory_later(kit: Kit) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    shared = os.memfd_create("shared")
    os.ftruncate(shared, 4096)
    code = (
        "import array, mmap, socket\n"
        "s = socket.socket(fileno=3)\n"
        "m, a, *_ = s.recvmsg(16, socket.CMSG_LEN(4))\n"
        "p = mmap.mmap(array.array('i', a[0][2])[0], 4096)\n"
        "p[0:5] = p[0:5].upper(); s.send(b'done'); s.recv(1)"
    )
    with closing(shared), ours, mmap.mmap(shared, 4096) as memory:
        memory[0:5] = b"hello"
        with theirs:
            process = await kit.sandbox.start(kit.spec(code, fds={3: theirs.fileno()}))
        ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [shared]).tobytes())])
        ours.setblocking(False)
        async with asyncio.timeout(10):
            assert await asyncio.get_running_loop().sock_recv(ours, 16) == b"done"
        assert memory[0:5] == b"HELLO"
        ours.send(b"x")
        ending = await process.wait()
        assert ending.exit_code == 0, told(ending)
