"""What a run shows while it goes on: a live status on a terminal, plain lines in a pipe.

Texts that come from candidates, models and evaluators pass through `plain`, so that none of them can command a terminal.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from kernelevo_api.pool import Change, Notice
from kernelevo_api.types import DeviceRequirement, Effort, Progress, Verdict
from kernelevo_searcher.candidates import Elsewhere, elsewhere_line, is_ours, summary_of
from kernelevo_searcher.events import (
    CandidateProposed,
    EvaluationFailed,
    EvaluationFinished,
    EvaluatorChanged,
    EvaluatorsConnected,
    MemoryRead,
    ModelCallFailed,
    ModelCallFinished,
    Paused,
    ProblemRegistered,
    Record,
    Resumed,
    RunResumed,
    RunStarted,
    StopDecided,
    VerificationStarted,
)
from kernelevo_searcher.forecast import Forecast, forecast_line
from kernelevo_searcher.proposers import ReplyOutcome
from kernelevo_searcher.wording import one_line, plain, ratio_text

if TYPE_CHECKING:
    from typing import TextIO

    from kernelevo_searcher.state import RunState

__all__ = [
    "Display",
    "drain_line",
    "ledger_lines",
    "line_of",
    "open_display",
]

_LONGEST_IDEA = 80


def line_of(record: Record, state: RunState) -> str | None:
    """What an event says to people; None for those that only programs need."""
    match record.event:
        case RunStarted() as event:
            return f"run {event.run_id[:8]} on {plain(event.problem_name)}"
        case RunResumed():
            return f"resumed after {state.evaluated} evaluated candidates, {len(state.in_flight)} in flight"
        case EvaluatorsConnected() as event:
            names = ", ".join(event.evaluators)
            return f"evaluator {plain(names)}, device {plain(event.device.name)} {plain(event.device.architecture)}".rstrip()
        case EvaluatorChanged() as event:
            return f"evaluator {one_line(str(Notice(event.change, event.evaluator, event.reason)), 300)}"
        case ProblemRegistered() as event:
            return _registered(event)
        case MemoryRead() as event:
            return f"memory: {len(event.lessons)} lessons of {len(event.runs)} runs"
        case EvaluationFinished(device=DeviceRequirement() as device) as event:
            found = Elsewhere(evaluation=event.evaluation)
            return f"{event.candidate_id} final, {elsewhere_line(device, found)}"
        case EvaluationFinished() as event:
            return _evaluated(event, state)
        case EvaluationFailed() as event:
            return f"{event.candidate_id} not evaluated ({event.reason}): {one_line(event.message, 200)}"
        case ModelCallFinished(outcome=ReplyOutcome.OK):
            return None
        case ModelCallFinished() as event:
            return f"{event.call_id} reply without a candidate ({event.outcome.value}): {one_line(event.detail, 120)}"
        case ModelCallFailed() as event:
            return f"{event.call_id} no reply: {one_line(event.message, 300)}"
        case Paused() as event:
            return f"paused: {one_line(event.reason, 300)}"
        case Resumed() as event:
            return f"{plain(event.model)} goes on" if event.model is not None else "going on"
        case StopDecided() as event:
            return f"search ends: {one_line(event.reason, 300)}"
        case VerificationStarted() as event:
            return f"verifying {', '.join(event.candidate_ids)} with new inputs, timed twice"
        case _:
            return None


def _registered(event: ProblemRegistered) -> str:
    report = event.report
    baselines = ", ".join(
        f"{baseline.kind.value} {baseline.median_us:.1f} us"
        for baseline in report.baselines
        if baseline.kind is not None
    )
    floor = f", memory floor {report.floor_us:.1f} us" if report.floor_us else ""
    mark = ", accepted although its audit refuses it" if report.accepted_with_mark else ""
    return f"problem registered: {baselines or 'no baseline'}{floor}{mark}"


def _evaluated(event: EvaluationFinished, state: RunState) -> str | None:
    candidate = state.candidates[event.candidate_id]
    effort = event.evaluation.effort
    if is_ours(event.evaluation):
        return f"{candidate.id} came to nothing through no fault of its own: {one_line(event.evaluation.message, 200)}"
    if effort is Effort.FINAL:
        timing = event.evaluation.timing
        confirmed = (
            f", confirmed {ratio_text(timing.confirmation)}" if timing is not None and timing.confirmation else ""
        )
        return f"{candidate.id} final {one_line(summary_of(event.evaluation), 160)}{confirmed}"
    star = "*" if state.best_id == candidate.id else " "
    how = (
        "measured again"
        if effort is Effort.FULL and Effort.SCREEN in candidate.evaluations
        else _what(candidate.proposed)
    )
    return f"{star} {candidate.id} {one_line(summary_of(event.evaluation), 160)}  {how}"


def _what(proposed: CandidateProposed) -> str:
    parents = " and ".join(each for each in (proposed.parent_id, proposed.other_id) if each is not None)
    parent = f" of {parents}" if parents else ""
    return f"{proposed.action.value}{parent}: {one_line(proposed.idea, _LONGEST_IDEA)}"


def drain_line(state: RunState | None) -> str:
    """What a run that is asked to end does about it; `state` is absent while nothing was heard of the run."""
    calls, evaluations = (len(state.calls), len(state.in_flight)) if state is not None else (0, 0)
    waited = [
        f"{count} {name}{'s' if count > 1 else ''}"
        for count, name in ((calls, "model call"), (evaluations, "evaluation"))
        if count
    ]
    waiting = f"waiting for {' and '.join(waited)}" if waited else "nothing is under way"
    return f"stopping: nothing new is started, {waiting}; a second Ctrl-C stops at once"


def _status(state: RunState, began: float, doing: dict[str, str], *, draining: bool) -> str:
    settings = state.settings
    minutes, seconds = divmod(int(time.monotonic() - began), 60)
    parts = [f"{minutes}:{seconds:02d}", *(["stopping"] if draining else [])]
    limit = f"/{settings.evaluations}" if settings.evaluations is not None else ""
    parts.append(f"{state.evaluated}{limit} evaluated")
    if settings.models:
        parts.append(f"{state.usage.total_tokens:,}/{settings.budget_tokens:,} tokens")
        total = state.spending.total
        if total.dollars:
            parts.append(f"${total.dollars:.2f}{' and more' if total.dollars_unknown else ''}")
    queue = len(state.calls), state.requests_in_flight
    if any(queue):
        parts.append(f"{queue[0]} asked, {queue[1]} measured" if settings.models else f"{queue[1]} measured")
    best = state.best
    if best is not None and best.speedup is not None:
        parts.append(f"best {ratio_text(best.speedup)} ({best.id})")
    if state.paused:
        parts.append("paused")
    parts += [one_line(f"{name} {what}".strip(), 60) for name, what in doing.items()]
    return " · ".join(parts)


def ledger_lines(state: RunState) -> list[str]:
    """What the model calls cost, by action and model; nothing where none was made."""
    rows = list(state.spending.rows.values())
    if not rows:
        return []
    lines = ["tokens by action and model:"]
    for row in [*rows, state.spending.total]:
        dollars = "price unknown" if row.dollars_unknown else f"${row.dollars:.4f}"
        estimated = ", partly estimated" if row.usage.estimated else ""
        lines.append(
            f"  {row.action:<8} {plain(row.model)}: {row.calls} calls, {row.useful} candidates, "
            f"{row.usage.total_tokens:,} tokens ({dollars}{estimated})"
        )
    return lines


class Display(Protocol):
    """Somewhere to show a run."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def observe(self, record: Record, state: RunState) -> None: ...

    def progress(self, candidate_id: str, progress: Progress) -> None: ...

    def draining(self) -> None: ...

    def forecast(self, told: Forecast) -> None: ...


