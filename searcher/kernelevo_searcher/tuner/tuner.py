"""The proposer without a model: reads a run's state, and returns the next source to try.

Candidates whose sources differ in parameters alone share a space, whoever made them, and what was measured of one counts for
all. Nothing is kept between calls but what follows from sources.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelevo_searcher.dedupe import normal_digest
from kernelevo_searcher.tuner.scan import find_parameters
from kernelevo_searcher.tuner.search import Observation, next_configuration

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from kernelevo_searcher.candidates import CandidateState
    from kernelevo_searcher.events import ParameterValue
    from kernelevo_searcher.state import RunState
    from kernelevo_searcher.tuner.space import Configuration, TunableSource

__all__ = ["Tuned", "Tuner"]

_BEST_SHARE = 0.8
"""Share of proposals around the best of the space rather than around the parent that was drawn."""
_NEAR_BEST = 0.9
"""A parent whose lower bound is below this share of the best's is not worth a search around it."""
_MOST_OBSERVATIONS = 80
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


@dataclass(frozen=True, slots=True)
class _Member:
    """A candidate's place in a space."""

    candidate: CandidateState
    skeleton: str
    configuration: Configuration


class Tuner:
    """Proposes changes of parameters.

    Args:
        text: gives the source under a digest.
    """

    def __init__(self, text: Callable[[str], str]) -> None:
        self._text = text
        self._parsed: dict[str, TunableSource | None] = {}
        """By candidate; only of those whose source had to be read."""
        self._members: dict[str, _Member | None] = {}

    def _parse(self, candidate: CandidateState) -> TunableSource | None:
        if candidate.id not in self._parsed:
            self._parsed[candidate.id] = find_parameters(self._text(candidate.proposed.source_digest))
        return self._parsed[candidate.id]

    def _member(self, state: RunState, candidate: CandidateState) -> _Member | None:
        """Where the candidate stands; None where its source has no parameters."""
        if candidate.id not in self._members:
            self._members[candidate.id] = self._inherited(state, candidate) or self._read(candidate)
        return self._members[candidate.id]

    def _read(self, candidate: CandidateState) -> _Member | None:
        tunable = self._parse(candidate)
        return _Member(candidate, tunable.skeleton, tunable.configuration) if tunable is not None else None

    def _inherited(self, state: RunState, candidate: CandidateState) -> _Member | None:
        """What the tuner made stands in its parent's space, at the values in the log: no need to read the source."""
        parent = state.candidates.get(candidate.parent_id or "")
        if parent is None or not candidate.proposed.parameters:
            return None
        member = self._member(state, parent)
        configuration = tuple(parameter.value for parameter in candidate.proposed.parameters)
        if member is None or len(member.configuration) != len(configuration):
            return None
        return _Member(candidate, member.skeleton, configuration)

    def propose(self, state: RunState, parent_id: str, rng: random.Random) -> Tuned | None:
        """The next configuration around this parent or the best of its space; None when nothing is left."""
        parent = self._member(state, state.candidates[parent_id])
        if parent is None:
            return None
        members = [
            member
            for candidate in state.candidates.values()
            if (member := self._member(state, candidate)) is not None and member.skeleton == parent.skeleton
        ]
        root = self._parse(members[0].candidate)
        # Ladders come from the root; a member with a value beside them starts a space of its own.
        if root is None or not root.contains(parent.configuration):
            members = [parent]
            root = self._parse(parent.candidate)
        if root is None:
            return None
        members = [member for member in members if root.contains(member.configuration)]
        observed, pending = _observations(members)
        known = set(pending)
        best = max(member.candidate.low for member in members)
        near = parent.candidate.low >= _NEAR_BEST * best
        centre = parent.configuration if near and rng.random() >= _BEST_SHARE else None
        allowed = functools.partial(root.constraints.allow, root.parameters, shared_bytes=_shared_bytes(state))
        for _ in range(_MOST_DUPLICATES):
            configuration = next_configuration(root.parameters, observed, known, rng, centre=centre, allowed=allowed)
            if configuration is None:
                return None
            source = root.render(configuration)
            if normal_digest(source) not in state.by_normal_digest:
                nearest = _nearest(members, configuration)
                return Tuned(
                    source=source,
                    parent_id=nearest.candidate.id,
                    idea=_difference(root, nearest.configuration, configuration),
                    parameters=root.named(configuration),
                )
            known.add(configuration)
        return None


def _shared_bytes(state: RunState) -> int | None:
    """Most shared memory of a block on every device that the run may be measured on, where it is known."""
    devices = state.connected.capabilities.devices if state.connected is not None else ()
    return min(
        (one.shared_memory_per_block_bytes for one in devices if one.shared_memory_per_block_bytes), default=None
    )


def _observations(members: Sequence[_Member]) -> tuple[list[Observation], list[Configuration]]:
    """What was measured, and what is known to be under way or was left out."""
    observed, pending = [], []
    for member in members:
        if member.candidate.evaluation is None:
            pending.append(member.configuration)
            continue
        ratio = member.candidate.speedup
        observed.append(
            Observation(
                configuration=member.configuration,
                value=ratio.value if ratio is not None else None,
                low=ratio.low if ratio is not None else None,
                high=ratio.high if ratio is not None else None,
            )
        )
    if len(observed) > _MOST_OBSERVATIONS:
        pending += [observation.configuration for observation in observed]
        best = sorted(observed, key=lambda observation: -(observation.low or 0.0))[: _MOST_OBSERVATIONS // 2]
        kept = {observation.configuration for observation in (*best, *observed[-_MOST_OBSERVATIONS // 2 :])}
        observed = [observation for observation in observed if observation.configuration in kept]
    return observed, pending


def _nearest(members: Sequence[_Member], configuration: Configuration) -> _Member:
    """Fewest parameters apart; of those the fastest."""

    def distance(member: _Member) -> tuple[int, float, int]:
        apart = sum(a != b for a, b in zip(member.configuration, configuration, strict=True))
        return apart, -member.candidate.low, member.candidate.order

    passed = [member for member in members if member.candidate.speedup is not None]
    return min(passed or members, key=distance)


def _difference(root: TunableSource, before: Configuration, after: Configuration) -> str:
    return ", ".join(
        f"{parameter.name} {old or 'none'} -> {new or 'none'}"
        for parameter, old, new in zip(root.parameters, before, after, strict=True)
        if old != new
    )
