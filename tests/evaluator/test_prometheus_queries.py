"""Queries of the Grafana dashboard, and the one by which pods are asked for, put to a Prometheus that scrapes a real server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.packaging.test_helm import render

from kernelevo_api import errors
from kernelevo_api.types import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PROMETHEUS = shutil.which("prometheus")
DASHBOARD = json.loads((Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "evaluators.json").read_text())
PATIENCE_S = 60.0

pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed"),
]


class Prometheus:
    """A Prometheus of our own, on a page of ours."""

    def __init__(self, folder: Path, target: str, labels: Sequence[dict[str, str]]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        scrape = {"job_name": "kernelevo", "static_configs": [{"targets": [target], "labels": one} for one in labels]}
        # JSON is YAML.
        configuration = {"global": {"scrape_interval": "200ms"}, "scrape_configs": [scrape]}
        (folder / "prometheus.yml").write_text(json.dumps(configuration))
        self._process = subprocess.Popen(
            [
                str(PROMETHEUS),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address={self._address}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def ask(self, path: str, **query: str) -> Any:
        """What its API answers; `None` while it is not there yet."""
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return None
            raise AssertionError(f"{query}: {error.read().decode()}") from error
        except OSError:
            return None

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def prometheus(folder: Path, target: str, labels: Sequence[dict[str, str]] = ({},)) -> Iterator[Prometheus]:
    """One that scrapes the page once for each set of labels, which it adds."""
    one = Prometheus(folder, target, labels)
    try:
        yield one
    finally:
        one.stop()


def curves(instances: list[str]) -> list[tuple[str, set[str]]]:
    """Each query as Grafana sends it, and the labels that its legend names."""
    chosen = "|".join(re.escape(one) for one in instances).replace("\\", "\\\\")
    found = []
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "30s").replace("$instance", chosen)
            assert "$" not in expression
            found.append((expression, set(re.findall(r"{{(\w+)}}", target["legendFormat"]))))
    return found


def shown(one: Prometheus, expression: str, legend: set[str]) -> bool:
    """Whether there is a curve with a number, of which the legend says all that it names."""
    data = one.ask("query", query=expression)
    rows = data["result"] if data is not None else []
    return any(legend <= set(row["metric"]) and row["value"][1] != "NaN" for row in rows)


async def test_every_query_finds_what_happened(host: Any, make_request: Any, tmp_path: Path) -> None:
    client = await host.start(metrics="127.0.0.1:0")
    target = host.server.metrics_address

    async def everything(turn: int) -> None:
        await client.evaluate(make_request("passed", extra=f"{turn}"))
        await client.evaluate(make_request("passed", extra=f"{turn}"))
        with pytest.raises(errors.EvaluatorFault):
            await client.evaluate(make_request("passed fault", extra=f"{turn}"))

    await everything(0)
    with prometheus(tmp_path, target) as one:
        end = time.monotonic() + PATIENCE_S
        while not await asyncio.to_thread(one.ask, "query", query="kernelevo_evaluations_total"):
            assert time.monotonic() < end, "nothing was scraped"
            await asyncio.sleep(0.2)
        variable = DASHBOARD["templating"]["list"][1]["query"]["query"]
        metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable).groups()
        missing, turn = curves([]), 0
        while missing:
            turn += 1
            await everything(turn)
            instances = await asyncio.to_thread(one.ask, f"label/{label}/values", **{"match[]": metric})
            missing = [
                curve for curve in curves(instances or ["none"]) if not await asyncio.to_thread(shown, one, *curve)
            ]
            assert time.monotonic() < end or not missing, missing
        assert instances == [target]
        assert not await asyncio.to_thread(shown, one, curves(["127.0.0.1:1"])[0][0], set())


async def test_pods_are_asked_for_by_what_waits_and_runs_on_those_of_the_release(
    host: Any, make_request: Any, tmp_path: Path
) -> None:
    found = await asyncio.to_thread(render, autoscaling={"enabled": True})
    (trigger,) = found["ScaledObject"]["spec"]["triggers"]
    query, name = trigger["metadata"]["query"], found["StatefulSet"]["metadata"]["name"]
    # As the operator labels what it scrapes of each pod: two of the release, one of another release, one of another namespace.
    pods = [("prod", f"{name}-0"), ("prod", f"{name}-1"), ("prod", f"{name}-other-0"), ("test", f"{name}-0")]
    labels = [{"namespace": namespace, "pod": pod} for namespace, pod in pods]
    await host.start(metrics="127.0.0.1:0")
    running = host.ask(make_request("passed hold"))
    await running.at(Stage.TIME)
    waiting = [host.ask(make_request("passed hold", extra=f"# {number}")) for number in range(2)]
    for asked in waiting:
        await asked.queued()

    async def until(expected: float) -> None:
        end = time.monotonic() + PATIENCE_S
        while (value := await asyncio.to_thread(_number, one, query)) != expected:
            assert time.monotonic() < end, value
            await asyncio.sleep(0.2)

    with prometheus(tmp_path, host.server.metrics_address, labels) as one:
        await until(2 * (1 + 2))
        host.executor.release()
        for asked in (running, *waiting):
            await asked
        # Nothing to do is a figure too.
        await until(0)


def _number(one: Prometheus, query: str) -> float | None:
    """The one figure that a query comes to."""
    data = one.ask("query", query=query)
    return float(data["result"][0]["value"][1]) if data is not None and data["result"] else None
