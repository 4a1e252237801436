"""The policies that a run can follow, and the parts of ours that can be left out one by one.

Both are settings of a run and so part of its log. What each is worth is measured by `benchmarks/search.py`, and told in
docs/search.md.
"""

from __future__ import annotations

import enum

__all__ = ["Mechanism", "PolicyName"]


class PolicyName(enum.Enum):
    """How a run chooses what to do next."""

    EVOLVE = "evolve"
    """Ours: good parents by weight, refined and tuned in turn, failures repaired, restarts by rule."""
    GREEDY = "greedy"
    """Always the best so far, refined and tuned; no restart. A baseline that is hard to beat on few calls."""
    INDEPENDENT = "independent"
    """Every call begins at the reference and knows of no other; nothing is tuned or repaired. Best of many samples."""


class Mechanism(enum.Enum):
    """What can be left out of a policy, to see what it is worth."""

    RANKS = "ranks"
    """Better parents are drawn more often; without it all that may be parents are alike."""
    CHILDREN = "children"
    """Parents are drawn the less often, the more was asked of them already."""
    IN_FLIGHT = "in_flight"
    """Calls that are under way count as asked."""
    FAMILIES = "families"
    """A kernel and what the tuner made of it are one parent."""
    TUNE = "tune"
    """Parameters are changed without a model."""
    FIX = "fix"
    """Failed children of a model are repaired."""
    RESTART = "restart"
    """Begin again from the reference when nothing improves."""
    PATIENCE = "patience"
    """End when nothing improves, or nothing new is said; without it the budget alone ends a search."""
