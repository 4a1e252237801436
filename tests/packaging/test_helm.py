"""The Helm chart, rendered by Helm itself where it is: the program, or its engine as the package `helm_python`."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from tests.packaging.manifests import check
from tests.packaging.test_dashboard import exported

from kernelevo_evaluator.health_port import LIVENESS
from kernelevo_evaluator.lanes.lane import longest_seconds
from kernelevo_evaluator.settings import EvaluatorSettings, load_settings

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "kernelevo-evaluator"
HELM = shutil.which("helm")
# In a process of its own: the engine is a library with a runtime and threads of its own.
ENGINE = """
import json, sys, helm_python
with helm_python.Chart.load(sys.argv[1]) as chart:
    print("\\n---\\n".join(chart.render(json.loads(sys.argv[2]), name="demo", namespace="prod").values()))
"""
LINT = """
import sys, helm_python
found = helm_python.lint(sys.argv[1], strict=True, kube_version="v1.34.0")
sys.exit("\\n".join([*found["errors"], *(one["error"] for one in found["messages"] if one["severity"] > 1)]) or None)
"""
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def _run(**values: Any) -> subprocess.CompletedProcess[str]:
    if HELM is not None:
        command = [HELM, "template", "demo", str(CHART), "--namespace", "prod", "--kube-version", "1.34.0"]
        command += ["--values", "-"]
    elif importlib.util.find_spec("helm_python") is not None:
        command = [sys.executable, "-c", ENGINE, str(CHART), json.dumps(values)]
    else:
        pytest.skip("neither helm nor the package helm-python-sdk is installed")
    return subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, timeout=120)


def render(**values: Any) -> dict[str, Any]:
    """What the chart makes of values, by kind."""
    done = _run(**values)
    assert done.returncode == 0, done.stderr
    found = [one for one in yaml.safe_load_all(_manifests(done.stdout)) if one]
    assert len({one["kind"] for one in found}) == len(found)
    return {one["kind"]: one for one in found}


def _manifests(text: str) -> str:
    # The engine renders the notes too; the program leaves them out.
    return "\n---\n".join(part for part in text.split("\n---\n") if "apiVersion:" in part)


def pod(found: dict[str, Any]) -> dict[str, Any]:
    return found["StatefulSet"]["spec"]["template"]["spec"]


def test_helm_finds_nothing_to_say() -> None:
    if HELM is not None:
        command = [HELM, "lint", "--strict", str(CHART)]
    elif importlib.util.find_spec("helm_python") is not None:
        command = [sys.executable, "-c", LINT, str(CHART)]
    else:
        pytest.skip("neither helm nor the package helm-python-sdk is installed")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("autoscaling", [False, True])
def test_a_cluster_would_take_all_of_it(autoscaling: bool) -> None:
    found = render(autoscaling={"enabled": autoscaling})
    assert ("ScaledObject" in found) is ("PodMonitor" in found) is autoscaling
    for manifest in found.values():
        check(manifest)
    found["StatefulSet"]["spec"]["template"]["spec"]["container"] = []
    with pytest.raises(jsonschema.ValidationError):
        check(found["StatefulSet"])


def test_the_values_are_those_of_the_schema() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(VALUES, SCHEMA)
    assert set(VALUES) <= set(SCHEMA["properties"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(VALUES | {"replica": 2}, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(VALUES | {"tls": {"secretName": ""}}, SCHEMA)
    assert set(VALUES["settings"]) <= set(EvaluatorSettings.model_fields)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["apiVersion"] == "v2" and chart["name"] == CHART.name


def test_draining_has_the_time_that_the_longest_evaluation_takes() -> None:
    settings = load_settings({}).settings
    limits = settings.executor_settings().default_limits
    longest = settings.build_time_s + longest_seconds(limits) + settings.profile_time_s
    assert longest < VALUES["drainSeconds"]
    assert SCHEMA["properties"]["graceMarginSeconds"]["minimum"] > 0
    found = render(drainSeconds=5000)
    assert pod(found)["terminationGracePeriodSeconds"] == 5000 + VALUES["graceMarginSeconds"]
    assert "drain_s = 5000" in found["ConfigMap"]["data"]["evaluator.toml"]


def test_a_pod_holds_one_gpu_and_no_token_of_the_cluster() -> None:
    spec = pod(render(replicas=3, gpuResource="nvidia.com/mig-3g.40gb"))
    (container,) = spec["containers"]
    for kind in ("requests", "limits"):
        assert container["resources"][kind]["nvidia.com/mig-3g.40gb"] == 1
    assert spec["automountServiceAccountToken"] is False and spec["hostUsers"] is False
    security = container["securityContext"]
    assert security["allowPrivilegeEscalation"] is False and security["capabilities"] == {"drop": ["ALL"]}
    assert spec["securityContext"]["runAsNonRoot"] is True and security["readOnlyRootFilesystem"] is True


def test_probes_are_of_grpc_and_on_the_plain_port(tmp_path: Path) -> None:
    found = render()
    (container,) = pod(found)["containers"]
    path = tmp_path / "evaluator.toml"
    path.write_text(found["ConfigMap"]["data"]["evaluator.toml"])
    settings = load_settings({}, path).settings
    port = int(settings.health.rpartition(":")[2])
    assert (
        container["livenessProbe"]["grpc"] == container["startupProbe"]["grpc"] == {"port": port, "service": LIVENESS}
    )
    assert container["readinessProbe"]["grpc"] == {"port": port, "service": ""}
    named = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert f":{named['grpc']}" in settings.address and settings.metrics.endswith(f":{named['metrics']}")
    mounts = {Path(one["mountPath"]) for one in container["volumeMounts"]}
    for file in (settings.tls_certificate, settings.tls_key, settings.token_file):
        assert file is not None and file.parent in mounts
    assert settings.state_dir in mounts
    assert path.read_text().startswith("[evaluator]") and tomllib.loads(path.read_text())


def test_nothing_goes_out_unless_it_is_asked_for() -> None:
    found = render()
    policy, labels = found["NetworkPolicy"]["spec"], found["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert policy["policyTypes"] == ["Ingress", "Egress"] and policy["egress"] == []
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == {"grpc", "metrics"}
    database = {"to": [{"ipBlock": {"cidr": "10.0.0.5/32"}}], "ports": [{"protocol": "TCP", "port": 5432}]}
    assert render(networkPolicy={"egress": [database]})["NetworkPolicy"]["spec"]["egress"] == [database]


def test_the_service_has_an_address_for_each_pod() -> None:
    found = render()
    spec = found["Service"]["spec"]
    assert spec["clusterIP"] == "None"
    assert found["StatefulSet"]["spec"]["serviceName"] == found["Service"]["metadata"]["name"]
    assert spec["selector"].items() <= found["StatefulSet"]["spec"]["template"]["metadata"]["labels"].items()


def test_settings_may_not_contradict_the_chart() -> None:
    assert "keep_bytes = " in render(settings={"keep_bytes": 10**9})["ConfigMap"]["data"]["evaluator.toml"]
    refused = _run(settings={"listen": "0.0.0.0:1"})
    assert refused.returncode != 0 and "settings.listen is the chart's own" in refused.stderr


def scaled(**values: Any) -> dict[str, Any]:
    return render(autoscaling={"enabled": True, **values})


def test_pods_are_as_many_as_the_queue_asks_for() -> None:
    found = scaled(maxReplicas=40)
    spec = found["ScaledObject"]["spec"]
    target = found["StatefulSet"]
    assert "replicas" not in target["spec"], "an upgrade of the chart would undo what was scaled"
    assert spec["scaleTargetRef"] == {
        "apiVersion": target["apiVersion"],
        "kind": target["kind"],
        "name": target["metadata"]["name"],
    }
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (1, 40)
    (trigger,) = spec["triggers"]
    query = trigger["metadata"]["query"]
    assert (
        set(re.findall(r"\bkernelevo_\w+(?={)", query)) == {"kernelevo_queued", "kernelevo_running"} <= set(exported())
    )
    # The namespace and the pods that a scrape of this release labels its series with.
    assert 'namespace="prod"' in query
    (pods,) = set(re.findall(r'pod=~"([^"]+)"', query))
    name = target["metadata"]["name"]
    assert re.fullmatch(pods, f"{name}-0") and re.fullmatch(pods, f"{name}-39")
    assert not re.fullmatch(pods, f"{name}-other-0")
    # A search that is held up keeps two requests on a GPU: fewer than that have to be enough to ask for another pod.
    assert trigger["metricType"] == "AverageValue" and 1 < float(trigger["metadata"]["threshold"]) < 2
    assert trigger["metadata"]["ignoreNullValues"] == "false", "a lost Prometheus is no reason to take pods away"


def test_the_queue_s_depth_reaches_the_prometheus_that_is_asked_for_it() -> None:
    labels = {"release": "kube-prometheus-stack"}
    found = scaled(prometheus={"podMonitor": {"labels": labels, "intervalSeconds": 30}})
    monitor = found["PodMonitor"]
    check(monitor)
    assert labels.items() <= monitor["metadata"]["labels"].items()
    template = found["StatefulSet"]["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (container,) = template["spec"]["containers"]
    assert endpoint["port"] in {port["name"] for port in container["ports"]} and endpoint["interval"] == "30s"
    with pytest.raises(jsonschema.ValidationError):
        check(monitor | {"spec": monitor["spec"] | {"podMetricsEndpoints": [{"port": 9464}]}})
    # Another way of scraping needs no operator.
    assert "PodMonitor" not in scaled(prometheus={"podMonitor": {"enabled": False}})


def test_scaling_down_drains_one_pod_at_a_time() -> None:
    found = scaled(scaleDown={"stabilizationSeconds": 600, "secondsPerPod": 120})
    behavior = found["ScaledObject"]["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    assert behavior == {
        "stabilizationWindowSeconds": 600,
        "policies": [{"type": "Pods", "value": 1, "periodSeconds": 120}],
    }
    # And the pod that goes has the time that it has without autoscaling.
    assert pod(found)["terminationGracePeriodSeconds"] == VALUES["drainSeconds"] + VALUES["graceMarginSeconds"]


def test_a_prometheus_that_asks_who_it_is_can_be_used() -> None:
    found = scaled(
        prometheus={
            "serverAddress": "https://metrics.example",
            "matchers": 'job="kernels"',
            "metadata": {"authModes": "bearer"},
            "authentication": "metrics-token",
        }
    )
    check(found["ScaledObject"])
    (trigger,) = found["ScaledObject"]["spec"]["triggers"]
    assert trigger["authenticationRef"] == {"name": "metrics-token"} and trigger["metadata"]["authModes"] == "bearer"
    assert trigger["metadata"]["query"].count('{job="kernels"}') == 2


def test_an_autoscaling_that_cannot_work_is_refused() -> None:
    refused = _run(autoscaling={"enabled": True, "minReplicas": 9, "maxReplicas": 8})
    assert refused.returncode != 0 and "autoscaling.minReplicas is more than" in refused.stderr
    # Without a pod there is no queue whose depth could be seen.
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(VALUES | {"autoscaling": {"enabled": True, "minReplicas": 0}}, SCHEMA)
