"""The KubeRay manifest: what a cluster would take, Ray's own reading of it, and what must hold between its parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from tests.packaging.manifests import check

from kernelevo_evaluator.health_port import LIVENESS
from kernelevo_evaluator.lanes.lane import longest_seconds
from kernelevo_evaluator.settings import EvaluatorSettings, load_settings

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS: list[dict[str, Any]] = list(yaml.safe_load_all((ROOT / "deploy/kuberay/evaluator.yaml").read_text()))


def one(kind: str, name: str = "") -> dict[str, Any]:
    (found,) = (m for m in MANIFESTS if m["kind"] == kind and name in ("", m["metadata"]["name"]))
    return found


def settings(tmp_path: Path) -> EvaluatorSettings:
    path = tmp_path / "evaluator.toml"
    path.write_text(one("ConfigMap")["data"]["evaluator.toml"])
    return load_settings({}, path).settings


def groups() -> tuple[dict[str, Any], dict[str, Any]]:
    """The head's and the GPUs' group."""
    spec = one("RayCluster")["spec"]
    (gpus,) = spec["workerGroupSpecs"]
    return spec["headGroupSpec"], gpus


def containers() -> list[dict[str, Any]]:
    """Those of the head, of a GPU and of the service."""
    pods = [*(group["template"]["spec"] for group in groups()), one("StatefulSet")["spec"]["template"]["spec"]]
    return [pod["containers"][0] for pod in pods]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_a_cluster_would_take_it(manifest: dict[str, Any]) -> None:
    check(manifest)
    with pytest.raises(jsonschema.ValidationError):
        check(manifest | {"specs": {}})


def test_ray_sees_one_gpu_in_each_pod_of_the_group_and_none_elsewhere() -> None:
    reading = pytest.importorskip("ray.autoscaler._private.kuberay.autoscaling_config", reason="needs the ray extra")
    cluster = one("RayCluster")
    found = reading._derive_autoscaling_config_from_ray_cr(
        cluster | {"metadata": cluster["metadata"] | {"namespace": "gpu"}}
    )
    types = found["available_node_types"]
    assert found["head_node_type"] == "headgroup" and set(types) == {"headgroup", "gpus"}
    assert types["headgroup"]["resources"]["CPU"] == 0 and not types["headgroup"]["resources"].get("GPU")
    assert types["gpus"]["resources"]["GPU"] == 1
    _, gpus = groups()
    assert gpus["minReplicas"] <= gpus["replicas"] <= gpus["maxReplicas"] == types["gpus"]["max_workers"]
    for kind in ("requests", "limits"):
        assert gpus["template"]["spec"]["containers"][0]["resources"][kind]["nvidia.com/gpu"] == 1


def test_the_service_finds_the_cluster_and_takes_all_of_its_gpus(tmp_path: Path) -> None:
    found = settings(tmp_path)
    name = one("RayCluster")["metadata"]["name"]
    head, gpus = groups()
    # As KubeRay names the service of a head.
    assert found.executor == "ray" and found.ray_address == f"{name}-head-svc:6379"
    assert found.ray_lanes == gpus["maxReplicas"]
    assert head["rayStartParams"]["num-gpus"] == "0"
    start, serve = containers()[2]["args"][0].splitlines()
    assert f"--address={found.ray_address} " in start and "--num-gpus=0" in start
    assert serve.startswith("exec "), "SIGTERM has to reach the evaluator itself"
    # One secret for all: that of KubeRay.
    assert one("RayCluster")["spec"]["authOptions"] == {"mode": "token"}
    secret = {"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": {"name": name, "key": "auth_token"}}}
    assert secret in containers()[2]["env"] and {"name": "RAY_AUTH_MODE", "value": "token"} in containers()[2]["env"]


def test_all_nodes_have_one_image_with_the_ray_that_is_tested() -> None:
    assert len({container["image"] for container in containers()}) == 1
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert one("RayCluster")["spec"]["rayVersion"] == pins["ray"]


def test_draining_has_the_time_that_the_longest_evaluation_takes(tmp_path: Path) -> None:
    found = settings(tmp_path)
    limits = found.executor_settings().default_limits
    assert found.build_time_s + longest_seconds(limits) + found.profile_time_s < found.drain_s
    pod = one("StatefulSet")["spec"]["template"]["spec"]
    assert found.drain_s < pod["terminationGracePeriodSeconds"]
    probe = pod["containers"][0]["startupProbe"]
    assert found.ray_start_s < probe["periodSeconds"] * probe["failureThreshold"]


def test_probes_ask_ports_that_are_open(tmp_path: Path) -> None:
    found = settings(tmp_path)
    head, worker, service = containers()
    port = int(found.health.rpartition(":")[2])
    assert service["livenessProbe"]["grpc"] == {"port": port, "service": LIVENESS}
    assert service["readinessProbe"]["grpc"] == {"port": port, "service": ""}
    named = {one["name"]: one["containerPort"] for one in service["ports"]}
    assert f":{named['grpc']}" in found.address and found.metrics.endswith(f":{named['metrics']}")
    # Not KubeRay's own, which need Ray's dashboard: that of the head, and of a node where its start has it listen.
    assert head["livenessProbe"]["tcpSocket"] == {"port": int(found.ray_address.rpartition(":")[2])}
    asked = int(groups()[1]["rayStartParams"]["node-manager-port"])
    assert worker["livenessProbe"]["tcpSocket"] == worker["readinessProbe"]["tcpSocket"] == {"port": asked}


def test_what_runs_candidates_holds_no_secret_and_reaches_only_the_cluster(tmp_path: Path) -> None:
    _, gpus = groups()
    spec = gpus["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False and spec["hostUsers"] is False
    assert not any("secret" in volume for volume in spec["volumes"])
    (container,) = spec["containers"]
    security = container["securityContext"]
    assert security["allowPrivilegeEscalation"] is False and security["capabilities"] == {"drop": ["ALL"]}
    assert spec["securityContext"]["runAsNonRoot"] is True and security["readOnlyRootFilesystem"] is True
    # Builds are kept under the same path as the service's results.
    mounts = {Path(mount["mountPath"]) for mount in container["volumeMounts"]}
    assert {settings(tmp_path).state_dir, Path("/tmp")} <= mounts

    policy = one("NetworkPolicy", "kernelevo-ray")["spec"]
    cluster = policy["podSelector"]
    assert cluster == {"matchLabels": {"ray.io/cluster": one("RayCluster")["metadata"]["name"]}}
    assert policy["ingress"] == [{"from": [{"podSelector": cluster}]}]
    outside = [rule for rule in policy["egress"] if rule["to"] != [{"podSelector": cluster}]]
    assert {port["port"] for rule in outside for port in rule["ports"]} == {53}
    service = one("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert cluster["matchLabels"].items() <= service.items()
    open_to_clients = one("NetworkPolicy", "kernelevo-evaluator")["spec"]
    assert open_to_clients["podSelector"]["matchLabels"].items() <= service.items()
    assert one("Service")["spec"]["selector"].items() <= service.items()
    assert {port["port"] for rule in open_to_clients["ingress"] for port in rule["ports"]} == {"grpc", "metrics"}
