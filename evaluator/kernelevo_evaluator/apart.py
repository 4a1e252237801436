"""Long sources are read in a process of their own: Python's parser holds the interpreter for seconds, and takes memory that
nobody has bounded. Short ones are read here, as a process takes longer to start than they take to read.

The process reads one source, at a lower priority, and ends: `python -m kernelevo_evaluator.reading`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from typing import TYPE_CHECKING, Any

from kernelevo_api.errors import EvaluatorFault, FieldViolation, ProblemRefused
from kernelevo_api.json import from_json, to_json
from kernelevo_api.types import ProblemPolicy
from kernelevo_evaluator.executor import ProblemSource
from kernelevo_evaluator.problem import FIELD, check_problem, read_problem
from kernelevo_evaluator.shown import Shown, show
from kernelevo_evaluator.sources import SourceError, digest_of

if TYPE_CHECKING:
    from kernelevo_api.types import Problem

LONG_BYTES = 16 << 10
"""Sources of more characters are read apart. One of this length takes some 50 ms here."""
AT_ONCE = 2
"""Processes that read."""
CPU_S = 60
"""Time of a processor that reading may take."""
MEMORY_BYTES = 4 << 30
"""Address space of a process that reads."""
_OF_HUNGER = (signal.SIGKILL, signal.SIGXCPU, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)
"""How a process ends that took more than it may: by the kernel, or by itself where there is no more to have."""
TOO_MUCH = "the source takes more time or memory to parse than an evaluator gives to it"


class Reader:
    """Reads sources, long ones elsewhere. Belongs to one event loop."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(AT_ONCE)

    async def show(self, source: str) -> Shown | SourceError:
        """As `shown.show`; no parser's hunger ends otherwise than in a `SourceError`.

        Raises:
            EvaluatorFault: the process that was to read it could not be had.
        """
        if len(source) <= LONG_BYTES:
            return show(source)
        found = await self._apart({"candidate": source})
        if found is None:
            return SourceError(TOO_MUCH)
        return from_json(found["shown"], Shown) if "shown" in found else from_json(found["error"], SourceError)

    async def problem(self, problem: Problem, maximum_bytes: int) -> ProblemSource:
        """As `problem.read_problem`, and raises what that raises.

        Raises:
            EvaluatorFault: as `show`.
        """
        if len(problem.source) <= LONG_BYTES:
            return read_problem(problem, maximum_bytes)
        check_problem(problem, maximum_bytes)
        found = await self._apart({"problem": to_json(problem), "maximum_bytes": maximum_bytes})
        if found is None:
            raise ProblemRefused(TOO_MUCH, violations=[FieldViolation(FIELD, TOO_MUCH)])
        if "refused" in found:
            raise ProblemRefused(
                found["refused"], violations=[FieldViolation(FIELD, complaint) for complaint in found["complaints"]]
            )
        return ProblemSource(
            source=problem.source,
            digest=digest_of(problem.source),
            name=found["name"],
            policy=from_json(found["policy"], ProblemPolicy),
        )

    async def _apart(self, asked: dict[str, Any]) -> Any:
        """The process's answer; `None` where it took more than it was given."""
        async with self._room:
            try:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", "kernelevo_evaluator.reading", str(CPU_S), str(MEMORY_BYTES)),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.DEVNULL,
                )
            except OSError as error:
                raise EvaluatorFault(f"no process can be started to read a source: {error}") from error
            try:
                answer, _ = await process.communicate(json.dumps(asked).encode())
            finally:
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        process.kill()
                    await process.wait()
        status = process.returncode
        if status == 0:
            return json.loads(answer)
        if status is not None and -status in _OF_HUNGER:
            return None
        raise EvaluatorFault(f"the process that reads a source ended with status {status}")
