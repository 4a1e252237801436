"""What a program must not reach. Each check fails where nothing isolates."""

from __future__ import annotations

import errno
import os
import socket
import struct
import tempfile
from pathlib import Path

from kernelevo_sandbox.conformance.kit import Counter, Kit, isolation, told
from kernelevo_sandbox.contract import Mount


@isolation
async def mounts_are_read_only(kit: Kit) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        file = Path(folder) / "file"
        file.write_text("host")
        file.chmod(0o666)
        code = (
            "found = [open('/data/deep/file').read()]\n"
            "for act in (lambda: open('/data/deep/file', 'w'), lambda: open('/data/deep/new', 'w'),\n"
            "            lambda: open('/new', 'w'), lambda: os.unlink('/data/deep/file')):\n"
            "    try: act(); found.append('done')\n"
            "    except OSError: found.append('refused')\n"
            "print(json.dumps(found))"
        )
        found = await kit.report(code, mounts=(Mount(source=Path(folder), target="/data/deep"),))
        assert found == ["host", *["refused"] * 4], found
        assert file.read_text() == "host"


@isolation
async def temporary_folder_is_private_and_limited(kit: Kit) -> None:
    with tempfile.NamedTemporaryFile(dir="/tmp") as host:
        mine = Path(host.name + "-mine")
        code = (
            f"print(json.dumps([os.path.exists({host.name!r}), os.listdir('/tmp')]))\nopen({str(mine)!r}, 'w').close()"
        )
        try:
            for _ in range(2):
                assert await kit.report(code) == [False, []]
            assert not mine.exists()
        finally:
            mine.unlink(missing_ok=True)
    code = (
        "n = 0\nfor folder in ('/tmp', '/dev/shm'):\n    try:\n        with open(folder + '/f', 'wb', buffering=0) as f:\n"
        "            while n < 64 << 20: n += f.write(b'x' * 65536)\n    except OSError: pass\nprint(n)"
    )
    assert await kit.report(code, tmpfs_bytes=1 << 20) <= 2 << 20


@isolation
async def no_network(kit: Kit) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        name = f"kernelevo-conformance-{os.getpid()}"
        abstract.bind("\0" + name)
        abstract.listen()
        code = (
            "import socket\nreached = []\n"
            f"for family, address in ((socket.AF_INET, ('127.0.0.1', {server.getsockname()[1]})),\n"
            f"                        (socket.AF_INET, ('192.0.2.1', 80)), (socket.AF_UNIX, '\\0{name}')):\n"
            "    s = socket.socket(family); s.settimeout(1)\n"
            "    try: s.connect(address); reached.append(str(address))\n"
            "    except OSError: pass\n"
            "names = [l.split(':')[0].strip() for l in open('/proc/net/dev') if ':' in l]\n"
            "print(json.dumps([reached, names]))"
        )
        reached, names = await kit.report(code)
        assert reached == [] and set(names) <= {"lo"}, (reached, names)


@isolation
async def vsock_and_netlink_are_refused(kit: Kit) -> None:
    code = (
        "import socket\nmade = []\n"
        "for family in (40, 16, 17, 38, 31):\n"
        "    try: socket.socket(family, socket.SOCK_DGRAM); made.append(family)\n"
        "    except OSError: pass\n"
        "print(json.dumps(made))"
    )
    assert await kit.report(code) == []


@isolation
async def uid_outside_is_unprivileged(kit: Kit) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        # The kernel states who sends: nothing that the program says about itself.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        with theirs:
            ending = await kit.run("import socket; socket.socket(fileno=3).send(b'x')", fds={3: theirs.fileno()})
        assert ending.exit_code == 0, told(ending)
        _, ancillary, *_ = ours.recvmsg(1, socket.CMSG_SPACE(12))
        _, uid, gid = struct.unpack("iII", ancillary[0][2])
        assert uid != 0 and gid != 0
        assert os.geteuid() == 0 or uid == os.geteuid()


@isolation
async def no_capabilities_and_no_new_ones(kit: Kit) -> None:
    code = (
        "fields = dict(l.split(':', 1) for l in open('/proc/self/status'))\n"
        "print(json.dumps({k: fields[k].strip() for k in ('CapInh', 'CapPrm', 'CapEff', 'CapAmb', 'NoNewPrivs', 'Seccomp')}))"
    )
    found = await kit.report(code)
    assert (found.pop("NoNewPrivs"), found.pop("Seccomp")) == ("1", "2"), found
    assert all(int(value, 16) == 0 for value in found.values()), found


