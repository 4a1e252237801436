"""A Ray cluster as the executor sees it: how to join it, what GPUs it has, and what became of one of its hosts.

Everything here blocks: call it in a thread.
"""

from __future__ import annotations

import os
import socket
from enum import Enum
from typing import TYPE_CHECKING, Any

import ray

from kernelevo_evaluator.executor import ExecutorFault

if TYPE_CHECKING:
    from kernelevo_evaluator.settings import EvaluatorSettings

CONNECT_S = 10.0
"""How long the cluster's head may take to answer."""
_OBJECT_STORE_BYTES = 128 << 20
_CLIENT = "ray://"
_TYPE = "accelerator_type:"
_MEANT = frozenset({"EXPECTED_TERMINATION", "AUTOSCALER_DRAIN_PREEMPTED", "AUTOSCALER_DRAIN_IDLE"})
"""Why a host goes that was taken away: shut down, preempted, scaled down."""


class Fate(Enum):
    """What the cluster says of a host."""

    THERE = "there"
    TAKEN_AWAY = "taken away"
    """Somebody meant it to go."""
    LOST = "lost"


def join(settings: EvaluatorSettings) -> None:
    """Join the cluster, or make one of this host alone where there is none and devices are no GPUs.

    Raises:
        ExecutorFault: there is no cluster, or not at an address of this kind.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = settings.ray_address or os.environ.get("RAY_ADDRESS", "")
    if address.startswith(_CLIENT):
        raise ExecutorFault(
            f"{address} is the address of a Ray client, through which a service can hold no devices: have this host join the "
            "cluster (ray start --address HEAD:6379 --num-gpus 0) and give HEAD:6379"
        )
    options: dict[str, Any] = {"address": settings.ray_address or None}
    if not address and settings.device in ("cpu", "simulated"):
        # A cluster of this host alone, with GPUs in name only.
        options = {
            "address": "local",
            "num_gpus": settings.ray_lanes or settings.simulated_lanes,
            "object_store_memory": _OBJECT_STORE_BYTES,
        }
    _reach(address)
    try:
        ray.init(
            namespace="kernelevo",
            log_to_driver=False,
            include_dashboard=False if options["address"] == "local" else None,
            logging_level="warning",
            **options,
        )
    except (
        Exception
    ) as error:  # Ray raises whatever it likes, a bare Exception where a node of its own comes up too slowly
        raise ExecutorFault(f"no Ray cluster answers: {error}") from error


def _reach(address: str) -> None:
    """Ray itself tries for minutes before it says that nobody is there.

    Raises:
        ExecutorFault: nothing listens at the address.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        raise ExecutorFault(f"no Ray cluster answers at {address}: {error}") from error


def count_gpus(kind: str | None) -> int:
    """GPUs of a type, by Ray's name, on hosts that are there; of every type where none is named."""
    return sum(
        int(node["Resources"].get("GPU", 0))
        for node in ray.nodes()
        if node["Alive"] and (kind is None or f"{_TYPE}{kind}" in node["Resources"])
    )


def kinds_of_gpus() -> tuple[str, ...]:
    """Types of GPUs that the cluster has, by Ray's names."""
    names = {
        name.removeprefix(_TYPE)
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("GPU")
        for name in node["Resources"]
        if name.startswith(_TYPE)
    }
    return tuple(sorted(names))


def fate_of(host: str) -> Fate:
    """What the cluster knows of a host by now; of one that has just gone it may take a moment to know."""
    for node in ray.nodes():
        if node["NodeID"] == host:
            if node["Alive"]:
                return Fate.THERE
            # By name or by number, as Ray's version has it.
            return Fate.TAKEN_AWAY if _reason(node) in _MEANT else Fate.LOST
    return Fate.LOST


def _reason(node: dict[str, Any]) -> str:
    reason = node.get("DeathReason")
    if isinstance(reason, int):
        from ray.core.generated.common_pb2 import NodeDeathInfo

        return str(NodeDeathInfo.Reason.Name(reason))
    return str(reason)
