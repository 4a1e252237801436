"""The Grafana dashboard names metrics and labels that an evaluator exports, and leaves none out."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kernelevo_api.types import (
    Capabilities,
    Device,
    DeviceKind,
    Evaluation,
    Language,
    QueueState,
    Stage,
    StageTime,
    Timeline,
    Verdict,
)
from kernelevo_evaluator.executor import LaneState
from kernelevo_evaluator.metrics import Metrics

DASHBOARD = json.loads((Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "evaluators.json").read_text())
OF_PROMETHEUS = {"instance", "le"}


def exported() -> dict[str, set[str]]:
    """Labels of each sample's name, of a server to which everything has happened once."""
    metrics = Metrics()
    now = datetime.now(UTC)
    stage = StageTime(stage=Stage.TIME, start=now, end=now + timedelta(seconds=1))
    metrics.evaluated(Evaluation(verdict=Verdict.PASSED, language=Language.TRITON, timeline=Timeline(stages=(stage,))))
    metrics.not_evaluated("evaluator_fault")
    metrics.fault()
    metrics.waited(1.0)
    device = Device(id="gpu0", name="GPU", kind=DeviceKind.CUDA, healthy=True)
    found = Capabilities(devices=(device,), queue=QueueState(lanes=1))
    executor: Any = SimpleNamespace(lane_states={"gpu0": LaneState.IDLE}, warm_runners={"gpu0": 1})
    metrics.watch(executor, lambda: found, lambda: True)
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    return {one.name: set(one.labels) for family in families for one in family.samples}


def expressions() -> list[tuple[str, str]]:
    """What each curve is, and its legend."""
    return [(one["expr"], one["legendFormat"]) for panel in DASHBOARD["panels"] for one in panel["targets"]]


def test_every_metric_and_label_is_exported() -> None:
    known = exported()
    for expression, legend in expressions():
        names = re.findall(r"\bkernelevo_\w+", expression)
        assert names and set(names) <= set(known), expression
        labels = OF_PROMETHEUS.union(*(known[name] for name in names))
        used = re.findall(r"(\w+)=~?\"", expression) + re.findall(r"{{(\w+)}}", legend)
        for group in re.findall(r"\bby \(([^)]*)\)", expression):
            used += group.split(", ")
        assert set(used) <= labels, expression
        grouped = re.search(r"\bsum\b", expression)
        by = {name for group in re.findall(r"\bby \(([^)]*)\)", expression) for name in group.split(", ")}
        assert not grouped or set(re.findall(r"{{(\w+)}}", legend)) <= by, f"summed away: {legend}"


def test_every_metric_is_shown() -> None:
    shown = " ".join(expression for expression, _ in expressions())
    bases = {re.sub(r"_(bucket|count|sum|created)$", "", name) for name in exported()}
    bases = {name.removesuffix("_total") for name in bases}
    assert not [name for name in bases if not re.search(rf"\b{name}", shown)]


def test_variables_and_places() -> None:
    text = json.dumps(DASHBOARD)
    declared = {one["name"] for one in DASHBOARD["templating"]["list"]}
    assert set(re.findall(r"\$(?!__)\{?(\w+)", text)) == declared
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) < 24
