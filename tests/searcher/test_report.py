"""The report: one file, everything escaped, nothing from the network, whatever the candidates wrote."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelevo_api.types import (
    Capabilities,
    Device,
    DeviceKind,
    DeviceRequirement,
    Effort,
    Environment,
    Evaluation,
    Guarantee,
    Language,
    ProblemReport,
    Ratio,
    SandboxInfo,
    Timing,
    Tool,
    Trust,
    Verdict,
)
from kernelevo_searcher.events import (
    CandidateProposed,
    EvaluationFinished,
    EvaluationStarted,
    EvaluatorsConnected,
    ModelCallFailed,
    ModelCallFinished,
    ModelCallStarted,
    ParameterValue,
    ProblemRegistered,
    RunFinished,
    RunSettings,
    RunStarted,
    StopDecided,
    VerificationFinished,
    VerificationStarted,
    text_digest,
)
from kernelevo_searcher.models import ModelSettings
from kernelevo_searcher.proposers import ActionKind, ReplyOutcome, Usage
from kernelevo_searcher.report import write_report
from kernelevo_searcher.report.charts import progress_chart, strip_chart
from kernelevo_searcher.report.code import code_lines, visible
from kernelevo_searcher.report.data import Point, Step
from kernelevo_searcher.store import RunNotFound, RunStore

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = "</pre></script><script>alert(1)</script><img src=x onerror=alert(1)>\"' onmouseover='alert(1) {{ 7*7 }} \u202e\x1b[31m"
REFERENCE = "class Model:\n    def forward(self, x):\n        return x * 2  # reference\n"
KERNEL = 'SOURCE = r"""\n#include <cmath>\nextern "C" void f(float* x) {\n  for (int i = 0; i < 8; ++i) x[i] *= 2.0f;\n}\n"""\n'
CPU = Device(id="cpu", kind=DeviceKind.CPU, name="Test CPU", architecture="x86_64", multiprocessors=2, healthy=True)


def passed(value: float, effort: Effort = Effort.FULL, text: str = "") -> Evaluation:
    ratio = Ratio(value=value, low=value * 0.98, high=value * 1.02)
    return Evaluation(
        verdict=Verdict.PASSED,
        evaluation_id="evaluation-1",
        effort=effort,
        message=text,
        timing=Timing(
            speedup=ratio,
            candidate_us=100 / value,
            baseline_us=100.0,
            floor_us=20.0,
            trust=Trust.BOUNDED,
            candidate_samples_us=(99 / value, 100 / value, 103 / value),
            baseline_samples_us=(99.0, 100.0, 101.0),
            confirmation=ratio if effort is Effort.FINAL else None,
            remarks=(text,) if text else (),
        ),
        environment=Environment(
            device=CPU, evaluator_version="0.1", protocol_version=1, toolchain=(Tool(name="g++", version="12"),)
        ),
    )


ALLOWED_TAGS = """
html head meta title style body header h1 h2 h3 div b span p dl dt dd main svg rect text line path circle g ul li i ol br
table caption thead tbody tr th td details summary pre footer
"""


