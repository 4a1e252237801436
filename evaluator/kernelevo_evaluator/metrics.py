"""What Prometheus scrapes: counts, times and states, under the API's own names. No source, no token, no id, no client's name.

Every label has few values: verdicts, stages, languages, methods, statuses, reasons, devices of this host.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from kernelevo_api.channel import target_of
from kernelevo_evaluator.executor import LaneState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from threading import Thread
    from wsgiref.simple_server import WSGIServer

    from prometheus_client.metrics_core import Metric

    from kernelevo_api.types import Capabilities, Evaluation
    from kernelevo_evaluator.executor import Executor

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
_CALL_SECONDS = (0.003, *_SECONDS)


class Metrics:
    """One server's numbers, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._evaluations = Counter(
            "kernelevo_evaluations",
            "Evaluations that were answered.",
            ["verdict", "language", "from_cache"],
            registry=self.registry,
        )
        self._stages = Histogram(
            "kernelevo_stage_seconds", "Time in one stage.", ["stage"], buckets=_SECONDS, registry=self.registry
        )
        self._waits = Histogram(
            "kernelevo_queue_wait_seconds", "Time from queued to begun.", buckets=_SECONDS, registry=self.registry
        )
        self._refused = Counter(
            "kernelevo_not_evaluated", "Accepted requests without a verdict.", ["reason"], registry=self.registry
        )
        self._calls = Histogram(
            "kernelevo_call_seconds",
            "Calls by how they ended, waits and work included.",
            ["method", "status"],
            buckets=_CALL_SECONDS,
            registry=self.registry,
        )
        self._faults = Counter(
            "kernelevo_executor_faults", "Faults of sandboxes, lanes and devices.", registry=self.registry
        )

    def evaluated(self, evaluation: Evaluation) -> None:
        """Count a verdict, and the stages of a run that ended with it."""
        language = evaluation.language.value if evaluation.language is not None else ""
        self._evaluations.labels(evaluation.verdict.value, language, str(evaluation.from_cache).lower()).inc()
        if evaluation.from_cache or evaluation.timeline is None:
            return
        for one in evaluation.timeline.stages:
            if one.stage is not None and one.start is not None and one.end is not None:
                self._stages.labels(one.stage.value).observe((one.end - one.start).total_seconds())

    def called(self, method: str, status: str, seconds: float) -> None:
        """A call has ended, with the status of this name."""
        self._calls.labels(method, status).observe(seconds)

    def not_evaluated(self, reason: str) -> None:
        """Count a request that ended without a verdict."""
        self._refused.labels(reason).inc()

    def fault(self) -> None:
        """Count a fault of the executor's own, retried or not."""
        self._faults.inc()

    def waited(self, seconds: float) -> None:
        """A piece of work left the queue and began."""
        self._waits.observe(seconds)

    def watch(self, executor: Executor, capabilities: Callable[[], Capabilities], healthy: Callable[[], bool]) -> None:
        """Read the state of queue, lanes and devices at each scrape."""
        self.registry.register(_State(executor, capabilities, healthy))


class _State(Collector):
    def __init__(
        self, executor: Executor, capabilities: Callable[[], Capabilities], healthy: Callable[[], bool]
    ) -> None:
        self._executor = executor
        self._capabilities = capabilities
        self._healthy = healthy

    def collect(self) -> Iterator[Metric]:
        found = self._capabilities()
        yield GaugeMetricFamily("kernelevo_healthy", "Whether work is taken: a lane can work.", float(self._healthy()))
        if found.queue is not None:
            for name, text, value in (
                ("queued", "Pieces of work that wait.", found.queue.queued),
                ("running", "Pieces of work that run.", found.queue.running),
                ("queue_capacity", "Most that may wait.", found.queue.capacity),
                ("lanes", "Devices that time at once.", found.queue.lanes),
            ):
                yield GaugeMetricFamily(f"kernelevo_{name}", text, value)
        devices = GaugeMetricFamily("kernelevo_device_healthy", "Whether a device works.", labels=["device", "name"])
        for device in found.devices:
            devices.add_metric([device.id, device.name], float(device.healthy))
        yield devices
        guarantees = GaugeMetricFamily(
            "kernelevo_guarantee_holds",
            "Whether isolation guarantees this, as last tried; an essential one that is lost takes every lane out of service.",
            labels=["guarantee", "essential"],
        )
        for one in found.sandbox.guarantees if found.sandbox is not None else ():
            guarantees.add_metric([one.name, str(one.essential).lower()], float(one.holds))
        yield guarantees
        yield from self._lanes()

    def _lanes(self) -> Iterator[Metric]:
        states = GaugeMetricFamily(
            "kernelevo_lane_state", "1 for the state that a device's lane is in.", labels=["device", "state"]
        )
        for device, found in self._executor.lane_states.items():
            for state in LaneState:
                states.add_metric([device, state.value], float(state is found))
        yield states
        warm = GaugeMetricFamily(
            "kernelevo_warm_runners", "Runners that are ready for the next candidate.", labels=["device"]
        )
        for device, count in self._executor.warm_runners.items():
            warm.add_metric([device], count)
        yield warm


class MetricsPage:
    """The page that is scraped, on an address of its own."""

    def __init__(self, server: WSGIServer, thread: Thread) -> None:
        self._server = server
        self._thread = thread
        host, port = server.server_address[:2]
        self.address = f"{host!s}:{port}"

    @classmethod
    def serve(cls, metrics: Metrics, address: str) -> MetricsPage:
        """Raises OSError where the address cannot be listened on."""
        host, _, port = target_of(address).rpartition(":")
        return cls(*start_http_server(int(port), host.strip("[]"), registry=metrics.registry))

    async def close(self) -> None:
        """Answer no more."""
        await asyncio.to_thread(self._server.shutdown)
        self._server.server_close()
        await asyncio.to_thread(self._thread.join)
