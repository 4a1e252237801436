"""How pytest-xdist's workers share the suite, where it is run with some (`-n 2`).

What times kernels goes to one worker, so that nothing else that is timed runs beside it: two cores have room for that and for
one more test, so two workers suit them. What counts mounts, cgroups and containers of the whole host stays together likewise,
and so does what starts Ray clusters, of which a host has one at a time. The rest is shared out by file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

TIMED = "what is timed"
FIRST_WORKER = "gw0"

TOGETHER: dict[str, Sequence[str]] = {
    TIMED: (
        "tests/cheats/test_cheats.py::test_by_the_clock_of_a_processor",
        "tests/evaluator/core/test_end_to_end.py",
        "tests/evaluator/core/test_problems.py",
        "tests/evaluator/core/test_profile.py",
        "tests/evaluator/core/test_seeds.py",
        "tests/evaluator/core/test_timing_attacks.py",
        "tests/examples/",
        "tests/packaging/test_suite_programs.py",
        "tests/searcher/test_cli_live.py",
        "tests/searcher/test_optimize.py",
    ),
    "what counts what the host holds": (
        "tests/attacks/",
        "tests/evaluator/core/test_in_docker.py",
        "tests/evaluator/core/test_lost_isolation.py",
        "tests/sandbox/",
    ),
    "clusters": ("tests/evaluator/test_executors.py", "tests/evaluator/test_ray_"),
}
"""Beginnings of node ids, by the group that one worker runs."""


def group_of(nodeid: str) -> str:
    """The group of a test: a name of `TOGETHER`, otherwise its file."""
    for name, beginnings in TOGETHER.items():
        if nodeid.startswith(tuple(beginnings)):
            return name
    return nodeid.split("::", 1)[0]


class ByGroup(LoadScopeScheduling):
    """What is timed to the first worker, at once. The other groups to whichever is free, the last collected first.

    So the searcher's tests, which mostly wait, run beside the timings that bear least beside them: those of the cheats, which
    come first.
    """

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        # Not by the number of tests, which says little about their time.
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        is_first = node.gateway.id == FIRST_WORKER
        wanted = next((name for name in reversed(self.workqueue) if (name == TIMED) == is_first), None)
        self.workqueue.move_to_end(wanted or next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)
