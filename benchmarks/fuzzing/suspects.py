"""Which of the messages that a server was answering when it ended is the one that ends it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from server_process import SERVE, SIMULATED, Server

from fuzzing.calls import Tally, message, send_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_KEPT_BYTES = 4096


async def offenders(seed: int, numbers: Iterable[int], command: Sequence[str] = SERVE) -> list[int]:
    """The messages that end a server by themselves, each sent alone, in turn, to one that nothing has ended yet."""
    found = []
    with tempfile.TemporaryDirectory(prefix="kernelevo-fuzz-") as folder:
        subject = Server(Path(folder), SIMULATED, command)
        subject.start()
        try:
            await subject.ready()
            for number in numbers:
                tally = Tally()
                await send_all(subject.address, seed, [number], tally, subject.lives)
                if tally.cut_off:
                    found.append(number)
                    subject.start()
                    await subject.ready()
        finally:
            subject.stop()
    return found


def described(seed: int, number: int) -> dict[str, Any]:
    """One message, for whoever wants to send it again."""
    sent = message(seed, number)
    return {
        "number": number,
        "method": sent.method.path,
        "kind": sent.how,
        "bytes": len(sent.data),
        "begins_with": sent.data[:_KEPT_BYTES].hex(),
    }
