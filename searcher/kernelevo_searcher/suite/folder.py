"""A suite on disk: what was asked, the problems as they were read, a run for each of them, and what no run holds.

    SUITE/suite.json       what was asked; written once, and again when the device is known
    SUITE/outcomes.jsonl   problems that were not taken, and comparisons over the other baseline; only grows
    SUITE/NAME/problem.py  a problem, and beside it its run (`run.sqlite`), its best kernel and its report
    SUITE/NAME/start.py    the kernel that its search begins with, where it has one

One process at a time works on it. It can be killed at any moment: all that was acknowledged is in the runs and in the outcomes.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from kernelevo_api.json import from_json, to_json
from kernelevo_api.types import BaselineKind, DeviceRequirement, Evaluation, Problem
from kernelevo_searcher import checking
from kernelevo_searcher.catalogue import PROBLEM_FILE, START_FILE
from kernelevo_searcher.checking import Checked, State
from kernelevo_searcher.events import RunSettings, text_digest
from kernelevo_searcher.files import replace_file
from kernelevo_searcher.inputs import BadInput, read_candidate
from kernelevo_searcher.runs import folder_name, package_version
from kernelevo_searcher.store import RunLock, RunNotFound, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kernelevo_searcher.catalogue import Entry

__all__ = ["Compared", "Outcomes", "Suite", "SuiteProblem", "is_suite"]

SUITE_FILE = "suite.json"
OUTCOMES_FILE = "outcomes.jsonl"
FORMAT = 1


def is_suite(folder: Path) -> bool:
    """Whether this folder holds a suite."""
    return (folder / SUITE_FILE).is_file()


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteProblem:
    """One problem of a suite."""

    name: str
    folder: str
    """Of its run, within the suite's."""
    digest: str
    level: int | None = None
    number: int | None = None
    start: str = ""
    """Digest of the kernel that its search begins with, in the run's folder as well; empty where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A best kernel, measured over the baseline that its search did not use."""

    candidate_id: str
    evaluation: Evaluation


