"""Does the asked language do the work? Shares of a call's time by what ran, and what they say.

The trace comes from the candidate's process. Where it says that the library did the work, it is believed: nobody gains by that
lie. Where it says otherwise, its kernels have to hold as much time as the clock outside saw.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelevo_api.types import Finding, Verdict
from kernelevo_evaluator.messages.runner import TraceCalls, Traced
from kernelevo_evaluator.referee.outcome import Decided
from kernelevo_evaluator.referee.rings import CHECK_RING
from kernelevo_evaluator.referee.runners import RunnerFailed, nonce

if TYPE_CHECKING:
    from kernelevo_api.types import Timing
    from kernelevo_evaluator.referee.checks import Subject

OWN_SHARE = 0.2
"""Share of a call's time that kernels of the asked language must hold."""
EXPLAINED = 0.5
"""Share of the time seen from outside that a trace has to explain, where a call is long enough to be no matter of launching."""
EXPLAINED_FROM_US = 50.0

_LIBRARY = re.compile(
    r"at::|c10::|cub::|thrust::|cutlass|cublas|cudnn|nvjet|cask|gemm|gemv|splitK|nchw|nhwc|Memcpy|Memset|flash_|fmha|"
    r"softmax_warp_|cunn_SoftMax|vectorized_(elementwise|layer_norm)|elementwise_kernel|CatArrayBatched|indexSelect|"
    r"^triton_(poi|red|per|tem|for)_fused|^(sm\d+|volta|turing|ampere|hopper|maxwell)_",
    re.IGNORECASE,
)
"""Names of kernels that come with torch, CUDA's libraries or TorchInductor."""
_NO_WORK = re.compile(
    r"^aten\.(empty|new_empty|view|_unsafe_view|as_strided|t\.|transpose|permute|expand|reshape|detach|alias|slice|select|"
    r"unsqueeze|squeeze|lift_fresh|set_|resize_|_reshape_alias|split|unbind|unfold|diagonal)"
)
"""Operators that compute nothing."""


@dataclass(frozen=True, slots=True)
class Share:
    """Shares of a call's time, and who holds most of the library's."""

    own: float
    library: float
    largest: str
    traced_us: float

    @property
    def complies(self) -> bool:
        """Whether the asked language holds enough of what was traced."""
        return self.traced_us > 0.0 and self.own >= OWN_SHARE

    def describe(self) -> str:
        """One line for people."""
        return (
            f"kernels of the asked language hold {self.own:.0%} of a call's time, where {OWN_SHARE:.0%} is asked for; "
            f"the library holds {self.library:.0%}, most of it {self.largest[:120] or 'nothing'}"
        )

    def unexplained(self, outside_us: float) -> bool:
        """Whether what was traced is far less than what was seen from outside."""
        return outside_us >= EXPLAINED_FROM_US and self.traced_us < EXPLAINED * outside_us


def is_library(kernel: str) -> bool:
    """Whether a kernel's name is one of those that come with torch, CUDA's libraries or TorchInductor."""
    return _LIBRARY.search(kernel) is not None


def is_work(operator: str) -> bool:
    """Whether an operator of torch computes anything."""
    return _NO_WORK.match(operator) is None


def share_on_gpu(trace: Traced) -> Share:
    """Of device time. Without any kernel nothing is known."""
    library = [part for part in trace.parts if is_library(part.name)]
    total = sum(part.us for part in trace.parts)
    held = sum(part.us for part in library)
    if total <= 0.0:
        return Share(0.0, 0.0, "", 0.0)
    return Share(1 - held / total, held / total, library[0].name if library else "", total)


def share_on_cpu(trace: Traced) -> Share:
    """Of the call's own clock: what torch's operators do not hold is the candidate's."""
    working = [part for part in trace.parts if is_work(part.name)]
    held = min(1.0, sum(part.us for part in working) / trace.wall_us) if trace.wall_us > 0 else 0.0
    return Share(1 - held, held, working[0].name if working else "", trace.wall_us)


def trace(subject: Subject, findings: list[Finding]) -> Traced | None:
    """What a call of a candidate runs, with the inputs that lie in its check ring; `None`, and a finding, where it fails."""
    try:
        return subject.runner.ask(TraceCalls(nonce=nonce(), ring=CHECK_RING, slot=0), Traced)
    except RunnerFailed as error:
        findings.append(Finding(code="not_traced", message=f"what ran could not be traced: {error}"[:1000]))
        return None


def look(subject: Subject, trace: Traced, *, refuses: bool, timing: Timing | None) -> list[Finding]:
    """Findings on what was traced of a candidate's call.

    Args:
        refuses: whether a candidate of a GPU whose own kernels do next to nothing is refused, not only told so.
        timing: what its calls take by the clock outside, where they were timed.

    Raises:
        Decided: `NOT_THE_LANGUAGE`.
    """
    gpu = subject.reference.space.device.type == "cuda"
    share = share_on_gpu(trace) if gpu else share_on_cpu(trace)
    if share.traced_us <= 0.0:
        return [Finding(code="not_traced", message="no kernel was seen in the trace of a call")]
    if not share.complies:
        if gpu and refuses:
            raise Decided(
                Verdict.NOT_THE_LANGUAGE,
                subject.runner.stage,
                share.describe(),
                correctness=subject.tally.correctness(),
                timing=timing,
            )
        return [Finding(code="library_work", message=share.describe())]
    if gpu and timing is not None and share.unexplained(timing.candidate_us or 0.0):
        told = f"the kernels that were traced take {share.traced_us:.0f} us of a call's {timing.candidate_us:.0f} us"
        return [Finding(code="untraced_work", message=told)]
    return []
