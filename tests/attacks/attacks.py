"""The attacks, by kind."""

from __future__ import annotations

import os
from pathlib import Path

from attack import Attack, BuildAttack
from builds import BUILDS
from triton_builds import TRITON_BUILDS

from kernelevo_sandbox import EndKind

ATTACKS: list[Attack | BuildAttack] = []
_X86 = os.uname().machine == "x86_64"


def _attack(kind: str, name: str, source: str, **fields: object) -> None:
    ATTACKS.append(Attack(kind=kind, name=name, source=source, **fields))  # type: ignore[arg-type]


# Files

_attack("files", "read a host file that everyone may read", "got(open(given['secret']).read())")
_attack("files", "read the password hashes", "got(open('/etc/shadow').read()[:1])")
_attack(
    "files",
    "list a host folder",
    "names = os.listdir(os.path.dirname(given['secret'])); got(names) if 'secret' in names else refused(names)",
)
_attack(
    "files",
    "write a mounted file",
    "open(given['mounted'], 'w').write('taken'); got('written')",
    seen=lambda given: Path(given["mounted"]).read_text() != "mounted",
)
_attack(
    "files",
    "leave a file for the next program",
    "open(given['drop'], 'w').write('x')\nrefused('only in its own /tmp')",
    seen=lambda given: Path(given["drop"]).exists(),
)
_attack(
    "files",
    "climb out by a link in /tmp",
    "os.symlink(given['secret'], '/tmp/link-' + str(os.getpid())); got(open('/tmp/link-' + str(os.getpid())).read())",
)
_attack("files", "climb out by /proc/1/root", "got(open('/proc/1/root' + given['secret']).read())", control=False)
_attack("files", "open a file by handle", "denied(304, -100, ctypes.c_char_p(bytes(64)), 0)", control=False)
_attack(
    "files",
    "make a device node",
    "os.mknod('/tmp/node-' + str(os.getpid()), 0o60666, os.makedev(8, 0)); got('made')",
    control=os.geteuid() == 0,
)

# Environment

_attack(
    "environment",
    "read the evaluator's environment through /proc",
    "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
    "    try: text = open(f'/proc/{pid}/environ', 'rb').read()\n"
    "    except OSError: continue\n"
    "    if given['canary'].encode() in text and int(pid) != os.getpid(): got(pid)",
)
_attack(
    "environment",
    "read arguments of host processes",
    "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
    "    try: text = open(f'/proc/{pid}/cmdline', 'rb').read()\n"
    "    except OSError: continue\n"
    "    if str(given['victim_mark']).encode() in text and str(given['victim_mark']) not in ' '.join(sys.argv[:1]) and b'-c' in text"
    " and b'given' not in text: got(pid)",
)

# Other candidates

_attack("other candidates", "signal a process of the host", "os.kill(given['victim'], 0); got('allowed')")
_attack(
    "other candidates",
    "signal everything that can be signalled",
    "os.kill(-1, signal.SIGTERM); refused('only its own')",
    ends=frozenset({EndKind.SIGNALED}),
    control=False,
)
_attack(
    "other candidates",
    "find another's shared memory",
    "got([n for n in os.listdir('/dev/shm') if n == given['shm']][0])".replace(
        "[0])", "[0] if given['shm'] in os.listdir('/dev/shm') else refused('not there'))"
    ),
)
_attack(
    "other candidates",
    "attach another's System V memory",
    "r = libc.shmget(given['ipc_key'], 4096, 0); got(r) if r != -1 else refused('no such key')",
)

# Network

_attack(
    "network", "connect over IPv4", "s = socket.create_connection(('127.0.0.1', given['port4']), 1); got('connected')"
)
_attack(
    "network",
    "connect over IPv6",
    "s = socket.socket(socket.AF_INET6); s.settimeout(1); s.connect(('::1', given['port6'])); got('connected')",
    control=Path("/proc/net/if_inet6").exists() and bool(Path("/proc/net/if_inet6").read_text()),
)
_attack(
    "network",
    "send a datagram",
    "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'x', ('127.0.0.1', given['port_udp'])); "
    "refused('nobody hears it')",
    seen=lambda given: given["heard"](),
)
_attack(
    "network",
    "connect to a Unix socket",
    "s = socket.socket(socket.AF_UNIX); s.connect(given['unix']); got('connected')",
)
_attack(
    "network",
    "connect to an abstract Unix socket",
    "s = socket.socket(socket.AF_UNIX); s.connect('\\0' + given['abstract']); got('connected')",
)
_attack("network", "ask the kernel by netlink", "s = socket.socket(16, socket.SOCK_RAW, 0); got('made')")
_attack(
    "network", "reach the hypervisor by vsock", "s = socket.socket(40, socket.SOCK_STREAM); got('made')", control=False
)
_attack(
    "network",
    "a raw packet socket",
    "s = socket.socket(17, socket.SOCK_RAW, 3); got('made')",
    control=os.geteuid() == 0,
)
_attack(
    "network",
    "ask the cloud's metadata service",
    "s = socket.socket(); s.settimeout(1); s.connect(('169.254.169.254', 80)); got('connected')",
    control=False,
)
_attack(
    "network",
    "see the host's interfaces",
    "names = {l.split(':')[0].strip() for l in open('/proc/net/dev') if ':' in l} - {'lo'}\n"
    "got(names) if names else refused('loopback alone')",
    control=len(Path("/proc/net/dev").read_text().splitlines()) > 3,
)
_attack(
    "network",
    "the engine's socket",
    "s = socket.socket(socket.AF_UNIX); s.connect('/var/run/docker.sock'); got('connected')",
    control=False,
)

