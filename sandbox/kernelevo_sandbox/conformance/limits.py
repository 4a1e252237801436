"""Every limit, and what exceeding it looks like."""

from __future__ import annotations

import asyncio
import errno
import os
import time

from kernelevo_sandbox.conformance.kit import MEMORY, Kit, check, told
from kernelevo_sandbox.contract import EndKind


@check
async def memory_limit_ends_it(kit: Kit) -> None:
    ending = await kit.run("x = b'x' * (1 << 30); print('never')")
    assert ending.kind is EndKind.OUT_OF_MEMORY, told(ending)
    assert ending.stdout.total_bytes == 0


@check
async def memory_limit_counts_the_whole_tree(kit: Kit) -> None:
    code = "import os, time\nfor _ in range(3): os.fork()\nx = b'x' * (64 << 20); time.sleep(30)"
    ending = await kit.run(code, memory_bytes=MEMORY)
    assert ending.kind is EndKind.OUT_OF_MEMORY, told(ending)


@check
async def memory_below_the_limit_is_given(kit: Kit) -> None:
    ending = await kit.run("x = b'x' * (160 << 20); print(len(x))")
    assert ending.exit_code == 0, told(ending)


@check
async def wall_limit_ends_it(kit: Kit) -> None:
    began = time.monotonic()
    ending = await kit.run("import time; time.sleep(30)", wall_seconds=0.3)
    assert ending.kind is EndKind.WALL_TIMEOUT, told(ending)
    assert 0.25 < ending.wall_seconds < 3.0 and time.monotonic() - began < 5.0


@check
async def frozen_time_is_not_counted(kit: Kit) -> None:
    async with kit.running("import time; time.sleep(30)", wall_seconds=0.6) as process:
        await process.freeze()
        await asyncio.sleep(0.9)
        assert not process.ended
        await process.thaw()
        ending = await process.wait()
        assert ending.kind is EndKind.WALL_TIMEOUT, told(ending)
        assert ending.wall_seconds < 0.9


@check
async def cpu_limit_counts_the_whole_tree(kit: Kit) -> None:
    ending = await kit.run("import os\nos.fork()\nwhile True: pass", cpu_seconds=0.4)
    assert ending.kind is EndKind.CPU_TIMEOUT, told(ending)
    assert ending.cpu_seconds is not None and ending.cpu_seconds < 3.0


@check
async def output_flood_ends_it(kit: Kit) -> None:
    began = time.monotonic()
    ending = await kit.run("import os\nwhile True: os.write(1, b'x' * 65536); os.write(2, b'y' * 65536)")
    assert ending.kind is EndKind.OUTPUT_LIMIT, told(ending)
    assert time.monotonic() - began < 5.0
    assert len(ending.stdout.head) + len(ending.stdout.tail) < 200_000


@check
async def file_size_is_limited(kit: Kit) -> None:
    code = (
        "import os, signal, tempfile\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "f = tempfile.TemporaryFile()\n"
        "try: f.write(b'x' * (2 << 20)); f.flush(); print('\"written\"')\n"
        "except OSError as e: print(e.errno)"
    )
    assert await kit.report(code, file_size_bytes=1 << 20) == errno.EFBIG


@check
async def open_files_are_limited(kit: Kit) -> None:
    code = "n = 0\ntry:\n    while True: os.dup(0); n += 1\nexcept OSError as e: print(json.dumps([n, e.errno]))"
    count, error = await kit.report(code, open_files=50)
    assert count <= 50 and error == errno.EMFILE


@check
async def fork_bomb_is_bounded(kit: Kit) -> None:
    code = (
        "import os, time\nn = 0\n"
        "try:\n    while True:\n        if os.fork() == 0: time.sleep(60)\n        n += 1\n"
        "except OSError: print(n, flush=True); os._exit(0)"
    )
    ending = await kit.run(code, processes=24)
    refused = ending.kind is EndKind.EXITED and int(ending.stdout.text()) <= 24
    assert refused or ending.kind is EndKind.PROCESS_LIMIT, told(ending)


@check
async def cores_are_pinned(kit: Kit) -> None:
    core = max(os.sched_getaffinity(0))
    assert await kit.report("print(json.dumps(sorted(os.sched_getaffinity(0))))", cpus=frozenset({core})) == [core]


@check
async def nice_is_set(kit: Kit) -> None:
    assert await kit.report("print(os.nice(0))", nice=7) == 7