@isolation
async def no_namespaces_mounts_and_tracing(kit: Kit) -> None:
    # Each call would fail for its arguments alone, but for unshare's: only the error tells whether it was allowed to try.
    code = (
        "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\n"
        "calls = [lambda: c.mount(None, b'/nowhere', None, 0, None), lambda: c.chroot(b'/nowhere'),\n"
        "         lambda: c.umount2(b'/nowhere', 2), lambda: c.ptrace(2, 0x7fffffff, 0, 0), lambda: c.unshare(0x10000000)]\n"
        "print(json.dumps([(call(), ctypes.get_errno()) for call in calls]))"
    )
    found = await kit.report(code)
    assert found == [[-1, errno.EPERM]] * 5, found


@isolation
async def host_processes_are_out_of_sight(kit: Kit) -> None:
    code = (
        "seen = [int(n) for n in os.listdir('/proc') if n.isdigit()]\n"
        f"try: os.kill({os.getpid()}, 0); reached = True\nexcept OSError: reached = False\n"
        "print(json.dumps([len(seen), reached]))"
    )
    seen, reached = await kit.report(code)
    assert seen <= 4 and not reached


@isolation
async def sandboxes_cannot_signal_each_other(kit: Kit) -> None:
    # In a backend that does not isolate, signalling every process would reach the caller's: so this looks, and signals only
    # where nothing of the other can be seen.
    with Counter() as counter:
        async with kit.running(Counter.CODE, fds={5: counter.fd}) as other:
            await counter.moving()
            code = (
                "import os, sys\nseen = len([n for n in os.listdir('/proc') if n.isdigit()])\nsys.stdout.write(str(seen))\n"
                "sys.stdout.flush()\nif seen < 5: os.kill(-1, 9)"
            )
            ending = await kit.run(code)
            assert int(ending.stdout.text()) < 5, told(ending)
            await counter.moving()
            assert not other.ended


@isolation
async def host_secrets_are_out_of_reach(kit: Kit) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        secret = Path(folder) / "secret"
        secret.write_text("secret")
        secret.chmod(0o644)  # its bits alone would let anyone read it
        places = [str(secret), "/etc/shadow", "/etc/ssh", "/var/lib", "/home", "/run", "/boot"]
        code = f"print(json.dumps([p for p in {places!r} if os.path.exists(p)]))"
        found = await kit.report(code)
        assert found == [], found


@isolation
async def kernel_settings_are_not_writable(kit: Kit) -> None:
    code = (
        "opened = []\n"
        "for path in ('/proc/sys/kernel/core_pattern', '/proc/sys/vm/drop_caches', '/proc/sysrq-trigger', '/proc/1/mem',\n"
        "             '/proc/1/environ', '/dev/new', '/sys/devices/system/cpu/cpu0/online'):\n"
        "    try: fd = os.open(path, os.O_RDWR | os.O_CREAT); opened.append(path)\n"
        "    except OSError: pass\n"
        "print(json.dumps(opened))"
    )
    found = set(await kit.report(code))
    # The reaper's memory is open to a program of the same uid in the same namespace: so its exit code is only a claim.
    assert found <= {"/proc/1/mem"}, found


@isolation
async def no_process_within_reach_is_unfiltered(kit: Kit) -> None:
    """A process whose memory can be written can be made to do anything: so it must not be allowed more than the program."""
    code = (
        "found = []\nfor pid in os.listdir('/proc'):\n    if pid.isdigit():\n"
        "        try: os.close(os.open(f'/proc/{pid}/mem', os.O_RDWR))\n        except OSError: continue\n"
        "        status = dict(l.split(':', 1) for l in open(f'/proc/{pid}/status') if ':' in l)\n"
        "        if status['Seccomp'].strip() != '2' or int(status['CapEff'], 16): found.append(status['Name'].strip())\n"
        "print(json.dumps(found))"
    )
    assert await kit.report(code) == []


@isolation
async def nothing_of_the_caller_shows_in_proc(kit: Kit) -> None:
    # What the caller was started with, as anyone allowed to can read it; spelled in hex, since the code shows in /proc too.
    given = {f"{name}={value}".encode() for name, value in kit.environment.items()}
    environment = set(Path("/proc/self/environ").read_bytes().split(b"\0")) - given
    entries = [entry.hex() for entry in environment if len(entry) >= 8]
    assert entries, "the caller has no environment to find"
    code = (
        "text = b''\nfor pid in os.listdir('/proc'):\n    if pid.isdigit() and int(pid) != os.getpid():\n"
        "        for name in ('environ', 'cmdline'):\n            try: text += open(f'/proc/{pid}/{name}', 'rb').read()\n"
        "            except OSError: pass\n"
        f"print(json.dumps([e for e in {entries!r} if bytes.fromhex(e) in text]))"
    )
    assert await kit.report(code) == []
