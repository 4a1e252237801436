"""Whether a cluster would take a manifest: Kubernetes' own schemas, strictly, and those of the three kinds that operators add."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate

VERSION = "1.33"
"""The oldest Kubernetes that the manifests are for."""
_SCHEMAS = Path(__file__).parent / "schemas"


def check(manifest: dict[str, Any]) -> None:
    """Raises a `jsonschema.ValidationError` that says what a cluster would not take."""
    path = _SCHEMAS / f"{manifest['kind'].lower()}.json"
    if not path.exists():
        kubernetes_validate.validate(manifest, VERSION, strict=True)
        return
    schema = json.loads(path.read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(manifest, schema)
    for kind, part in _parts(manifest["kind"], manifest["spec"]):
        kubernetes_validate.validate(part | kind, VERSION, strict=True)


def _parts(kind: str, spec: dict[str, Any]) -> list[tuple[dict[str, str], dict[str, Any]]]:
    """Parts of a foreign kind that are Kubernetes' own, each within a kind that holds it."""
    if kind == "RayCluster":
        groups = [spec["headGroupSpec"], *spec.get("workerGroupSpecs", [])]
        return [({"apiVersion": "v1", "kind": "PodTemplate"}, {"template": one["template"]}) for one in groups]
    if kind == "PodMonitor":
        return [
            (
                {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"},
                {"spec": {"podSelector": spec["selector"]}},
            )
        ]
    scaler = {
        "scaleTargetRef": spec["scaleTargetRef"],
        "minReplicas": spec["minReplicaCount"],
        "maxReplicas": spec["maxReplicaCount"],
        "behavior": spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"],
    }
    return [({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler"}, {"spec": scaler})]
