"""The Grafana dashboard is one by Grafana's own schema, names metrics and labels that an evaluator exports, and leaves none out.

What its queries find is asked of a real Prometheus in tests/evaluator/test_prometheus_queries.py.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kernelevo_api.types import (
    Capabilities,
    Device,
    DeviceKind,
    Evaluation,
    Guarantee,
    Language,
    QueueState,
    SandboxInfo,
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
    metrics.called("Evaluate", "OK", 1.0)
    device = Device(id="gpu0", name="GPU", kind=DeviceKind.CUDA, healthy=True)
    sandbox = SandboxInfo(backend="none", guarantees=(Guarantee(name="network", holds=True),))
    found = Capabilities(devices=(device,), queue=QueueState(lanes=1), sandbox=sandbox)
    executor: Any = SimpleNamespace(lane_states={"gpu0": LaneState.IDLE}, warm_runners={"gpu0": 1})
    metrics.watch(executor, lambda: found, lambda: True)
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    return {one.name: set(one.labels) for family in families for one in family.samples}


def expressions() -> list[tuple[str, str]]:
    """What each curve is, and its legend."""
    return [(one["expr"], one["legendFormat"]) for panel in DASHBOARD["panels"] for one in panel["targets"]]


def test_grafana_s_own_types_hold_all_of_it() -> None:
    """The types are made from Grafana's schema. What they do not know, or know as something else, would be lost on the way."""
    plugins.register_default_plugins()
    read = Dashboard.from_json(DASHBOARD)
    assert [type(panel).__name__ for panel in read.panels] == ["Panel"] * len(DASHBOARD["panels"])
    targets = {type(target).__module__ for panel in read.panels for target in panel.targets}
    assert targets == {"grafana_foundation_sdk.models.prometheus"}
    _kept(DASHBOARD, json.loads(json.dumps(read, cls=JSONEncoder)), "")


def _kept(given: Any, written: Any, where: str) -> None:
    if isinstance(given, dict):
        assert set(given) <= set(written), where
        for name, value in given.items():
            _kept(value, written[name], f"{where}.{name}")
    elif isinstance(given, list):
        assert len(given) == len(written), where
        for number, (one, other) in enumerate(zip(given, written, strict=True)):
            _kept(one, other, f"{where}[{number}]")
    else:
        assert given == written, where


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
