"""Writing the page: the log in, one HTML file out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
from markupsafe import Markup

from kernelevo_searcher.files import replace_file
from kernelevo_searcher.report.charts import progress_chart, strip_chart, tree_chart
from kernelevo_searcher.report.code import code_lines, visible
from kernelevo_searcher.report.data import ReportData, read_report
from kernelevo_searcher.store import RunStore

if TYPE_CHECKING:
    from kernelevo_api.types import Ratio

__all__ = ["REPORT_FILE", "page_environment", "render_report", "write_report"]

REPORT_FILE = "report.html"
_SOURCES_SHOWN = 300
"""Candidates whose source is in the page; the store keeps them all."""


def write_report(run_dir: Path, output: Path | None = None) -> Path:
    """Write the report of a run, also while it goes on, and return where it is.

    `output` defaults to `report.html` in the run's folder. An existing file is replaced in one step.

    Raises:
        RunNotFound: there is no run in this folder.
        OSError: the file cannot be written.
    """
    with RunStore.open(run_dir, read_only=True) as store:
        data = read_report(store.records(), store.text)
    path = output if output is not None else run_dir / REPORT_FILE
    replace_file(path, render_report(data))
    return path


def page_environment() -> jinja2.Environment:
    """What renders our pages: everything escaped, what is invisible spelled out."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates", encoding="utf-8"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(ratio=_ratio, microseconds=_microseconds, code_lines=code_lines, count=_count)
    style = (Path(__file__).parent / "templates" / "style.css").read_text(encoding="utf-8")
    environment.globals["style"] = Markup(style)  # noqa: S704 - ours
    return environment


def render_report(data: ReportData) -> str:
    """The page as text."""
    timing = data.best_evaluation.timing if data.best_evaluation is not None else None
    samples = (
        [("baseline", timing.baseline_samples_us), ("candidate", timing.candidate_samples_us)]
        if timing is not None
        else []
    )
    return (
        page_environment()
        .get_template("report.html.j2")
        .render(
            data=data,
            state=data.state,
            started=data.state.started,
            by_evaluations=progress_chart(data.points, data.steps, over_tokens=False),
            by_tokens=progress_chart(data.points, data.steps, over_tokens=True)
            if data.state.usage.total_tokens
            else None,
            tree=tree_chart(data.rows, data.ancestry, data.best.id if data.best is not None else None),
            strips=strip_chart(samples),
            timing=timing,
            environment=data.best_evaluation.environment if data.best_evaluation is not None else None,
            device=_device_name(data),
            sources_shown=_SOURCES_SHOWN,
        )
    )


def _finalize(value: object) -> object:
    """Every text that goes into the page, before it is escaped; what is markup already was made from escaped parts."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _ratio(ratio: Ratio | None) -> str:
    return "" if ratio is None else f"{ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]"


def _microseconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value / 1000:,.2f} ms" if value >= 10_000 else f"{value:,.4g} µs"


def _count(value: int) -> str:
    return f"{value:,}"


def _device_name(data: ReportData) -> str:
    evaluation, connected = data.best_evaluation, data.state.connected
    if evaluation is not None and evaluation.environment is not None and evaluation.environment.device is not None:
        return evaluation.environment.device.name
    if connected is not None:
        devices = connected.capabilities.devices
        return connected.device.name or (devices[0].name if devices else "")
    return ""
