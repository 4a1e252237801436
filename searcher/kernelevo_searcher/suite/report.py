"""A suite's results for people and for programs: `results.json`, `results.md` for a README, and one self-contained page.

Names of problems, reasons and versions may hold anything: in the page everything is escaped, in the table what would end a
cell or be taken for markup is.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernelevo_searcher.files import replace_file
from kernelevo_searcher.report.code import visible
from kernelevo_searcher.report.page import REPORT_FILE, page_environment
from kernelevo_searcher.suite.results import Ending, ending_text, read_results
from kernelevo_searcher.suite.statistics import HOLDS, LEVELS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelevo_api.types import Ratio
    from kernelevo_searcher.suite.folder import Suite
    from kernelevo_searcher.suite.results import Over, ProblemResult, SuiteResults
    from kernelevo_searcher.suite.statistics import Mean, Share

__all__ = ["JSON_FILE", "MARKDOWN_FILE", "markdown", "summary_lines", "write_results"]

JSON_FILE = "results.json"
MARKDOWN_FILE = "results.md"
NAMES = {"eager": "eager", "torch_compile": "torch.compile"}
_MARKUP = re.compile(r"[\\|<>`*\[&]")
_WIDTH, _LEFT, _RIGHT, _ROW = 1040, 300, 30, 20


def write_results(suite: Suite) -> SuiteResults:
    """Write all three into the suite's folder, also while it goes on, and return what they say.

    Raises:
        OSError: a file cannot be written.
    """
    results = read_results(suite)
    replace_file(suite.path / JSON_FILE, json.dumps(results.as_json(), indent=1, allow_nan=False) + "\n")
    replace_file(suite.path / MARKDOWN_FILE, markdown(results))
    replace_file(suite.path / REPORT_FILE, page(results))
    return results


# Words that all of them share.


def percent(share: Share) -> str:
    """A share with what it is a share of."""
    return f"{share.value:.0%} ({share.count} of {share.of})" if share.value is not None else "–"


def mean_text(mean: Mean | None) -> str:
    """A mean with its interval, and of how many."""
    if mean is None:
        return "–"
    interval = f" [{mean.low:.2f}, {mean.high:.2f}]" if mean.low is not None and mean.high is not None else ""
    return f"{mean.value:.2f}x{interval} ({mean.count})"


def cost_text(tokens: int, dollars: float, unknown: bool) -> str:
    """Tokens, and what they cost."""
    if not tokens:
        return "no tokens"
    return f"{tokens:,} tokens, {'price unknown' if unknown else f'${dollars:.2f}'}"


def notes(results: SuiteResults) -> list[str]:
    """What has to be known to read the figures."""
    over = results.over[0]
    said = [
        f"fast_p: the share of the {over.shares[0].of} problems that have come to an end, those that were not taken included, "
        "with a verified kernel that is more than p times as fast; “certain”: with the whole interval above p.",
        "Each speedup is a measurement that did not take part in choosing the kernel.",
        HOLDS,
    ]
    if results.open:
        said.insert(0, f"{results.open} of {len(results.problems)} problems have not come to an end yet.")
    for one in results.over:
        if one.missing:
            said.append(
                f"{one.missing} verified kernels were not measured over {NAMES[one.baseline.value]}: there they count as not "
                "fast, and are in no mean."
            )
    return said


def summary_lines(results: SuiteResults) -> list[str]:
    """The figures for a terminal."""
    endings = ", ".join(f"{count} {ending_text(ending)}" for ending, count in results.endings)
    lines = [f"{len(results.problems)} problems: {endings}"]
    for over in results.over:
        shares = " · ".join(f"fast_{one.level:g} {percent(one)}" for one in over.shares)
        lines.append(f"over {NAMES[over.baseline.value]}: {shares}")
        lines.append(
            f"  geometric mean of verified kernels {mean_text(over.verified)}, 1 where none is proved {mean_text(over.kept)}"
        )
    verdicts = ", ".join(f"{count} {verdict.replace('_', ' ')}" for verdict, count in results.verdicts) or "none"
    lines.append(f"verdicts of all evaluations: {verdicts}")
    lines.append(
        f"{results.evaluated:,} candidates evaluated, "
        f"{cost_text(results.tokens, results.dollars, results.dollars_unknown)}, {results.active_s / 60:.1f} min of searches"
    )
    return lines


# For a README.


def markdown(results: SuiteResults) -> str:
    """The tables."""
    over_names = [NAMES[over.baseline.value] for over in results.over]
    head = (
        f"**{_cell(results.suite.name)}**: {len(results.problems)} problems on {_cell(results.device) or 'no device yet'}, "
        f"KernelEvo {_cell(results.suite.version)}, {results.suite.created:%Y-%m-%d}."
    )
    lines = [head, "", *_shares_table(results.over), ""]
    endings = ", ".join(f"{count} {ending_text(ending)}" for ending, count in results.endings)
    verdicts = ", ".join(f"{count} {verdict.replace('_', ' ')}" for verdict, count in results.verdicts) or "none"
    cost = cost_text(results.tokens, results.dollars, results.dollars_unknown)
    lines += [
        f"Problems: {endings}. {results.evaluated:,} candidates evaluated; verdicts of all evaluations: {verdicts}. Cost: "
        f"{cost}, {results.active_s / 60:.1f} min of searches.",
        "",
        " ".join(notes(results)),
        "",
        f"| problem | result | {' | '.join(f'over {name}' for name in over_names)} | one call | evaluated | tokens |",
        f"| --- | --- | {' | '.join('---:' for _ in over_names)} | ---: | ---: | ---: |",
    ]
    for one in results.problems:
        ratios = [_ratio(one.speedup), _ratio(one.over_other)][: len(over_names)]
        result = ending_text(one.ending)
        if one.ending in (Ending.REFUSED, Ending.FAILED):
            result += f": {one.why.partition(':')[0]}"
        call = f"{one.kernel_us:,.1f} µs" if one.kernel_us is not None else ""
        cells = [one.problem.name, result, *ratios, call, f"{one.evaluated:,}", f"{one.tokens:,}"]
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join(lines) + "\n"


def _shares_table(overs: Sequence[Over]) -> list[str]:
    levels = " | ".join(f"fast<sub>{level:g}</sub>" for level in LEVELS)
    lines = [
        f"| | {levels} | geometric mean, verified | 1 where not proved faster |",
        f"| --- | {' | '.join('---:' for _ in LEVELS)} | ---: | ---: |",
    ]
    for over in overs:
        cells = [*map(percent, over.shares), mean_text(over.verified), mean_text(over.kept)]
        lines.append(f"| over {NAMES[over.baseline.value]} | {' | '.join(cells)} |")
        certain = [f"{one.certain} of {one.of}" for one in over.shares]
        lines.append(f"| of these certain | {' | '.join(certain)} | | |")
    return lines


def _ratio(ratio: Ratio | None) -> str:
    return f"{ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio is not None else ""


def _cell(text: str) -> str:
    """A text within a table: nothing in it ends the cell, or is taken for markup."""
    shown = " ".join(visible(text).split())
    return _MARKUP.sub(r"\\\g<0>", shown)


# The page.


@dataclass(frozen=True, slots=True)
class Bar:
    """A problem's speedup and its interval, on a logarithmic axis."""

    name: str
    y: int
    x: float
    low: float
    high: float
    proved: bool
    title: str


