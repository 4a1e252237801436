"""Entry of a runner: import torch, say so, then serve commands on the descriptor named by the first argument."""

from __future__ import annotations

import gc
import os
import socket
import sys


def main() -> None:
    """Serve until the channel closes.

    Arguments: the channel's descriptor, the number of torch's threads, "cpu" or "cuda", the core to launch kernels from or "-",
    the cores to import on, with commas between, "watched" or "-".
    """
    lane = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {int(core) for core in sys.argv[5].split(",")})
    import torch

    from kernelevo_evaluator.channel import Channel
    from kernelevo_evaluator.messages.codec import COMMAND_LIMIT
    from kernelevo_evaluator.runner.harness import Harness

    torch.set_num_threads(int(sys.argv[2]))
    torch.set_num_interop_threads(1)
    channel = Channel(socket.socket(fileno=int(sys.argv[1])), COMMAND_LIMIT)
    device = torch.device(sys.argv[3])

    def open_device() -> None:
        from kernelevo_evaluator.runner.warming import warm

        warm()
        gc.freeze()
        # This thread alone: torch's and the driver's stay where they are.
        os.sched_setaffinity(0, lane if sys.argv[4] == "-" else {int(sys.argv[4])})

    if device.type == "cpu":
        os.sched_setaffinity(0, lane)
    # A collection looks at what came later alone: with all of torch's objects it takes 50 ms.
    gc.freeze()
    Harness(channel, device, open_device if device.type == "cuda" else None).serve()
    if sys.argv[6] == "watched":
        # A tool around this process writes what it found when it ends as a program does.
        sys.exit(0)
    # Skip interpreter shutdown: a candidate's threads and destructors have no say in how a runner ends.
    os._exit(0)


main()
