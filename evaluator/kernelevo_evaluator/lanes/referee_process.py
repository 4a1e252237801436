"""The referee's process, as the server holds it, and the services it may ask for during a job."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import TYPE_CHECKING

import msgspec

from kernelevo_api.types import Stage
from kernelevo_evaluator.channel import AsyncChannel, ChannelError, socket_pair
from kernelevo_evaluator.executor import ExecutorFault
from kernelevo_evaluator.lanes.runners import sandbox_ending
from kernelevo_evaluator.messages.codec import COMMAND_LIMIT, encode
from kernelevo_evaluator.messages.referee import HostCall, HostReply, MachineFacts, decode_from_referee

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from kernelevo_evaluator.executor import ProgressCallback
    from kernelevo_evaluator.lanes.cores import Cores
    from kernelevo_evaluator.lanes.gpu import Gpu
    from kernelevo_evaluator.lanes.quiet import Quiet
    from kernelevo_evaluator.lanes.runners import HeldRunner
    from kernelevo_sandbox import Ending

_START_SECONDS = 120.0


class Services:
    """What one job's referee may ask for: its runners by name, silence, progress."""

    def __init__(
        self,
        quiet: Quiet,
        runners: dict[str, HeldRunner],
        fresh: Callable[[str, str], Awaitable[HeldRunner]],
        progress: ProgressCallback,
    ) -> None:
        """`fresh` gives another runner with the same module loaded, in place of the one of that name, under a tool or none."""
        self.runners = runners
        self.endings: dict[str, Ending] = {}
        self._quiet = quiet
        self._fresh = fresh
        self._progress = progress
        self._quieted = 0

    async def answer(self, call: HostCall) -> tuple[HostReply, list[int]] | None:
        """The answer to a call and the descriptors that go with it; `None` where none is due."""
        if call.what == "progress":
            self._progress(Stage(call.stage), call.text)
            return None
        if call.what == "quiet":
            await self._quiet.begin()
            self._quieted += 1
            return HostReply(ok=True), []
        if call.what == "loud":
            await self._quiet.end()
            self._quieted -= 1
            return HostReply(ok=True), []
        runner = self.runners.get(call.runner)
        if runner is None:
            return HostReply(ok=False, error=f"no runner is called {call.runner!r}"), []
        if call.what == "freeze":
            await runner.process.freeze()
        elif call.what == "thaw":
            await runner.process.thaw()
        elif call.what == "freezer":
            freezer = runner.process.freezer()
            processes = msgspec.msgpack.encode(runner.process.processes())
            return HostReply(ok=True, payload=processes), list(freezer.descriptors) if freezer is not None else []
        elif call.what == "kill":
            self.endings[call.runner] = await runner.kill()
        elif call.what == "ended":
            ending = await runner.ending()
            self._record(call.runner, runner, ending)
            return HostReply(ok=True, payload=msgspec.msgpack.encode(sandbox_ending(ending))), []
        elif call.what == "fresh":
            return await self._renew(call, runner)
        elif call.what == "report":
            text = await runner.finish()
            return HostReply(ok=True, payload=text.encode("utf-8", "replace")), []
        else:
            return HostReply(ok=False, error=f"{call.what!r} is no service"), []
        return HostReply(ok=True), []

    async def _renew(self, call: HostCall, runner: HeldRunner) -> tuple[HostReply, list[int]]:
        self._record(call.runner, runner, await runner.kill())
        try:
            runner = self.runners[call.runner] = await self._fresh(call.runner, call.tool)
        except ExecutorFault as error:
            if not call.tool:
                raise
            return HostReply(ok=False, error=str(error)), []
        return HostReply(ok=True), [runner.fileno()]

    def _record(self, name: str, runner: HeldRunner, ending: Ending) -> None:
        if not runner.watched:  # what a tool writes is not what the candidate printed
            self.endings[name] = ending

    async def release(self) -> None:
        """Undo the silence that a referee left behind."""
        while self._quieted:
            self._quieted -= 1
            await self._quiet.end()


class RefereeProcess:
    """One lane's referee: a plain process of ours that imports torch and runs no user code."""

    def __init__(self, process: asyncio.subprocess.Process, channel: AsyncChannel, facts: MachineFacts) -> None:
        self._process = process
        self._channel = channel
        self.facts = facts

    @staticmethod
    async def start(cores: Cores, gpu: Gpu | None = None) -> RefereeProcess:
        """Start a referee on its cores, for this GPU or none, and wait until it has measured its machine.

        Raises:
            ExecutorFault: it did not come up.
        """
        ours, theirs = socket_pair()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "kernelevo_evaluator.referee",
                str(theirs.fileno()),
                str(len(cores.referee)),
                "cuda" if gpu is not None else "cpu",
                str(cores.timed) if cores.timed is not None else "-",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={
                    **{
                        k: v
                        for k, v in os.environ.items()
                        if k in ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV")
                    },
                    "LC_ALL": "C.UTF-8",
                    "OMP_NUM_THREADS": str(len(cores.referee)),
                    # Its threads shall not spin on the cores of what it times.
                    "OMP_WAIT_POLICY": "PASSIVE",
                    **(gpu.environment if gpu is not None else {}),
                },
                start_new_session=True,
            )
        finally:
            theirs.close()
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(process.pid, cores.referee)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            # Its clock shall not wait behind the threads of what it times. Only root may; elsewhere the intervals say so.
            os.setpriority(os.PRIO_PROCESS, process.pid, -10)
        referee = RefereeProcess(process, AsyncChannel(ours, COMMAND_LIMIT), MachineFacts("", 0, 0.0, 0.0, {}))
        try:
            async with asyncio.timeout(_START_SECONDS):
                payload = await referee._finished(None)
        except (ChannelError, TimeoutError) as error:
            await referee.close()
            raise ExecutorFault(f"the referee did not come up: {error or 'timeout'}") from error
        referee.facts = msgspec.msgpack.decode(payload, type=MachineFacts)
        return referee

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can take a job."""
        return self._process.returncode is None

    async def job(
        self, message: msgspec.Struct, fds: Sequence[int], services: Services | None, seconds: float
    ) -> bytes:
        """Carry one job out. `seconds` bounds it beyond all of its own limits: a referee that overstays is faulty.

        Raises:
            ExecutorFault: the referee failed; it must not be used again (`alive` is then False).
        """
        try:
            async with asyncio.timeout(seconds):
                await self._channel.send(encode(message), fds)
                return await self._finished(services)
        except (ChannelError, TimeoutError) as error:
            await self.close()
            raise ExecutorFault(f"the referee failed: {error or 'it overstayed every limit'}") from error
        except BaseException:
            # Its state is unknown in the middle of a job: what it still says must not be taken for the next one's result.
            await self.close()
            raise
        finally:
            if services is not None:
                await services.release()

    async def _finished(self, services: Services | None) -> bytes:
        while True:
            message = decode_from_referee(await self._channel.receive())
            if not isinstance(message, HostCall):
                if not message.ok:
                    raise ExecutorFault(f"the referee failed:\n{message.error}")
                return message.payload
            if services is None:
                raise ExecutorFault(f"the referee asked for {message.what} outside a job")
            answer = await services.answer(message)
            if answer is not None:
                reply, fds = answer
                await self._channel.send(encode(reply), fds)

    async def close(self) -> None:
        """End it."""
        self._channel.close()
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()
