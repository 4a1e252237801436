"""A server around the scripted executor, as a process: `scripted_server.py ADDRESS STATE_DIR LOG [--exit-with-parent]`.

Each evaluation that begins or ends is a line of LOG, so that work can be counted over several lives. The word `die` ends the
process, and so does the audit of a problem that says `# die`. SCRIPTED_SLOTS is how many calls run at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from scripted_executor import PROBLEM, ScriptedExecutor

from kernelevo_api.client import problem_digest
from kernelevo_evaluator.lifeline import watch_parent
from kernelevo_evaluator.logs import configure
from kernelevo_evaluator.server import EvaluatorServer
from kernelevo_evaluator.settings import load_settings

DEADLY = problem_digest(f"{PROBLEM}# die\n")


class Logged(ScriptedExecutor):
    async def _note(self, what: str, entry: str) -> None:
        with Path(sys.argv[3]).open("a") as log:
            log.write(f"{what} {entry}\n")
        await super()._note(what, entry)
        if (what == "started" and "die" in entry.split()) or entry == DEADLY:
            os.kill(os.getpid(), signal.SIGKILL)


async def main() -> None:
    address, state = sys.argv[1:3]
    settings = load_settings({"listen": address, "state_dir": state}).settings
    configure(settings)
    server = EvaluatorServer(lambda: Logged(slots=int(os.environ.get("SCRIPTED_SLOTS", "1"))), settings)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with watch_parent(stop) if "--exit-with-parent" in sys.argv else contextlib.nullcontext():
        print(await server.start(), flush=True)
        await stop.wait()
        await server.drain(0.0)


asyncio.run(main())
