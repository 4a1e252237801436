"""What a policy can decide, and what it may use besides the run's state."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelevo_searcher.models import ModelRole

if TYPE_CHECKING:
    from kernelevo_api.types import DeviceRequirement, Effort
    from kernelevo_searcher.proposers import ActionKind

__all__ = ["Action", "Evaluate", "Finish", "ModelResource", "Propose", "Resources", "Seed", "Stop", "Verify", "Wait"]


@dataclass(frozen=True, slots=True)
class Seed:
    """Propose the next kernel that was there before the run."""

    index: int


@dataclass(frozen=True, slots=True)
class Propose:
    """Ask the tuner or a model for a candidate."""

    action: ActionKind
    parent_id: str | None = None
    model: str | None = None
    """Label of the model that is asked; absent for the tuner."""
    other_id: str | None = None
    """The second parent of a merge."""


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Send a candidate to an evaluator."""

    candidate_id: str
    effort: Effort
    bound_speedup: float | None = None
    device: DeviceRequirement | None = None
    """Another kind than the run's."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the search; verification follows."""

    reason: str


@dataclass(frozen=True, slots=True)
class Verify:
    """Begin the verification of the best."""

    candidate_ids: tuple[str, ...]


class Wait(enum.Enum):
    """Nothing to start until something comes back."""

    WAIT = "wait"


class Finish(enum.Enum):
    """The run is over: everything is measured."""

    FINISH = "finish"


Action = Seed | Propose | Evaluate | Stop | Verify | Wait | Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResource:
    """A model that may be asked."""

    label: str
    actions: frozenset[ActionKind]
    role: ModelRole = ModelRole.ANY
    weight: float = 1.0
    least_tokens: int = 1
    """Tokens without which it cannot be called."""
    least_dollars: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What the policy may use besides what the log says."""

    slots: int
    """Evaluations that may be in flight at once."""
    models: tuple[ModelResource, ...] = ()
    seeds: tuple[str, ...] = ()
    """Source digests of the kernels there before the run."""
    active_s: float = 0.0
    """Time spent searching so far, by the engine's clock."""
    calls: int | None = None
    """Model calls that may be in flight at once; absent: as the run's settings and the slots say."""
    tuning: bool = True
    """Whether the tuner may propose now."""
