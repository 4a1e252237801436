"""What is asked, by whom, and what becomes of it: drawn from a seed. Knows nothing of servers."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from fuzzing.messages import PROBLEM

from kernelevo_api.types import Candidate, Effort, EvaluateRequest, Problem
from load.candidates import draw_source

if TYPE_CHECKING:
    from kernelevo_api.types import Verdict
    from load.candidates import Mix


class Fate(StrEnum):
    """What its client does with a request."""

    WAIT = "wait"
    CANCEL = "cancel"
    COME_BACK = "come back"
    """Disconnect, and ask again under the same request id while the server still waits for that."""
    LEAVE = "leave"
    """Disconnect for good."""


_FATES = {Fate.WAIT: 0.7, Fate.CANCEL: 0.1, Fate.COME_BACK: 0.1, Fate.LEAVE: 0.1}
_REPEATED = 0.2
"""Share of requests whose content is that of an earlier one, mostly another client's."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of one client."""

    client: int
    request: EvaluateRequest
    fate: Fate
    when_running: bool
    """Its client acts once the work runs; else after `delay_s`."""
    delay_s: float
    deserved: Verdict

    @property
    def source(self) -> str:
        assert self.request.candidate is not None
        return self.request.candidate.source


def draw(seed: int, count: int, clients: int, within_s: float, mix: Mix) -> list[Asked]:
    """`count` requests, shared out among the clients.

    Args:
        mix: what the candidates deserve.
        within_s: those who cancel or go away do so within so many seconds, in so far as they do not wait for the work to run.
    """
    rng = random.Random(f"{seed}/load")
    found: list[Asked] = []
    for number in range(count):
        if found and rng.random() < _REPEATED:
            before = rng.choice(found)
            source, deserved = before.source, before.deserved
        else:
            deserved, source = draw_source(rng, mix, f"{seed}/{number}")
        request = EvaluateRequest(
            request_id=str(uuid.UUID(int=rng.getrandbits(128), version=4)),
            problem=Problem(source=PROBLEM),
            candidate=Candidate(source=source),
            effort=Effort.SCREEN,
        )
        fate = rng.choices(list(_FATES), list(_FATES.values()))[0]
        found.append(
            Asked(number % clients, request, fate, rng.random() < 0.5, rng.uniform(0.0, within_s), deserved),
        )
    return found
