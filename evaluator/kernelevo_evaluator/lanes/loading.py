"""Loading a candidate's module into a runner, before it needs a lane: import, with its builds done in the build sandbox."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelevo_api.types import (
    Artefact,
    Build,
    CapturedText,
    Diagnostic,
    LimitKind,
    RaisedError,
    SandboxEnd,
    SandboxEnding,
    Stage,
    Verdict,
)
from kernelevo_evaluator.channel import ChannelClosed, ChannelError, FrameInvalid
from kernelevo_evaluator.lanes.quiet import Deadline
from kernelevo_evaluator.lanes.runners import sandbox_ending
from kernelevo_evaluator.languages.diagnostics import last_words
from kernelevo_evaluator.messages.codec import MessageInvalid, encode
from kernelevo_evaluator.messages.runner import BuildReply, BuildRequest, Done, Failed, LoadModule, decode_reply
from kernelevo_evaluator.verdicts import exhausted_memory, explain_ending

if TYPE_CHECKING:
    from pathlib import Path

    from kernelevo_evaluator.lanes.quiet import Quiet
    from kernelevo_evaluator.lanes.runners import HeldRunner
    from kernelevo_evaluator.languages.builder import Builder, BuildResult
    from kernelevo_sandbox import Ending

_BUILDS = 16
"""Calls of `load_inline` in one module."""
_LIMITS = {
    "File size limit exceeded": LimitKind.FILE_SIZE,
    "No space left on device": LimitKind.TEMPORARY_FILES,
    "Cannot fork": LimitKind.PROCESSES,
    "Resource temporarily unavailable": LimitKind.PROCESSES,
}
"""What compilers say that met a limit of the build. Their word alone: it explains a failure, and decides nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFailure:
    """Why a candidate's module could not be loaded, as a verdict."""

    verdict: Verdict
    stage: Stage
    message: str
    limit: LimitKind | None = None
    error: RaisedError | None = None
    ending: SandboxEnding | None = None
    end: Ending | None = None


@dataclass(slots=True)
class Builds:
    """The builds of one candidate, added up."""

    results: list[BuildResult] = field(default_factory=list)

    def as_build(self) -> Build | None:
        """As a part of the evaluation; `None` where nothing was built."""
        if not self.results:
            return None
        diagnostics: list[Diagnostic] = [d for r in self.results for d in r.diagnostics]
        logs = [r.log for r in self.results if r.log is not None and r.log.total_bytes]
        cpu = [r.cpu_seconds for r in self.results if r.cpu_seconds is not None]
        peaks = [r.peak_memory_bytes for r in self.results if r.peak_memory_bytes is not None]
        return Build(
            cached=all(r.cached for r in self.results),
            wall_s=sum(r.wall_seconds for r in self.results),
            cpu_s=sum(cpu) if cpu else None,
            peak_memory_bytes=max(peaks) if peaks else None,
            log=logs[-1] if logs else CapturedText(),
            artefacts=tuple(
                Artefact(name=r.path.name, digest=r.digest, bytes=r.path.stat().st_size, kernels=r.kernels)
                for r in self.results
                if r.path is not None and r.path.exists()
            ),
            diagnostics=tuple(diagnostics[:10]),
        )


