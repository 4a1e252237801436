"""Entry of a runner: import torch, say so, then serve commands on the descriptor named by the first argument."""

from __future__ import annotations

import os
import socket
import sys


def main() -> None:
    """Serve until the channel closes. Arguments: the channel's descriptor, the number of torch's threads."""
    import torch

    from kernelevo_evaluator.channel import Channel
    from kernelevo_evaluator.messages.codec import COMMAND_LIMIT
    from kernelevo_evaluator.runner.harness import Harness

    torch.set_num_threads(int(sys.argv[2]))
    torch.set_num_interop_threads(1)
    channel = Channel(socket.socket(fileno=int(sys.argv[1])), COMMAND_LIMIT)
    Harness(channel).serve()
    # Skip interpreter shutdown: a candidate's threads and destructors have no say in how a runner ends.
    os._exit(0)


main()