# Processes

_attack(
    "processes",
    "fork without end",
    "n = 0\nwhile n < 5000:\n    if os.fork() == 0: time.sleep(20); os._exit(0)\n    n += 1\ngot(n)",
    limits={"processes": 32},
    ends=frozenset({EndKind.PROCESS_LIMIT, EndKind.WALL_TIMEOUT}),
    control=False,
)
_attack(
    "processes",
    "start threads without end",
    "n = 0\ntry:\n    while n < 5000: threading.Thread(target=time.sleep, args=(20,), daemon=True).start(); n += 1\n"
    "except RuntimeError as e: refused(e)\ngot(n)",
    limits={"processes": 32},
    ends=frozenset({EndKind.PROCESS_LIMIT, EndKind.WALL_TIMEOUT}),
    control=False,
)
_attack(
    "processes",
    "outlive the sandbox as a daemon",
    "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        os.set_inheritable(given['alive_fd'], True); time.sleep(30)\n    os._exit(0)\n"
    "time.sleep(0.1); refused('ends with its namespace')",
    seen=lambda given: given["outlived"](),
    control=False,
)
_attack(
    "processes",
    "ignore every signal",
    "for n in range(1, 64):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: time.sleep(1)",
    limits={"wall_seconds": 0.5},
    ends=frozenset({EndKind.WALL_TIMEOUT}),
    control=False,
)
_attack(
    "processes",
    "trace a process",
    "denied(101, 16, given['victim'], 0, 0)" if _X86 else "denied(117, 16, given['victim'], 0, 0)",
    control=os.geteuid() == 0,
)
_attack(
    "processes", "open a host process's memory", "os.open(f\"/proc/{given['victim']}/mem\", os.O_RDWR); got('opened')"
)
_attack(
    "processes",
    "read memory across processes",
    "denied(310 if os.uname().machine == 'x86_64' else 270, given['victim'], 0, 0, 0, 0, 0)",
)
_attack(
    "processes",
    "open the first process's memory for writing",
    "pid = 1\nif os.getpid() == 1 or os.getppid() == 0: refused('is the first')\nfd = os.open('/proc/1/mem', os.O_RDWR)\n"
    "comm = open('/proc/1/comm').read().strip()\nrefused('its own shell') if comm == 'sh' else got(comm)",
    control=False,
)
_attack(
    "processes",
    "become root",
    "os.setuid(0) if os.getuid() else refused('is nobody outside') if given['isolated'] else got('is root'); got(os.getuid())",
    control=os.geteuid() == 0,
)
_attack(
    "processes",
    "gain rights by a set-uid program",
    "import subprocess\nfound = [p for p in ('/usr/bin/su', '/bin/su', '/usr/bin/passwd', '/usr/bin/mount') if os.path.exists(p) and os.stat(p).st_mode & 0o4000]\n"
    "line = [l for l in open('/proc/self/status') if l.startswith('NoNewPrivs')][0]\n"
    "refused('no new privileges') if line.split()[1] == '1' else got(found)",
)
_attack(
    "processes",
    "raise its priority",
    "os.setpriority(os.PRIO_PROCESS, 0, -10); got('raised')",
    control=os.geteuid() == 0,
)
_attack(
    "processes",
    "real-time scheduling",
    "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10)); got('set')",
    control=os.geteuid() == 0,
)

# Kernel surface

_CALLS = {  # numbers on x86-64 and aarch64
    "mount a file system": (165, 40, "None, b'/tmp', b'tmpfs', 0, 0"),
    "unmount": (166, 39, "b'/proc', 2"),
    "change the root": (161, 51, "b'/tmp'"),
    "pivot the root": (155, 41, "b'/tmp', b'/tmp'"),
    "unshare a user namespace": (272, 97, "0x10000000"),
    "unshare a mount namespace": (272, 97, "0x20000"),
    "enter another namespace": (308, 268, "0, 0"),
    "load a BPF program": (321, 280, "0, ctypes.c_char_p(bytes(128)), 72"),
    "open a performance counter": (298, 241, "ctypes.c_char_p(bytes(128)), 0, -1, -1, 0"),
    "set up io_uring": (425, 425, "8, ctypes.c_char_p(bytes(120))"),
    "add a kernel key": (248, 217, "b'user', b'kernelevo', b'x', 1, -2"),
    "keyctl": (250, 219, "0, -3, 0"),
    "handle page faults (userfaultfd)": (323, 282, "0"),
    "load a module": (175, 105, "ctypes.c_char_p(bytes(16)), 16, b''"),
    "load another kernel": (246, 104, "0, 0, 0, 0"),
    "restart the machine": (169, 142, "0, 0, 0, 0"),
    "set the clock": (227, 112, "0, ctypes.c_char_p(bytes(16))"),
    "swap": (167, 224, "b'/tmp/x', 0"),
}
for _name, (_one, _two, _arguments) in _CALLS.items():
    # What would hurt where it is allowed is tried in isolation alone.
    _attack("kernel surface", _name, f"denied({_one if _X86 else _two}, {_arguments})", control=False)