class Run:
    """A run written through the store, event by event."""

    def __init__(self, folder: Path, text: str = "") -> None:
        self.store = RunStore.create(folder)
        self.text = text
        self.candidates = 0
        self.requests = 0
        started = RunStarted(
            run_id="run-1" + text,
            version="0.1",
            problem_name="rms_norm" + text,
            problem_digest=text_digest(REFERENCE + text),
            settings=RunSettings(models=(ModelSettings(name="some-model" + text, label="some-model" + text),)),
        )
        self.store.append(started, texts=[REFERENCE + text])
        capabilities = Capabilities(
            devices=(CPU,),
            sandbox=SandboxInfo(backend="bubblewrap", guarantees=(Guarantee(name="no_network", holds=True),)),
        )
        self.store.append(
            EvaluatorsConnected(
                evaluators=("unix:x",), capabilities=capabilities, device=DeviceRequirement(name="Test CPU")
            ),
            ProblemRegistered(report=ProblemReport(name="rms_norm")),
        )

    def propose(self, action: ActionKind, parent: str | None, *, call: str | None = None) -> str:
        self.candidates += 1
        source = f"{KERNEL}# candidate {self.candidates}\n{self.text}"
        self.store.append(
            CandidateProposed(
                candidate_id=f"c{self.candidates}",
                source_digest=text_digest(source),
                normal_digest=f"n{self.candidates}",
                action=action,
                parent_id=parent,
                idea=f"idea {self.candidates}{self.text}",
                proposer="tuner" + self.text,
                parameters=(ParameterValue(name="BLOCK" + self.text, value="64" + self.text),),
                call_id=call,
                language=Language.CPP_INLINE,
            ),
            texts=[source],
        )
        return f"c{self.candidates}"

    def evaluate(self, candidate: str, evaluation: Evaluation) -> None:
        self.requests += 1
        effort = evaluation.effort or Effort.FULL
        self.store.append(EvaluationStarted(request_id=f"r{self.requests}", candidate_id=candidate, effort=effort))
        self.store.append(
            EvaluationFinished(request_id=f"r{self.requests}", candidate_id=candidate, evaluation=evaluation)
        )

    def call(self, number: int, action: ActionKind, outcome: ReplyOutcome = ReplyOutcome.OK) -> str:
        started = ModelCallStarted(
            call_id=f"m{number}", action=action, model="some-model" + self.text, reserved_tokens=20_000
        )
        usage = Usage(prompt_tokens=5000, completion_tokens=3000 + number, reasoning_tokens=1000, cached_tokens=4000)
        source = "x" if outcome is ReplyOutcome.OK else None
        finished = ModelCallFinished(call_id=f"m{number}", outcome=outcome, usage=usage, source_digest=source)
        self.store.append(started)
        self.store.append(finished)
        return f"m{number}"


def whole_run(folder: Path, text: str = "") -> None:
    run = Run(folder, text)
    start = run.propose(ActionKind.SEED, None)
    run.evaluate(start, passed(0.9))
    bad = run.propose(ActionKind.REWRITE, None, call=run.call(1, ActionKind.REWRITE))
    run.evaluate(bad, Evaluation(verdict=Verdict.COMPILE_ERROR, message="no such header" + text))
    better = run.propose(ActionKind.TUNE, start)
    run.evaluate(better, passed(1.4, text=text))
    run.call(2, ActionKind.REFINE, ReplyOutcome.PROSE)
    best = run.propose(ActionKind.REFINE, better, call=run.call(3, ActionKind.REFINE))
    run.evaluate(best, passed(2.1))
    run.store.append(ModelCallStarted(call_id="m9", action=ActionKind.FIX, model="some-model", reserved_tokens=1))
    run.store.append(ModelCallFailed(call_id="m9", message="gone" + text))
    run.store.append(StopDecided(reason="budget" + text), VerificationStarted(candidate_ids=(best, better)))
    run.evaluate(best, passed(2.0, Effort.FINAL))
    run.evaluate(better, passed(1.39, Effort.FINAL))
    speedup = Ratio(value=1.93, low=1.88, high=1.97)
    run.store.append(VerificationFinished(best_id=best, speedup=speedup))
    run.store.append(RunFinished(best_id=best, speedup=speedup, reason="budget" + text))
    run.store.close()


