"""How much each effort spends. Every number a user may want to know stands here."""

from __future__ import annotations

from dataclasses import dataclass

from kernelevo_api.types import Effort


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one effort checks and times."""

    trials: int
    """Checks on the problem's own inputs, each with inputs and weights of its own secret seeds."""
    scaled_trials: int
    """Checks on scaled inputs, where the audited problem takes them."""
    shape_trials: int
    """Checks for each declared further shape."""
    minimum_pairs: int
    maximum_pairs: int
    timing_seconds: float
    """No new pair is begun after this long, the time for comparing not counted."""
    samples: int
    """Calls of a timing that are checked in its first pairs, at least; every later block adds `LATER_SAMPLES`. Of calls that are
    wrong once in twenty, 24 hold one with 71 %, 60 with 95 %, 90 with 99 %."""
    timings: int = 1
    """Independent timings, each in a fresh runner."""


PLANS = {
    Effort.SCREEN: Plan(
        trials=1, scaled_trials=0, shape_trials=0, minimum_pairs=5, maximum_pairs=9, timing_seconds=1.5, samples=24
    ),
    Effort.FULL: Plan(
        trials=3, scaled_trials=1, shape_trials=1, minimum_pairs=9, maximum_pairs=41, timing_seconds=4.0, samples=60
    ),
    Effort.FINAL: Plan(
        trials=6,
        scaled_trials=2,
        shape_trials=2,
        minimum_pairs=15,
        maximum_pairs=61,
        timing_seconds=5.0,
        samples=90,
        timings=2,
    ),
}

TARGET_HALF_WIDTH = 0.01
"""Timing stops once the interval is within this of its value."""
BLOCK_SECONDS = 0.020
"""A block of the baseline lasts about this long."""
ROUNDS = 4
"""Most blocks added up for one measurement, where memory allows none that long."""
CALIBRATED_PAIRS = 5
"""What lies within the reference's own time of a block beside its calls is measured in this many pairs, and in every fourth one
after them."""
RING_BYTES = 512 << 20
"""Most memory for one side's ring of inputs and outputs."""
RING_SLOTS = 192
"""Most slots in a ring."""
DEVICE_BLOCK_SECONDS = 0.008
"""The same on a GPU. What a block costs beside its calls moves by some 40 us: shorter ones need too many pairs."""
DISTURBED_US = 45.0
"""On a GPU, a pair whose reference answered so much later than usual is disturbed by the host and does not count."""
DRIFT_BLOCKS = 5
"""Blocks that look for drift; twice as many more where they find some."""
DEVICE_REHEARSED = 8
"""Calls on old content just before each block."""
KEPT_BYTES = 128 << 20
DEVICE_KEPT_BYTES = 2 << 30
"""Most memory for sampled outputs and inputs that wait to be checked once nothing is timed."""
DEVICE_RING_SLOTS = 1024
DEVICE_RING_SHARE = 0.15
"""Share of a GPU's memory that one side's ring may take, its outputs included."""
REPLAY_BELOW_SECONDS = 1e-3
"""Calls of the reference that are shorter are replayed from CUDA graphs, where both sides can be captured: what would be timed
otherwise is how fast a process launches."""
SAMPLES = 2
MOST_SAMPLES = 8
SAMPLED_BYTES = 1 << 20
"""Calls of every block on a processor whose outputs are copied out before the clock stops: `SAMPLES` at least, more while
they are small."""
LATER_SAMPLES = 1
"""Calls of a block that are checked once a timing has seen as many as its plan wants."""
CONTENTS_SECONDS = 0.25
"""Drawing a block's inputs by the problem's own code takes no longer than this."""
PROCESS_SPREAD = 0.005
"""Two processes of the same code differ steadily by 0.3-1 %: counted into every interval."""
DISPUTED_DRIFT = 0.15
"""A baseline that is surely this much faster, by the host's own pace, once the candidate is gone disputes the timing. Not the few
per cent of a device of one's own: nothing of a frozen candidate runs on a processor, and a shared host drifts by more."""
DISPUTED_GAP = 0.30
"""Two timings in fresh runners whose intervals lie this far apart dispute each other; nearer ones widen the interval. Seen on a
shared 2-core host between processes of one honest code: up to 0.2."""
CACHE_BYTES = 64 << 20
"""A larger last-level cache is taken for one that many cores share, of which a lane has a part: no more is swept out."""
LONE_CALLS = 8
"""Most calls of either side, each alone in its block, that each of the first `LONE_PAIRS` pairs holds."""
UNSEEN_SECONDS = 0.05
"""For drawing the inputs of a pair's lone calls; where it does not suffice for all, they are fewer."""
LONE_GAP = 0.10
LONE_ERRORS = 1.64
"""A call that alone in its block is slower than among others, by this much and so many standard errors, counts as it is alone."""
LONE_DISPUTED = 2.0
LONE_DISPUTED_US = 50.0
LONE_PAIRS = 9
"""One that takes this much longer, and so many microseconds, beyond what the baseline shows and four standard errors, disputes
the timing; only after so many pairs."""
UNSURE = 1.5
"""Where lone calls may take this many times as long as calls among others, or the baseline may have been this many times as fast
once the candidate was gone, that is counted into the interval."""
UNSETTLED = 4.0
"""An interval whose ends lie this many times apart tells of the host alone: no speedup is claimed by it."""
CLAIMED_BELOW_US = 20.0
"""A GPU's calls that are shorter are claimed until their launches were counted by Nsight Compute."""