@dataclass(frozen=True, slots=True)
class Bars:
    """All of them, the fastest on top."""

    bars: tuple[Bar, ...]
    ticks: tuple[tuple[float, str], ...]
    one_x: float
    width: int
    height: int
    left: int


def bars_of(results: Sequence[ProblemResult]) -> Bars | None:
    """Where the marks go; absent where nothing was verified."""
    found = [(one, one.speedup) for one in results if one.speedup is not None and one.speedup.low > 0]
    if not found:
        return None
    found.sort(key=lambda pair: -pair[1].value)
    lowest = math.log2(min(1.0, *(ratio.low for _, ratio in found)))
    highest = math.log2(max(2.0, *(ratio.high for _, ratio in found)))

    def x(value: float) -> float:
        share = (math.log2(value) - lowest) / (highest - lowest)
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)

    powers = range(math.ceil(lowest - 1e-9), math.floor(highest + 1e-9) + 1)
    return Bars(
        bars=tuple(
            Bar(
                name=one.problem.name,
                y=30 + place * _ROW,
                x=x(ratio.value),
                low=x(ratio.low),
                high=x(ratio.high),
                proved=one.ending is Ending.FASTER,
                title=f"{one.problem.name}: {_ratio(ratio)}",
            )
            for place, (one, ratio) in enumerate(found)
        ),
        ticks=tuple((x(2.0**power), f"{2.0**power:g}x") for power in powers),
        one_x=x(1.0),
        width=_WIDTH,
        height=30 + len(found) * _ROW + 10,
        left=_LEFT,
    )


def page(results: SuiteResults) -> str:
    """The page as text. Links lead to the reports beside it; nothing else is loaded."""
    environment = page_environment()
    environment.filters.update(percent=percent, mean=mean_text, ending=ending_text)
    return environment.get_template("suite.html.j2").render(
        results=results,
        suite=results.suite,
        names=NAMES,
        bars=bars_of(results.problems),
        notes=notes(results),
        cost=cost_text(results.tokens, results.dollars, results.dollars_unknown),
        reports={
            one.problem.folder
            for one in results.problems
            if Path(results.suite.run_dir(one.problem) / REPORT_FILE).is_file()
        },
        report_file=REPORT_FILE,
    )
