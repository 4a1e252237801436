"""Each query of the Grafana dashboard, asked of a real Prometheus that scrapes a real server."""

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

from kernelevo_api import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

PROMETHEUS = shutil.which("prometheus")
DASHBOARD = json.loads((Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "evaluators.json").read_text())
PATIENCE_S = 60.0

pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed"),
]


class Prometheus:
    """A Prometheus of our own, on a page of ours."""

    def __init__(self, folder: Path, target: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        scrape = {"job_name": "kernelevo", "static_configs": [{"targets": [target]}]}
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
def prometheus(folder: Path, target: str) -> Iterator[Prometheus]:
    one = Prometheus(folder, target)
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