class Page(HTMLParser):
    """Every tag, attribute and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def assert_harmless(page: str) -> Page:
    parsed = Page(page)
    allowed = set(ALLOWED_TAGS.split())
    assert {tag for tag, _ in parsed.tags} <= allowed
    names = {name for _, attributes in parsed.tags for name in attributes}
    assert not [
        name for name in names if name.startswith("on") or name in {"src", "href", "style", "xlink:href", "action"}
    ]
    assert "url(" not in page and "@import" not in page
    assert "default-src 'none'" in page
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(svg)
    return parsed


def test_a_whole_run(tmp_path: Path) -> None:
    whole_run(tmp_path / "run")
    path = write_report(tmp_path / "run")
    assert path == tmp_path / "run" / "report.html"
    page = path.read_text(encoding="utf-8")
    parsed = assert_harmless(page)
    facts = "1.93x|[1.88, 1.97]|verified speedup|Test CPU|over eager|idea 4|some-model|6,005|24,006"
    for fact in facts.split("|"):
        assert fact in parsed.text, fact
    assert "3 passed" in parsed.text and "1 compile error" in parsed.text
    assert "return x * 2" in parsed.text and "x[i] *= 2.0f" in parsed.text
    assert "http" not in page.replace("http-equiv", "")
    assert len(page) < 200_000
    assert [path.name for path in (tmp_path / "run").iterdir() if path.name.startswith(".")] == []


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    whole_run(tmp_path / "run", HOSTILE)
    page = write_report(tmp_path / "run", tmp_path / "page.html").read_text(encoding="utf-8")
    parsed = assert_harmless(page)
    assert "<script" not in page and "<img" not in page
    assert "alert(1)" in parsed.text, "it is shown, as text"
    assert "{{ 7*7 }}" in parsed.text, "and is no template"
    assert "\u202e" not in page and "\u27e8U+202E\u27e9" in page, "direction marks are spelled out"
    assert "\x1b" not in page


def test_runs_that_are_not_far(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    assert "No result" in assert_harmless(write_report(tmp_path / "run").read_text(encoding="utf-8")).text
    start = run.propose(ActionKind.SEED, None)
    assert_harmless(write_report(tmp_path / "run").read_text(encoding="utf-8"))
    run.evaluate(start, passed(1.2))
    text = assert_harmless(write_report(tmp_path / "run").read_text(encoding="utf-8")).text
    assert "best so far, not yet verified" in text and "No model was asked" in text
    run.store.close()


def test_no_run_no_report(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_long_chain_of_tunings_is_drawn(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    parent = None
    for number in range(60):
        parent = run.propose(ActionKind.TUNE if parent else ActionKind.SEED, parent)
        run.evaluate(parent, passed(1 + number / 50))
    run.store.close()
    assert_harmless(write_report(tmp_path / "run").read_text(encoding="utf-8"))


def test_code_is_coloured_inside_the_embedded_kernel() -> None:
    lines = [str(line) for line in code_lines(KERNEL + "x = 1  # one\n")]
    assert '<span class="directive">#include &lt;cmath&gt;</span>' in lines
    assert any('<span class="keyword">for</span>' in line for line in lines)
    assert '<span class="comment"># one</span>' in lines[-1]


@given(st.text(max_size=200))
@settings(max_examples=150, deadline=None)
def test_code_is_escaped_and_complete(text: str) -> None:
    lines = code_lines(text)
    plain = "\n".join(re.sub(r"</?span[^>]*>", "", str(line)) for line in lines)
    unescaped = (
        plain.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&#34;", '"')
        .replace("&#39;", "'")
        .replace("&amp;", "&")
    )
    assert unescaped == visible(text.rstrip("\n"))
    assert not re.search(r"<(?!/?span)", "".join(str(line) for line in lines))


ratios = st.floats(min_value=1e-3, max_value=1e4).map(
    lambda value: Ratio(value=value, low=value * 0.9, high=value * 1.1)
)


@given(st.lists(st.one_of(st.none(), ratios), max_size=20), st.booleans())
@settings(max_examples=100, deadline=None)
def test_marks_stay_on_the_chart(speedups: list[Ratio | None], over_tokens: bool) -> None:
    points = [
        Point(candidate_id="c", evaluations=at, tokens=at * 1000, action="tune", idea="", outcome="", speedup=ratio)
        for at, ratio in enumerate(speedups, 1)
    ]
    steps = [
        Step(evaluations=point.evaluations, tokens=point.tokens, speedup=point.speedup.value)
        for point in points
        if point.speedup
    ]
    chart = progress_chart(points, steps, over_tokens=over_tokens)
    assert len(chart.marks) == len(points) and len(chart.y_ticks) <= 30 and len(chart.x_ticks) <= 12
    for mark in chart.marks:
        assert chart.left <= mark.x <= chart.right and chart.top <= mark.y <= chart.bottom


def test_no_samples_no_strips() -> None:
    assert strip_chart([("baseline", ()), ("candidate", (float("nan"), -1.0))]) is None
