"""What Prometheus sees of an evaluator."""

from __future__ import annotations

import asyncio
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kernelevo_api import errors
from kernelevo_evaluator.queue import Quota
from kernelevo_evaluator.sockets import ListenError
from kernelevo_evaluator.tokens import add_token

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(120)


async def scrape(host: Any) -> dict[tuple[str, ...], float]:
    """Value of each sample, by its name and its labels' values in the order of the labels' names."""

    def read() -> str:
        with urllib.request.urlopen(f"http://{host.server.metrics_address}/metrics", timeout=30) as answer:
            return str(answer.read().decode())

    families = text_string_to_metric_families(await asyncio.to_thread(read))
    return {
        (one.name, *(value for _, value in sorted(one.labels.items()))): one.value
        for family in families
        for one in family.samples
    }


async def test_counts_what_happens(host: Any, make_request: Any) -> None:
    client = await host.start(metrics="127.0.0.1:0")
    await client.evaluate(make_request("passed"))
    await client.evaluate(make_request("passed"))
    await client.evaluate(make_request("crashed"))
    await client.evaluate(make_request("passed fault-once"))
    with pytest.raises(errors.EvaluatorFault):
        await client.evaluate(make_request("passed fault"))
    running = host.ask(make_request("passed hold"))
    await host.executor.until("started", 7)
    waiting = host.ask(make_request("passed waits", client_id="a-name"))
    await waiting.queued()
    seen = await scrape(host)
    assert seen["kernelevo_evaluations_total", "false", "torch", "passed"] == 2
    assert seen["kernelevo_evaluations_total", "true", "torch", "passed"] == 1
    assert seen["kernelevo_evaluations_total", "false", "torch", "crashed"] == 1
    assert seen["kernelevo_not_evaluated_total", "evaluator_fault"] == 1
    assert seen["kernelevo_executor_faults_total",] == 3
    assert (seen["kernelevo_running",], seen["kernelevo_queued",], seen["kernelevo_lanes",]) == (1, 1, 1)
    assert seen["kernelevo_queue_wait_seconds_count",] == 6  # an audit and five runs, each of which began once
    assert seen["kernelevo_healthy",] == seen["kernelevo_device_healthy", "cpu", "scripted"] == 1
    assert seen["kernelevo_lane_state", "cpu", "running"] == 1
    assert seen["kernelevo_lane_state", "cpu", "idle"] == seen["kernelevo_lane_state", "cpu", "out_of_service"] == 0
    assert seen["kernelevo_warm_runners", "cpu"] == 2
    assert seen["kernelevo_guarantee_holds", "false", "none"] == 0
    assert seen["kernelevo_call_seconds_count", "Evaluate", "OK"] == 4
    assert seen["kernelevo_call_seconds_count", "Evaluate", "UNAVAILABLE"] >= 1
    assert "a-name" not in str(seen)
    host.executor.well = False
    seen = await scrape(host)
    assert seen["kernelevo_healthy",] == seen["kernelevo_device_healthy", "cpu", "scripted"] == 0
    host.executor.release()
    await asyncio.gather(running.task, waiting.task)


async def test_counts_calls_however_they_end(host: Any, make_request: Any, folder: Path) -> None:
    token = add_token(folder / "tokens", "one", Quota(queued=1))
    await host.start(metrics="127.0.0.1:0", token_file=folder / "tokens")
    with pytest.raises(errors.Unauthenticated):
        await host.client(token="another").get_capabilities()
    client = host.client(token=token)
    running = host.ask(make_request("passed hold"), client)
    await host.executor.until("started", 1)
    waiting = host.ask(make_request("passed hold too"), client)
    await waiting.queued()
    with pytest.raises(errors.QueueFull):
        await client.evaluate(make_request("passed third"))
    with pytest.raises(errors.UnknownEvaluation):
        await client.get_evaluation(evaluation_id="nobody's")
    await waiting.gone()
    async with asyncio.timeout(60):
        while ("kernelevo_call_seconds_count", "Evaluate", "CANCELLED") not in (seen := await scrape(host)):
            await asyncio.sleep(0.05)
    counted = {key[1:]: value for key, value in seen.items() if key[0] == "kernelevo_call_seconds_count"}
    assert counted == {
        ("GetCapabilities", "UNAUTHENTICATED"): 1,
        ("Evaluate", "RESOURCE_EXHAUSTED"): 1,
        ("GetEvaluation", "NOT_FOUND"): 1,
        ("Evaluate", "CANCELLED"): 1,
    }
    host.executor.release()
    await running.task


async def test_there_is_no_page_unless_asked_for_and_one_that_cannot_be_says_so(host: Any) -> None:
    await host.start()
    assert host.server.metrics_address == ""
    await host.stop()
    with pytest.raises(ListenError, match="for metrics"):
        await host.start(metrics="192.0.2.1:1")