@dataclass(slots=True)
class Outcomes:
    """What no run holds, by the folder of the problem."""

    not_taken: dict[str, Checked]
    compared: dict[str, Compared]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A suite, as it was asked for."""

    path: Path
    name: str
    version: str
    created: datetime
    settings: RunSettings
    """Of every run."""
    problems: tuple[SuiteProblem, ...]
    other_baseline: bool = True
    """The best kernels are measured over the other baseline too."""
    device: DeviceRequirement | None = None
    """The one kind that all are measured on; absent until an evaluator answered."""

    @property
    def baselines(self) -> tuple[BaselineKind, BaselineKind]:
        """What the searches go by, and the other one."""
        eager, compiled = BaselineKind.EAGER, BaselineKind.TORCH_COMPILE
        return (eager, compiled) if self.settings.baseline is eager else (compiled, eager)

    @classmethod
    def create(
        cls, path: Path, name: str, entries: Sequence[Entry], settings: RunSettings, *, other_baseline: bool = True
    ) -> Self:
        """A new suite, of which nothing is done yet.

        Raises:
            BadInput: the folder holds a suite already, or cannot be written.
        """
        if is_suite(path):
            raise BadInput(f"{path} holds a suite already. Go on with it: kernelevo bench --resume {path}")
        problems: list[SuiteProblem] = []
        try:
            path.mkdir(parents=True, exist_ok=True)
            for entry in entries:
                problem, unreadable = _read(entry)
                folder = _unused(folder_name(entry.name), {one.folder for one in problems})
                (path / folder).mkdir(exist_ok=True)
                (path / folder / PROBLEM_FILE).write_text(problem.source, encoding="utf-8", newline="")
                digest, start = text_digest(problem.source), ""
                if entry.start is not None:
                    text = read_candidate(entry.start, "the starting kernel")
                    (path / folder / START_FILE).write_text(text, encoding="utf-8", newline="")
                    start = text_digest(text)
                problems.append(
                    SuiteProblem(
                        name=entry.name,
                        folder=folder,
                        digest=digest,
                        level=entry.level,
                        number=entry.number,
                        start=start,
                    )
                )
                if unreadable:
                    why = Checked(entry.name, State.FAILED, digest, ("not_a_problem",), (unreadable,))
                    _append(path, {"folder": folder, "not_taken": checking.to_json(why)})
            suite = cls(
                path=path,
                name=name,
                version=package_version(),
                created=datetime.now(UTC),
                settings=settings,
                problems=tuple(problems),
                other_baseline=other_baseline,
            )
            suite._write()
        except OSError as error:
            raise BadInput(f"the suite cannot be made in {path}: {error}") from error
        return suite

    @classmethod
    def open(cls, path: Path) -> Self:
        """A suite that is there.

        Raises:
            RunNotFound: there is none in this folder.
            StoreError: it cannot be read.
        """
        if not is_suite(path):
            raise RunNotFound(f"there is no suite in {path} (no {SUITE_FILE})")
        try:
            data = json.loads((path / SUITE_FILE).read_text(encoding="utf-8"))
            if data["format"] != FORMAT:
                raise StoreError(f"{path} has format {data['format']}, this KernelEvo writes {FORMAT}.")
            return cls(
                path=path,
                name=data["name"],
                version=data["version"],
                created=datetime.fromisoformat(data["created"]),
                settings=from_json(data["settings"], RunSettings),
                problems=tuple(from_json(one, SuiteProblem) for one in data["problems"]),
                other_baseline=data["other_baseline"],
                device=from_json(data["device"], DeviceRequirement) if data["device"] is not None else None,
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"the suite in {path} cannot be read: {error}") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """The right to work on it.

        Raises:
            RunInUse: another process does.
        """
        lock = RunLock(self.path)
        try:
            yield
        finally:
            lock.release()

    def pinned(self, device: DeviceRequirement) -> Suite:
        """This suite, on one kind of device from now on."""
        suite = replace(self, device=device)
        suite._write()
        return suite

    def run_dir(self, problem: SuiteProblem) -> Path:
        """Where the run of a problem is, or will be."""
        return self.path / problem.folder

    def read(self, problem: SuiteProblem) -> Problem:
        """The problem as it was when the suite was made.

        Raises:
            StoreError: its file was changed since.
        """
        return Problem(source=self._text(problem, PROBLEM_FILE, problem.digest), name=problem.name)

    def starts(self, problem: SuiteProblem) -> tuple[tuple[str, str], ...]:
        """Names and sources of the kernels that its search begins with, beside those that need no author.

        Raises:
            StoreError: a file was changed since.
        """
        return ((START_FILE, self._text(problem, START_FILE, problem.start)),) if problem.start else ()

    def _text(self, problem: SuiteProblem, name: str, digest: str) -> str:
        path = self.run_dir(problem) / name
        text = path.read_bytes().decode("utf-8")
        if text_digest(text) != digest:
            raise StoreError(f"{path} was changed after the suite was made.")
        return text

    # What no run holds.

    def add_not_taken(self, problem: SuiteProblem, found: Checked) -> None:
        """Keep that no evaluator takes this problem, and why."""
        _append(self.path, {"folder": problem.folder, "not_taken": checking.to_json(found)})

    def add_compared(self, problem: SuiteProblem, candidate_id: str, evaluation: Evaluation) -> None:
        """Keep what a best kernel came to over the other baseline."""
        _append(
            self.path,
            {"folder": problem.folder, "compared": {"candidate_id": candidate_id, "evaluation": to_json(evaluation)}},
        )

    def outcomes(self) -> Outcomes:
        """All of that; a line that was cut off as it was written counts for nothing.

        Raises:
            StoreError: the file holds something else.
        """
        found = Outcomes({}, {})
        path = self.path / OUTCOMES_FILE
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for number, line in enumerate(lines, 1):
            try:
                data = json.loads(line)
                if "not_taken" in data:
                    found.not_taken[data["folder"]] = checking.from_json(data["not_taken"])
                else:
                    found.compared[data["folder"]] = from_json(data["compared"], Compared)
            except (ValueError, KeyError, TypeError) as error:
                # What a killed process began to write stands alone: the next one begins a new line.
                if isinstance(error, json.JSONDecodeError):
                    continue
                raise StoreError(f"{path} line {number} cannot be read: {error}") from error
        return found

    def _write(self) -> None:
        data = {
            "format": FORMAT,
            "name": self.name,
            "version": self.version,
            "created": self.created.isoformat(),
            "settings": to_json(self.settings),
            "other_baseline": self.other_baseline,
            "device": to_json(self.device) if self.device is not None else None,
            "problems": [to_json(one) for one in self.problems],
        }
        replace_file(self.path / SUITE_FILE, json.dumps(data, indent=1, allow_nan=False) + "\n")


def _append(folder: Path, data: dict[str, Any]) -> None:
    path = folder / OUTCOMES_FILE
    with path.open("ab+") as file:
        file.seek(0, os.SEEK_END)
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(data, allow_nan=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _read(entry: Entry) -> tuple[Problem, str]:
    """The problem, or an empty one and why it cannot be read."""
    try:
        return entry.read(), ""
    except BadInput as error:
        return Problem(name=entry.name), str(error)


def _unused(name: str, taken: set[str]) -> str:
    number, chosen = 2, name
    while chosen in taken or chosen in (SUITE_FILE, OUTCOMES_FILE, "evaluator"):
        chosen, number = f"{name}-{number}", number + 1
    return chosen