_attack(
    "kernel surface",
    "name a crash handler",
    "os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY); got('opened')",
    control=os.geteuid() == 0,
)
_attack(
    "kernel surface",
    "the magic key",
    "os.open('/proc/sysrq-trigger', os.O_WRONLY); got('opened')",
    control=False,
)
_attack(
    "kernel surface",
    "push characters into a terminal",
    "import fcntl; fcntl.ioctl(0, 0x5412, b'x'); got('pushed')",
    control=False,
)
_attack(
    "kernel surface",
    "write a control group",
    "import glob\nfor p in glob.glob('/sys/fs/cgroup/**/cgroup.procs', recursive=True)[:3]: os.open(p, os.O_WRONLY); got(p)\nrefused('none is there')",
    control=os.geteuid() == 0,
)

# Resources

_attack(
    "resources",
    "memory without end",
    "x = []\nwhile True: x.append(b'x' * (1 << 24))",
    ends=frozenset({EndKind.OUT_OF_MEMORY}),
    control=False,
)
_attack(
    "resources",
    "memory that no process maps",
    "fds = []\nfor _ in range(100):\n    fds.append(os.memfd_create('m'))\n    for _ in range(14): os.write(fds[-1], b'x' * (1 << 20))\ngot('1.4 GB')",
    limits={"memory_bytes": 192 << 20, "file_size_bytes": 16 << 20},
    ends=frozenset({EndKind.OUT_OF_MEMORY}),
    control=False,
)
_attack(
    "resources",
    "fill the disk",
    "f = open('/tmp/f', 'wb', buffering=0)\nwhile f.tell() < 1 << 28: f.write(b'x' * 65536)\ngot('256 MB')",
    limits={"tmpfs_bytes": 1 << 20, "file_size_bytes": 1 << 30},
    ends=frozenset({EndKind.OUT_OF_MEMORY}),
    control=False,
)
_attack(
    "resources",
    "one huge file",
    "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); os.ftruncate(os.memfd_create('m'), 1 << 40); got('1 TB')",
    ends=frozenset({EndKind.SIGNALED}),
    control=False,
)
_attack(
    "resources",
    "files without end",
    "fds = []\nwhile len(fds) < 100000: fds.append(os.open('/dev/null', 0))\ngot(len(fds))",
    ends=frozenset({EndKind.KILLED}),
    control=False,
)
_attack(
    "resources",
    "output without end",
    "while True: os.write(1, b'x' * 65536)",
    ends=frozenset({EndKind.OUTPUT_LIMIT}),
    control=False,
)
_attack(
    "resources",
    "compute without end",
    "while True: pass",
    limits={"cpu_seconds": 0.5},
    ends=frozenset({EndKind.CPU_TIMEOUT}),
    control=False,
)
_attack(
    "resources",
    "a core dump",
    "try: resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20)); got('allowed')\nexcept ValueError as e: refused(e)",
    control=False,
)
_attack(
    "resources",
    "widen its cores",
    "os.sched_setaffinity(0, range(64)); n = len(os.sched_getaffinity(0)); got(n) if n > given['cores'] else refused('the same cores')",
    control=False,
)

# Descriptors and the result channel

_attack(
    "descriptors",
    "find descriptors that nobody gave",
    "known = {0, 1, 2, given['alive_fd']}\nmore = [n for n in range(3, 256) if n not in known and os.path.exists(f'/proc/self/fd/{n}')]\n"
    "more = [n for n in more if 'pipe' in os.readlink(f'/proc/self/fd/{n}') or 'socket' in os.readlink(f'/proc/self/fd/{n}')]\n"
    "got(more) if more else refused('none')",
    control=False,
)
_attack(
    "descriptors",
    "reopen a descriptor for writing",
    "os.open('/proc/self/fd/0', os.O_WRONLY); got('opened')".replace(
        "got('opened')",
        "refused('its own /dev/null') if os.readlink('/proc/self/fd/0') == '/dev/null' else got('opened')",
    ),
    control=False,
)
_attack(
    "result channel",
    "forge an end with success",
    "print('exit-code: 0'); os.kill(os.getpid(), 9)",
    ends=frozenset({EndKind.SIGNALED}),
    control=False,
)
_attack(
    "result channel", "end before anything was judged", "os._exit(3)\n", ends=frozenset({EndKind.EXITED}), control=False
)

ATTACKS += [*BUILDS, *TRITON_BUILDS]