class Loader:
    """Loads candidates."""

    def __init__(self, quiet: Quiet, builder: Builder) -> None:
        self._quiet = quiet
        self.builder = builder

    async def load(
        self,
        runner: HeldRunner,
        source: str,
        *,
        interpreter: bool,
        math: str,
        seconds: float,
        memory_bytes: int,
        builds: Builds,
    ) -> LoadFailure | None:
        """Import the module in its runner; what it builds is added to `builds`. Only ours is raised.

        `math`: the problem's policy, "ieee" or "tf32".
        """
        deadline = Deadline(self._quiet, seconds)
        command = LoadModule(
            nonce=secrets.randbits(62), source=source, role="candidate", interpreter=interpreter, math=math
        )
        try:
            await deadline.result(asyncio.create_task(runner.channel.send(encode(command))))
            while True:
                data = await deadline.result(asyncio.create_task(runner.channel.receive()))
                reply = decode_reply(data)
                if isinstance(reply, BuildRequest) and reply.nonce == command.nonce:
                    if len(builds.results) >= _BUILDS:
                        raise MessageInvalid(f"more than {_BUILDS} builds")
                    await self._build(runner, reply, deadline, memory_bytes, builds)
                elif isinstance(reply, Done) and reply.nonce == command.nonce:
                    return None
                elif isinstance(reply, Failed) and reply.nonce == command.nonce:
                    return _failure(reply, builds)
                else:
                    raise MessageInvalid(f"{type(reply).__name__} where the module's load was due")
        except TimeoutError:
            end = await runner.kill()
            return LoadFailure(
                verdict=Verdict.TIMEOUT,
                stage=Stage.BUILD,
                limit=LimitKind.BUILD_TIME,
                message=f"importing and building the candidate took longer than its limit of {seconds:.0f} s",
                end=end,
            )
        except ChannelClosed:
            end = await runner.ending()
            ending = sandbox_ending(end)
            verdict, limit, message = explain_ending(ending, "the candidate, while it was imported,")
            return LoadFailure(verdict=verdict, stage=Stage.BUILD, message=message, limit=limit, ending=ending, end=end)
        except (FrameInvalid, MessageInvalid, ChannelError) as error:
            end = await runner.kill()
            return LoadFailure(
                verdict=Verdict.SANDBOX_VIOLATION,
                stage=Stage.BUILD,
                message=f"the candidate wrote on the result channel: {error}",
                end=end,
            )

    async def _build(
        self, runner: HeldRunner, request: BuildRequest, deadline: Deadline, memory_bytes: int, builds: Builds
    ) -> None:
        result = await self.builder.build(request, deadline.remaining(), memory_bytes)
        builds.results.append(result)
        deadline.extend(result.waited_seconds)
        if result.path is None:
            log = result.log_text or (result.ending.kind.value if result.ending and result.ending.kind else "failed")
            await runner.channel.send(encode(BuildReply(nonce=request.nonce, ok=False, log=log[:32768])))
            return
        fd = await asyncio.to_thread(_sealed_copy, result.path)
        try:
            await runner.channel.send(encode(BuildReply(nonce=request.nonce, ok=True)), (fd,))
        finally:
            os.close(fd)


def _sealed_copy(path: Path) -> int:
    """A memfd with a file's content that nobody can change: a candidate that runs as our own user could write to the file."""
    fd = os.memfd_create("kernelevo-built", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with path.open("rb") as source:
            size, offset = os.fstat(source.fileno()).st_size, 0
            while offset < size:
                sent = os.sendfile(fd, source.fileno(), offset, size - offset)
                if sent == 0:
                    break
                offset += sent
        os.lseek(fd, 0, os.SEEK_SET)
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _failure(reply: Failed, builds: Builds) -> LoadFailure:
    error = RaisedError(type=reply.error, message=reply.message, traceback=reply.traceback, line=reply.line)
    where = f" (line {reply.line})" if reply.line is not None else ""
    failed = next((result for result in builds.results if result.path is None), None)
    if failed is not None:
        return build_failure(failed, error)
    if reply.kind == "interface":
        return LoadFailure(verdict=Verdict.WRONG_INTERFACE, stage=Stage.PREPARE, message=reply.message)
    if reply.kind == "syntax":
        return LoadFailure(
            verdict=Verdict.COMPILE_ERROR, stage=Stage.BUILD, message=f"{reply.error}: {reply.message}", error=error
        )
    if reply.kind == "memory":
        return LoadFailure(
            verdict=Verdict.OUT_OF_MEMORY,
            stage=Stage.BUILD,
            limit=exhausted_memory(reply.error),
            message=f"importing the candidate ran out of memory{where}",
            error=error,
        )
    return LoadFailure(
        verdict=Verdict.LOAD_ERROR,
        stage=Stage.BUILD,
        message=f"importing the candidate failed: {reply.error}: {reply.message}{where}",
        error=error,
    )


def build_failure(result: BuildResult, error: RaisedError | None = None) -> LoadFailure:
    """The compiler's verdict, not the exception that it became in the candidate.

    Args:
        result: of a build that gave no object.
        error: what the candidate made of it.
    """
    if result.ending is not None:
        if result.ending.kind in (SandboxEnd.KILLED, SandboxEnd.WALL_TIMEOUT):
            return LoadFailure(
                verdict=Verdict.TIMEOUT,
                stage=Stage.BUILD,
                limit=LimitKind.BUILD_TIME,
                message="the build took longer than its limit",
                ending=result.ending,
            )
        verdict, limit, message = explain_ending(result.ending, "the build")
        if verdict in (Verdict.CRASHED, Verdict.RUNTIME_ERROR):
            verdict = Verdict.COMPILE_ERROR
        return LoadFailure(verdict=verdict, stage=Stage.BUILD, limit=limit, message=message, ending=result.ending)
    first = next((d for d in result.diagnostics if d.severity == "error"), None)
    if first is None:
        message = last_words(result.log_text) or (error.message[:500] if error is not None else "it says nothing")
    elif first.file:
        message = f"{first.file}:{first.line}: {first.message}"
    else:
        message = first.message
    return LoadFailure(
        verdict=Verdict.COMPILE_ERROR,
        stage=Stage.BUILD,
        limit=next((limit for words, limit in _LIMITS.items() if words in message), None),
        message=f"the build failed: {message}",
        error=error,
    )
