"""The proposer without a model: reads a run's state, and returns the next source to try.

Candidates whose sources differ in parameters alone share a space, whoever made them, and what was measured of one counts for
all. Nothing is kept between calls but what follows from sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelevo_searcher.dedupe import normal_digest
from kernelevo_searcher.tuner.scan import find_parameters
from kernelevo_searcher.tuner.search import Observation, next_configuration

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from kernelevo_searcher.events import ParameterValue
    from kernelevo_searcher.state import CandidateState, RunState
    from kernelevo_searcher.tuner.space import Configuration, TunableSource

__all__ = ["Tuned", "Tuner"]

_BEST_SHARE = 0.7
"""Share of proposals around the best of the space rather than around the parent that was drawn."""
_MOST_OBSERVATIONS = 160
"""Only so many are read: pairs are compared. The best and the newest are kept."""
_MOST_DUPLICATES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """A source that was not tried yet."""

    source: str
    parent_id: str
    """The candidate that it changes least."""
    idea: str
    parameters: tuple[ParameterValue, ...]


class Tuner:
    """Proposes changes of parameters.

    Args:
        text: gives the source under a digest.
    """

    def __init__(self, text: Callable[[str], str]) -> None:
        self._text = text
        self._read: dict[str, TunableSource | None] = {}
        """By source digest."""

    def tunable(self, candidate: CandidateState) -> TunableSource | None:
        """The candidate's source with its parameters; None where it has none."""
        digest = candidate.proposed.source_digest
        if digest not in self._read:
            self._read[digest] = find_parameters(self._text(digest))
        return self._read[digest]

    def propose(self, state: RunState, parent_id: str, rng: random.Random) -> Tuned | None:
        """The next configuration around this parent or the best of its space; None when nothing is left."""
        parent = self.tunable(state.candidates[parent_id])
        if parent is None:
            return None
        members = self._members(state, parent)
        root = next(iter(members.values()))[1]
        # Ladders come from the root; a member with a value beside them starts a space of its own.
        if not root.contains(parent.configuration):
            members = {name: member for name, member in members.items() if name == parent_id}
            root = parent
        observed, pending = self._observations(state, members, root)
        known = set(pending)
        centre = parent.configuration if rng.random() >= _BEST_SHARE else None
        for _ in range(_MOST_DUPLICATES):
            configuration = next_configuration(root.parameters, observed, known, rng, centre=centre)
            if configuration is None:
                return None
            source = root.render(configuration)
            if normal_digest(source) not in state.by_normal_digest:
                nearest = self._nearest(state, members, configuration)
                return Tuned(
                    source=source,
                    parent_id=nearest.id,
                    idea=_idea(members[nearest.id][1], root, configuration),
                    parameters=root.named(configuration),
                )
            known.add(configuration)
        return None

    def _members(self, state: RunState, parent: TunableSource) -> dict[str, tuple[CandidateState, TunableSource]]:
        members = {}
        for candidate in state.candidates.values():
            tunable = self.tunable(candidate)
            if tunable is not None and tunable.skeleton == parent.skeleton:
                members[candidate.id] = (candidate, tunable)
        return members

    @staticmethod
    def _observations(
        state: RunState, members: dict[str, tuple[CandidateState, TunableSource]], root: TunableSource
    ) -> tuple[list[Observation], list[Configuration]]:
        observed, pending = [], []
        for candidate, tunable in members.values():
            if not root.contains(tunable.configuration):
                continue
            if candidate.evaluation is None:
                pending.append(tunable.configuration)
                continue
            ratio = candidate.speedup
            observed.append(
                Observation(
                    configuration=tunable.configuration,
                    value=ratio.value if ratio is not None else None,
                    low=ratio.low if ratio is not None else None,
                    high=ratio.high if ratio is not None else None,
                )
            )
        if len(observed) > _MOST_OBSERVATIONS:
            pending += [observation.configuration for observation in observed]
            best = sorted(observed, key=lambda observation: -(observation.low or 0.0))[: _MOST_OBSERVATIONS // 2]
            newest = observed[-_MOST_OBSERVATIONS // 2 :]
            observed = [observation for observation in observed if observation in best or observation in newest]
        return observed, pending

    @staticmethod
    def _nearest(
        state: RunState, members: dict[str, tuple[CandidateState, TunableSource]], configuration: Configuration
    ) -> CandidateState:
        """Fewest parameters apart; of those the fastest."""

        def distance(item: tuple[CandidateState, TunableSource]) -> tuple[int, float, int]:
            candidate, tunable = item
            apart = sum(a != b for a, b in zip(tunable.configuration, configuration, strict=True))
            return apart, -candidate.low, candidate.order

        passed = [item for item in members.values() if item[0].speedup is not None] or list(members.values())
        return min(passed, key=distance)[0]


def _idea(parent: TunableSource, root: TunableSource, configuration: Configuration) -> str:
    return ", ".join(
        f"{parameter.name} {old or 'none'} -> {new or 'none'}"
        for parameter, old, new in zip(root.parameters, parent.configuration, configuration, strict=True)
        if old != new
    )
