"""The run as its processes see it: the log, the state it came to, and the texts; and what waits.

Every event is written before it is acted on, and folded into the state at once. Randomness is drawn from where the log stands,
so that a resumed run decides as this one would have.
"""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kernelevo_api.types import Problem
from kernelevo_searcher.events import Event, Paused, Record, Resumed, RunStarted
from kernelevo_searcher.state import RunState, replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    from kernelevo_searcher.proposers import CandidateView
    from kernelevo_searcher.store import RunStore

__all__ = ["Journal", "Pauses"]


class Journal:
    """Log and state of one run.

    Args:
        store: opened to write, with the run's first event in it.
        observe: told every event once it is written, with the state that it led to.
    """

    def __init__(self, store: RunStore, observe: Callable[[Record, RunState], None] | None = None) -> None:
        self._store = store
        self._observe = observe
        self._moment: datetime | None = None
        self.state = replay(store.records())

    def write(self, *events: Event, texts: Sequence[str] = ()) -> None:
        """Append events, all or none, and fold them into the state."""
        for record in self._store.append(*events, texts=texts, at=self._moment):
            self.state.apply(record)
            if self._observe is not None:
                self._observe(record, self.state)

    @contextmanager
    def moment(self) -> Iterator[datetime]:
        """One reading of the clock, for a decision and for all that it writes: who decides again from the log knows the time that
        it was decided by."""
        self._moment = self._store.clock()
        try:
            yield self._moment
        finally:
            self._moment = None

    def now(self) -> datetime:
        """The time by the clock of the log."""
        return self._store.clock()

    def text(self, digest: str) -> str:
        """A text that an event refers to."""
        return self._store.text(digest)

    def rng(self, purpose: str) -> random.Random:
        """What is random in one decision."""
        return random.Random(f"{self.state.settings.seed}:{self.state.last_sequence}:{purpose}")  # noqa: S311

    @property
    def started(self) -> RunStarted:
        assert self.state.started is not None
        return self.state.started

    def problem(self) -> Problem:
        """What the run is about."""
        return Problem(source=self.text(self.started.problem_digest), name=self.started.problem_name)

    def view(self, candidate_id: str) -> CandidateView:
        """A candidate as a proposer sees it."""
        source = self.text(self.state.candidates[candidate_id].proposed.source_digest)
        return self.state.view(candidate_id, source)


class Pauses:
    """Who waits for an endpoint or an evaluator: the log hears of the first that waits and of the last that goes on.

    Args:
        wake: called when somebody goes on.
    """

    def __init__(self, journal: Journal, wake: Callable[[], None]) -> None:
        self._journal = journal
        self._wake = wake
        self._waiting: dict[str | None, set[str]] = {}

    def pause(self, who: str, reason: str, *, model: str | None = None) -> None:
        """`who` waits for the model, or for the evaluators."""
        waiting = self._waiting.setdefault(model, set())
        if not waiting:
            self._journal.write(Paused(reason=reason, model=model))
        waiting.add(who)

    def go_on(self, who: str, *, model: str | None = None) -> None:
        """`who` waits no longer."""
        waiting = self._waiting.get(model, set())
        if who in waiting:
            waiting.discard(who)
            if not waiting:
                self._journal.write(Resumed(model=model))
            self._wake()
