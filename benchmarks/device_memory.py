"""What keeping a GPU's memory costs, how fast it is, and to whom the driver counts memory that two processes share.

python benchmarks/device_memory.py     # on a host with a GPU
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import subprocess
import sys
import time
from typing import Any

from results import save

from kernelevo_evaluator.lanes.gpu import Gpu, find_gpus
from kernelevo_evaluator.lanes.memory_watchdog import DeviceMemoryWatchdog
from kernelevo_evaluator.lanes.nvml import ProcessMemory
from kernelevo_evaluator.lanes.quiet import Quiet
from kernelevo_evaluator.lanes.runners import runner_environment, runner_mounts
from kernelevo_sandbox import Limits, SandboxSpec, open_sandbox

GIB = 1 << 30
LENT = 8 * GIB
_LENDS = f"""
import array, socket, sys, torch
torch.cuda.init(); torch.zeros(1, device="cuda")
from kernelevo_evaluator.device_memory import Block
sock = socket.socket(fileno=int(sys.argv[1]))
print("up", flush=True); sys.stdin.readline()
block = Block.allocate({LENT})
socket.send_fds(sock, [b"x"], [block.fileno()])
print("lent", flush=True); sys.stdin.readline()
"""
_BORROWS = f"""
import socket, sys, torch
torch.cuda.init(); torch.zeros(1, device="cuda")
from kernelevo_evaluator.device_memory import Block
sock = socket.socket(fileno=int(sys.argv[1]))
print("up", flush=True)
_, fds, _, _ = socket.recv_fds(sock, 1, 1)
block = Block.attach(fds[0], {LENT})
torch.as_tensor(block, device="cuda").fill_(1); torch.cuda.synchronize()
print("mapped", flush=True); sys.stdin.readline()
"""
_GREEDY = """
import time, torch
torch.zeros(1, device="cuda")
print("up", flush=True)
time.sleep(1)
held = torch.empty(60 << 30, dtype=torch.uint8, device="cuda")
print(time.monotonic(), flush=True)
time.sleep(60)
"""


def _started(code: str, sock: socket.socket) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", code, str(sock.fileno())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=(sock.fileno(),),
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "up"
    return process


def shared(meter: ProcessMemory) -> dict[str, int]:
    """Bytes that NVML counts to lender and borrower, before and after `LENT` bytes of one are mapped by both."""
    ours, theirs = socket.socketpair()
    with ours, theirs, _started(_LENDS, ours) as lender, _started(_BORROWS, theirs) as borrower:
        before = meter.look()
        for process in (lender, borrower):
            assert process.stdin is not None and process.stdout is not None
        lender.stdin.write("\n")  # type: ignore[union-attr]
        lender.stdin.flush()  # type: ignore[union-attr]
        assert borrower.stdout.readline().strip() == "mapped"  # type: ignore[union-attr]
        after = meter.look()
        lender.kill()
        borrower.kill()
    found = {}
    for name, process in (("lender", lender), ("borrower", borrower)):
        found[f"{name} before"] = before.get(process.pid, -1)
        found[f"{name} after"] = after.get(process.pid, -1)
    return found


async def ended(gpu: Gpu, count: int) -> list[float]:
    """Seconds from an allocation of 60 GiB, where 20 are allowed, until its sandbox is gone."""
    sandbox, watchdog = open_sandbox("bubblewrap"), DeviceMemoryWatchdog(gpu.uuid, Quiet())
    await watchdog.check()
    taken = []
    try:
        for _ in range(count):
            process = await sandbox.start(
                SandboxSpec(
                    argv=(sys.executable, "-P", "-c", _GREEDY),
                    env=runner_environment(4, gpu),
                    limits=Limits(memory_bytes=16 * GIB, processes=512),
                    mounts=runner_mounts(),
                    devices=gpu.nodes,
                )
            )
            watchdog.watch(process, 20 * GIB)
            ending = await process.wait()
            now = time.monotonic()
            print(ending.kind.value, ending.detail)
            words = ending.stdout.text().split()
            # One that is ended before it can say when is ended at once.
            taken.append(now - float(words[1]) if len(words) > 1 else 0.0)
    finally:
        await watchdog.close()
        await sandbox.close()
    return taken


def main() -> None:
    gpu = find_gpus()[0]
    meter = ProcessMemory(gpu.uuid)
    looks = []
    for _ in range(200):
        began = time.perf_counter()
        meter.look()
        looks.append(time.perf_counter() - began)
        time.sleep(0.005)
    counted = shared(meter)
    meter.close()
    taken = asyncio.run(ended(gpu, 3))
    grown = {who: (counted[f"{who} after"] - counted[f"{who} before"]) / GIB for who in ("lender", "borrower")}
    figures: list[dict[str, Any]] = [
        {
            "figure": "a look at a GPU's memory by process, median of 200",
            "value": 1e6 * statistics.median(looks),
            "unit": "us",
        },
        {"figure": "a look at a GPU's memory by process, longest of 200", "value": 1e6 * max(looks), "unit": "us"},
        {
            "figure": "60 GiB of device memory where 20 are allowed, until the sandbox is gone, longest of 3",
            "value": max(taken),
            "unit": "s",
        },
        *(
            {"figure": f"8 GiB that two processes share, counted to the {who}", "value": value, "unit": "GiB"}
            for who, value in grown.items()
        ),
    ]
    save(__file__, figures, {"looks": looks, "counted": counted, "ended": taken})


if __name__ == "__main__":
    main()
