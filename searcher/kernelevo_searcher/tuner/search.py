"""Which configuration to try next: a local search over ladders that keeps no state of its own.

Everything is read off what was measured, so a resumed run goes on where the log ends. Around the best configuration every
single-parameter change is scored: by how much such a parameter usually matters, by what the same change did elsewhere, and
by how far it goes. Changes that paid from the same starting point are joined; now and then a pair is moved at once; when the
surroundings of the best are used up the next best take their turn, and at last a far point is drawn.

Measurements are intervals. A configuration is better than another when its lower bound is higher, so that a lucky wide one
does not draw the search away; a change counts as good or bad only where the intervals do not overlap much.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection, Iterator, Sequence

    from kernelevo_searcher.tuner.space import Configuration, Parameter

__all__ = ["Observation", "next_configuration"]

_PAIR_SHARE = 0.12
"""Share of proposals that move two parameters at once without evidence for either."""
_BEST_FEW = 4
"""Configurations whose surroundings are searched before a far point is drawn."""
_FAR_DRAWS = 200
_FAR_CHOICE = 5
"""Far points of which the least risky is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What was measured of one configuration. Without a speedup it failed, or was not timed."""

    configuration: Configuration
    value: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class _Move:
    """One parameter set to another value."""

    index: int
    value: str


def next_configuration(
    parameters: Sequence[Parameter],
    observed: Sequence[Observation],
    pending: Collection[Configuration],
    rng: random.Random,
    *,
    centre: Configuration | None = None,
    allowed: Callable[[Configuration], bool] = lambda _: True,
) -> Configuration | None:
    """A configuration that was not tried yet, or None when nothing near is left.

    Args:
        parameters: the space.
        observed: what was measured, in the order it was started; the first is where the space was found.
        pending: configurations under way.
        rng: all that is random here.
        centre: search around this one rather than around the best.
        allowed: whether a configuration keeps to the constraints of its source.
    """
    known = _Closed({observation.configuration for observation in observed} | set(pending), allowed)
    valid = sorted(
        (observation for observation in observed if observation.low is not None),
        key=lambda observation: -(observation.low or 0.0),
    )
    centres = [observation.configuration for observation in valid[:_BEST_FEW]]
    if centre is not None:
        centres = [centre, *(other for other in centres if other != centre)]
    if not centres:
        # Nothing passed yet: look around what there is, failures being all that is known.
        centres = [observation.configuration for observation in observed[:1]] or sorted(pending)[:1]
    evidence = _Evidence(parameters, observed)
    for around in centres:
        found = _around(parameters, around, known, evidence, rng)
        if found is not None:
            return found
    return _far(parameters, known, evidence, rng) if valid else None


@dataclass(frozen=True, slots=True)
class _Closed:
    """What is not to be proposed: what is known already, and what breaks a constraint."""

    tried: set[Configuration]
    allowed: Callable[[Configuration], bool]

    def __contains__(self, configuration: Configuration) -> bool:
        return configuration in self.tried or not self.allowed(configuration)


def _around(
    parameters: Sequence[Parameter],
    centre: Configuration,
    known: _Closed,
    evidence: _Evidence,
    rng: random.Random,
) -> Configuration | None:
    scored = [
        (evidence.score(centre, move) - _RISK * evidence.risk(_moved(centre, move)) + 0.4 * rng.random(), move)
        for move in _moves(parameters, centre)
    ]
    scored.sort(key=lambda item: -item[0])
    promising = [move for score, move in scored if evidence.gain(centre, move) > 0]
    joined = _pair(centre, promising, known, evidence)
    if joined is not None:
        return joined
    if rng.random() < _PAIR_SHARE:
        pair = _pair(centre, [move for score, move in scored[:6] if score > 0], known, evidence)
        if pair is not None:
            return pair
    for score, move in scored:
        configuration = _moved(centre, move)
        if configuration not in known and score > _HOPELESS:
            return configuration
    return None


_HOPELESS = -2.5
_RISK = 12.0
"""What a change into a neighbourhood where everything failed loses in score."""
_TOO_RISKY = 0.6
"""Neighbourhoods in which changes are not joined."""
_DOUBT = 0.3
"""Weight of the assumption that the unknown passes."""


def _moves(parameters: Sequence[Parameter], centre: Configuration) -> Iterator[_Move]:
    for index, parameter in enumerate(parameters):
        for value in parameter.values:
            if value != centre[index] and _distance(parameter, centre[index], value) <= 3:
                yield _Move(index, value)


def _moved(configuration: Configuration, *moves: _Move) -> Configuration:
    values = list(configuration)
    for move in moves:
        values[move.index] = move.value
    return tuple(values)


def _pair(centre: Configuration, moves: Sequence[_Move], known: _Closed, evidence: _Evidence) -> Configuration | None:
    for first, second in combinations(moves, 2):
        configuration = _moved(centre, first, second)
        if first.index != second.index and configuration not in known and evidence.risk(configuration) < _TOO_RISKY:
            return configuration
    return None


def _distance(parameter: Parameter, old: str, new: str) -> int:
    """Steps on the ladder; any two values of a choice are neighbours."""
    if not parameter.ordered or old not in parameter.values:
        return 1
    return abs(parameter.values.index(new) - parameter.values.index(old))


def _far(
    parameters: Sequence[Parameter], known: _Closed, evidence: _Evidence, rng: random.Random
) -> Configuration | None:
    """A point of the whole space, away from values that always failed."""
    drawn = []
    for _ in range(_FAR_DRAWS):
        configuration = tuple(rng.choice(parameter.values) for parameter in parameters)
        failing = any(evidence.always_fails(index, value) for index, value in enumerate(configuration))
        if configuration not in known and not failing:
            drawn.append(configuration)
            if len(drawn) == _FAR_CHOICE:
                break
    return min(drawn, key=evidence.risk) if drawn else None


class _Evidence:
    """What single changes did, read off all pairs of configurations that differ in few parameters."""

    def __init__(self, parameters: Sequence[Parameter], observed: Sequence[Observation]) -> None:
        self._parameters = parameters
        self._blamed: defaultdict[tuple[int, str], float] = defaultdict(float)
        """Failures laid on a value that never passed."""
        self._passed: set[tuple[int, str]] = set()
        self._gains: defaultdict[tuple[int, str, str], list[float]] = defaultdict(list)
        """Logarithmic gain of a parameter from one value to another, one for each pair that shows it."""
        for observation in observed:
            if observation.value is not None:
                self._passed.update(enumerate(observation.configuration))
        self._known = [(observation.configuration, observation.value is not None) for observation in observed]
        self._blame([observation.configuration for observation in observed if observation.value is None])
        valid = [observation for observation in observed if observation.value is not None and observation.value > 0]
        for one, other in combinations(valid, 2):
            differing = [
                index for index, (a, b) in enumerate(zip(one.configuration, other.configuration, strict=True)) if a != b
            ]
            if len(differing) == 1:
                self._record(differing[0], one, other)

    def _blame(self, failed: Sequence[Configuration]) -> None:
        """A failure is the fault of values that never passed: of one that failed all alone, else of all of them in part."""
        suspects = [[item for item in enumerate(configuration) if item not in self._passed] for configuration in failed]
        proven = {group[0] for group in suspects if len(group) == 1}
        for group in suspects:
            guilty = [item for item in group if item in proven] or group
            for item in guilty:
                self._blamed[item] += 1 / len(guilty)

    def _record(self, index: int, one: Observation, other: Observation) -> None:
        assert one.value is not None and other.value is not None
        gain = math.log(other.value / one.value)
        # Within the noise of both it says that the change does not matter, which is worth knowing too.
        if (one.high or one.value) >= (other.low or other.value) and (other.high or other.value) >= (
            one.low or one.value
        ):
            gain *= 0.3
        a, b = one.configuration[index], other.configuration[index]
        self._gains[index, a, b].append(gain)
        self._gains[index, b, a].append(-gain)

    def gain(self, centre: Configuration, move: _Move) -> float:
        """Mean logarithmic gain that was seen for this very change elsewhere; 0 where it was not seen."""
        seen = self._gains.get((move.index, centre[move.index], move.value))
        return sum(seen) / len(seen) if seen else 0.0

    def doubtful(self, move: _Move) -> bool:
        """Whether this value may be what made a configuration fail."""
        return self._blamed[move.index, move.value] > 0

    def always_fails(self, index: int, value: str) -> bool:
        """Whether every configuration with this value failed, while others pass."""
        return self._blamed[index, value] >= 0.5

    def risk(self, configuration: Configuration) -> float:
        """How much its neighbourhood failed, from 0 to 1: measured configurations vote, the nearer the more."""
        failed = passed = 0.0
        for known, valid in self._known:
            distance = sum(
                min(3, _distance(parameter, a, b)) if parameter.ordered else 1
                for parameter, a, b in zip(self._parameters, known, configuration, strict=True)
                if a != b
            )
            weight = 4.0**-distance
            if valid:
                passed += weight
            else:
                failed += weight
        return failed / (failed + passed + _DOUBT)

    def score(self, centre: Configuration, move: _Move) -> float:
        """How promising a change is; higher is better, about 1 to 4 where nothing is known."""
        parameter = self._parameters[move.index]
        score = parameter.leverage - 0.45 * (_distance(parameter, centre[move.index], move.value) - 1)
        score += 12.0 * max(-0.35, min(0.35, self.gain(centre, move)))
        if parameter.ordered:
            score += self._trend(parameter, centre, move)
        score -= 4.0 * min(2.0, self._blamed[move.index, move.value])
        # A parameter that was tried without effect waits.
        score -= 0.35 * self._indifference(move.index)
        return score

    def _trend(self, parameter: Parameter, centre: Configuration, move: _Move) -> float:
        """Going on in the direction that paid pays; beyond a value that was worse it seldom does."""
        if centre[move.index] not in parameter.values:
            return 0.0
        here, there = parameter.values.index(centre[move.index]), parameter.values.index(move.value)
        direction = 1 if there > here else -1
        total = 0.0
        for (index, old, new), gains in self._gains.items():
            if index != move.index:
                continue
            a, b = parameter.values.index(old), parameter.values.index(new)
            if (b - a) * direction <= 0 or (a, b) == (here, there):
                continue
            mean = max(-0.35, min(0.35, sum(gains) / len(gains)))
            # Evidence counts the more, the nearer it ends to where this change goes.
            total += 8.0 * mean / (1 + abs(b - there) + abs(a - here))
        return max(-3.0, min(3.0, total))

    def _indifference(self, index: int) -> float:
        gains = [abs(gain) for key, seen in self._gains.items() if key[0] == index for gain in seen]
        return min(4.0, sum(gain < 0.015 for gain in gains) / 2) if gains and max(gains) < 0.03 else 0.0
