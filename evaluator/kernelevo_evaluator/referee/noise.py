"""What a disturbed host leaves of a speedup: disturbance widens the interval, and is never counted in a candidate's favour.

Each check that compares times loses its power when times are noisy, and each disturbance can hit one side more than the other. So
what a check could not exclude is counted into the interval's lower end (docs/decisions/0026).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kernelevo_evaluator.referee import effort as settings

if TYPE_CHECKING:
    from kernelevo_api.types import Ratio
    from kernelevo_evaluator.referee.timing import Lone

TOLD_FROM = 0.05
"""A lower end that moves by less is not worth a remark."""


def disturbed(speedup: Ratio, *, lone: Lone | None, drift: Ratio, undisturbed: float) -> tuple[Ratio, tuple[str, ...]]:
    """A speedup whose interval holds what this timing could not exclude, and remarks on what that was.

    Args:
        lone: the candidate's calls among others and alone, which `speedup` counts in already where they surely differ.
        drift: the baseline once the candidate was gone, over before.
        undisturbed: by what to multiply it if the baseline's blocks had been shorter by all that its threads waited for cores.
    """
    low, remarks = speedup.low, []
    if undisturbed < 1:
        low *= undisturbed
        if undisturbed < 1 - TOLD_FROM:
            remarks.append(
                f"the host was busy: threads of the baseline waited for a core, for up to {1 - undisturbed:.0%} of its time"
            )
    if lone is not None and lone.unsure:
        low = min(low, lone.slower(speedup).low)
        remarks.append(
            f"a call alone in its block takes {lone.alone_us:.0f} us, give or take {2 * lone.error_us:.0f}: "
            f"whether the {lone.among_others_us:.0f} us among others are shared work is not known"
        )
    if drift.low < 1 / settings.UNSURE:
        low *= drift.low
        remarks.append(f"the baseline may have run {1 / drift.low:.1f} times as fast once the candidate was gone")
    if speedup.high > settings.UNSETTLED * speedup.low:
        low = min(low, 1.0)
        remarks.append(
            f"no speedup is claimed: the host was disturbed, ratios lie between {speedup.low:.2f} and {speedup.high:.2f}"
        )
    return replace(speedup, low=min(low, speedup.value)), tuple(remarks)
