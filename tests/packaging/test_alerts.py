"""Prometheus takes the rules, and each alert fires for what it is about, and not for a server that is well."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.packaging.test_dashboard import OF_PROMETHEUS, exported

RULES = Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "alerts.yaml"
PROMTOOL = shutil.which("promtool")
WELL = {
    'kernelevo_healthy{instance="a"}': "1x60",
    'kernelevo_guarantee_holds{instance="a",guarantee="network",essential="true"}': "1x60",
    'kernelevo_guarantee_holds{instance="a",guarantee="swap",essential="false"}': "0x60",
    'kernelevo_device_healthy{instance="a",device="gpu0"}': "1x60",
    'kernelevo_not_evaluated_total{instance="a",reason="evaluator_fault"}': "3x60",
    'kernelevo_not_evaluated_total{instance="a",reason="draining"}': "0+1x60",
    'kernelevo_call_seconds_count{instance="a",method="Evaluate",status="OK"}': "0+600x60",
    'kernelevo_call_seconds_count{instance="a",method="Evaluate",status="RESOURCE_EXHAUSTED"}': "7x60",
    'kernelevo_call_seconds_count{instance="a",method="Evaluate",status="UNAUTHENTICATED"}': "0+1x60",
    'kernelevo_queue_wait_seconds_bucket{instance="a",le="300"}': "0+60x60",
    'kernelevo_queue_wait_seconds_bucket{instance="a",le="1000"}': "0+60x60",
    'kernelevo_queue_wait_seconds_bucket{instance="a",le="+Inf"}': "0+60x60",
}
"""An hour, by minutes."""
ILL = {
    "EvaluatorTakesNoWork": {'kernelevo_healthy{instance="a"}': "0x60"},
    "EvaluatorIsolationLost": {
        'kernelevo_guarantee_holds{instance="a",guarantee="network",essential="true"}': "1x30 0x30"
    },
    "EvaluatorDeviceOutOfService": {'kernelevo_device_healthy{instance="a",device="gpu0"}': "0x60"},
    "EvaluatorFaults": {'kernelevo_not_evaluated_total{instance="a",reason="evaluator_fault"}': "0+1x60"},
    "EvaluatorRefusesWork": {
        'kernelevo_call_seconds_count{instance="a",method="Evaluate",status="RESOURCE_EXHAUSTED"}': "0+5x60"
    },
    "EvaluatorWaitsAreLong": {'kernelevo_queue_wait_seconds_bucket{instance="a",le="300"}': "0+50x60"},
    "EvaluatorTurnsCallersAway": {
        'kernelevo_call_seconds_count{instance="a",method="Evaluate",status="UNAUTHENTICATED"}': "0+120x60"
    },
}

needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed; on Debian it comes with prometheus"
)


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]


def run(*arguments: object) -> None:
    done = subprocess.run([str(PROMTOOL), *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_prometheus_takes_them() -> None:
    run("check", "rules", "--lint-fatal", RULES)


def test_they_ask_for_what_is_exported() -> None:
    known = exported()
    for rule in rules():
        names = re.findall(r"\bkernelevo_\w+", rule["expr"])
        assert names and set(names) <= set(known), rule["alert"]
        labels = OF_PROMETHEUS.union(*(known[name] for name in names))
        told = re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values()))
        assert {*re.findall(r"(\w+)!?=~?\"", rule["expr"]), *told} <= labels, rule["alert"]


@needs_promtool
def test_each_fires_for_its_own_and_none_for_a_server_that_is_well(tmp_path: Path) -> None:
    assert {rule["alert"] for rule in rules()} == ILL.keys()
    cases: list[tuple[str, dict[str, str]]] = [("", {}), *ILL.items()]
    tests = []
    for fires, changes in cases:
        # ALERTS is how Prometheus itself keeps what fires.
        checks = [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": "59m",
                "exp_samples": [{"labels": f'{{alertname="{fires}"}}', "value": 1}] if fires else [],
            }
        ]
        series = [{"series": name, "values": values} for name, values in (WELL | changes).items()]
        tests.append({"interval": "1m", "input_series": series, "promql_expr_test": checks})
    path = tmp_path / "tests.yaml"
    path.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    run("test", "rules", path)