class PlainDisplay:
    """One line for each event."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._stage = ""
        self._state: RunState | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def observe(self, record: Record, state: RunState) -> None:
        """Show an event."""
        self._state = state
        line = line_of(record, state)
        if line is not None:
            self._say(line)

    def progress(self, candidate_id: str, progress: Progress) -> None:
        """The registration is slow and logs nothing until it is done; of evaluations the outcome is enough."""
        stage = progress.stage.value if progress.stage is not None else ""
        if not candidate_id and stage and stage != self._stage:
            self._stage = stage
            self._say(f"  {stage}: {one_line(progress.message, 120)}")

    def draining(self) -> None:
        """Tell that the run was asked to end."""
        self._say(drain_line(self._state))

    def forecast(self, told: Forecast) -> None:
        """Show what the budget buys."""
        line = forecast_line(told)
        if line is not None:
            self._say(line)

    def _say(self, line: str) -> None:
        self._stream.write(f"{line}\n")
        self._stream.flush()


class LiveDisplay:
    """Lines above, and a status at the bottom that keeps up."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._state: RunState | None = None
        self._doing: dict[str, str] = {}
        self._draining = False
        self._began = time.monotonic()
        self._live = Live(console=console, refresh_per_second=4, transient=True, get_renderable=self._render)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _render(self) -> RenderableType:
        if self._state is None:
            doing = next(iter(self._doing.values()), "starting the evaluator")
            return Text(f"{doing} …", style="dim")
        status = _status(self._state, self._began, self._doing, draining=self._draining)
        return Text(status, style="bold", overflow="ellipsis", no_wrap=True)

    def observe(self, record: Record, state: RunState) -> None:
        """Show an event."""
        self._state = state
        if isinstance(record.event, (EvaluationFinished, EvaluationFailed)):
            self._doing.pop(record.event.candidate_id, None)
        if isinstance(record.event, ProblemRegistered):
            self._doing.pop("", None)
        line = line_of(record, state)
        if line is not None:
            self._console.print(Text(line, style=_style(record)), soft_wrap=True)

    def progress(self, candidate_id: str, progress: Progress) -> None:
        """Show where an evaluation is."""
        stage = progress.stage.value if progress.stage is not None else progress.message
        self._doing[candidate_id] = plain(stage)

    def draining(self) -> None:
        """Tell that the run was asked to end."""
        self._draining = True
        self._console.print(Text(drain_line(self._state), style="bold"), soft_wrap=True)

    def forecast(self, told: Forecast) -> None:
        """Show what the budget buys."""
        line = forecast_line(told)
        if line is not None:
            self._console.print(Text(line, style="dim"), soft_wrap=True)


def _style(record: Record) -> str:
    match record.event:
        case EvaluationFinished(evaluation=evaluation):
            return "" if evaluation.verdict is Verdict.PASSED else "yellow"
        case EvaluationFailed() | Paused() | ModelCallFailed() | EvaluatorChanged(change=Change.LOST):
            return "red"
        case _:
            return "dim"


def open_display(stream: TextIO, *, live: bool | None = None) -> LiveDisplay | PlainDisplay:
    """A live display where the stream is a terminal, plain lines elsewhere."""
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    use_live = console.is_terminal and not console.is_dumb_terminal if live is None else live
    return LiveDisplay(console) if use_live else PlainDisplay(stream)
