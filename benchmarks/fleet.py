"""How a fleet scales: simulated lanes through the real service and the real client.

Evaluators are processes of their own with simulated devices; up to sixteen lanes on each host, so that larger fleets are more
hosts. Searchers are pools with as many requests in flight as the pool asks for. Measured for each size: throughput against one
lane's, the time a request takes, and the processor's share; then what one service comes to when nothing has to be waited for, how
fairly twenty searchers share sixteen lanes, and what a lost host costs.

Everything is on this machine, so that it ends where this machine does; what an evaluation costs a service and a searcher says
where they end by themselves.

    python benchmarks/fleet.py [--lanes 1 4 16 64 256] [--each 1.0] [--seconds 20] [--only lanes ceiling fairness loss]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import results

from kernelevo_api.client import EvaluatorClient
from kernelevo_api.pool import Change, EvaluatorPool, Notice, PoolSettings
from kernelevo_api.types import Candidate, EvaluateRequest, Problem, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LANES_PER_HOST = 16
SEARCHERS = 20
PARTS = ("lanes", "ceiling", "fairness", "loss")
PROBLEM = """\
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x + 1


def get_inputs():
    return [torch.rand(8)]


def get_init_inputs():
    return []
"""


@dataclass
class Host:
    """One evaluator with simulated lanes."""

    folder: Path
    lanes: int
    each_s: float
    """How long an evaluation takes."""
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"unix:{self.folder}.sock"

    def start(self) -> None:
        settings = {"device": "simulated", "simulated_lanes": self.lanes, "simulated_s": self.each_s}
        settings |= {"log_level": "error", "queue_capacity": 4096, "queue_capacity_per_client": 1024}
        command = [sys.executable, "-m", "kernelevo_evaluator", "serve", "--exit-with-parent"]
        command += ["--listen", self.address, "--state-dir", str(self.folder)]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(number)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def fleet(lanes: int, each_s: float, on_one: bool = False) -> Iterator[list[Host]]:
    """So many lanes, on as few hosts as that takes."""
    with tempfile.TemporaryDirectory(prefix="ke-fleet-") as folder:
        most = lanes if on_one else LANES_PER_HOST
        shares = [min(most, lanes - first) for first in range(0, lanes, most)]
        hosts = [Host(Path(folder) / str(number), share, each_s) for number, share in enumerate(shares)]
        for host in hosts:
            host.start()
        try:
            for host in hosts:
                with EvaluatorClient(host.address) as client:
                    client.wait_ready(120)
            yield hosts
        finally:
            for host in hosts:
                host.end()


@dataclass
class Seen:
    """What one searcher saw."""

    ended: list[tuple[float, float]] = field(default_factory=list)
    """When each evaluation ended, and how long it took from its request; in seconds of the event loop's clock."""
    notices: list[tuple[float, str]] = field(default_factory=list)


async def search(name: str, hosts: Sequence[Host], until: asyncio.Event, depth: int | None = None) -> Seen:
    """Keep a pool busy until told to stop, as a search does: new candidates as soon as there is room."""
    seen, clock = Seen(), asyncio.get_running_loop().time

    def noted(notice: Notice) -> None:
        if notice.change is not Change.LIST_UNREADABLE:
            seen.notices.append((clock(), str(notice)))

    pool = EvaluatorPool.of(
        [host.address for host in hosts], client_id=name, settings=PoolSettings(probe_s=0.5), on_notice=noted
    )
    async with pool:
        await pool.connect()
        report = await pool.register(Problem(source=PROBLEM))
        number, working = 0, set[asyncio.Task[None]]()

        async def one(candidate: str) -> None:
            began = clock()
            request = EvaluateRequest(problem_digest=report.problem_digest, candidate=Candidate(source=candidate))
            evaluation = await pool.evaluate(request)
            assert evaluation.verdict is Verdict.PASSED
            seen.ended.append((clock(), clock() - began))

        while not until.is_set():
            while len(working) < (depth or pool.slots):
                number += 1
                task = asyncio.create_task(one(f"# {name} {number}\nclass ModelNew:\n    pass\n"))
                working.add(task)
                task.add_done_callback(working.discard)
            stop = asyncio.create_task(until.wait())
            await asyncio.wait([*working, stop], return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
        for task in tuple(working):
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
    return seen


async def measure(
    hosts: Sequence[Host], seconds: float, searchers: int = 1, depth: int | None = None, lose: Host | None = None
) -> dict[str, Any]:
    """Run searchers for so long after a settling time; throughput is of the time between."""
    stop, clock = asyncio.Event(), asyncio.get_running_loop().time
    tasks = [asyncio.create_task(search(f"searcher-{n}", hosts, stop, depth)) for n in range(searchers)]
    # Until every lane has been through a few evaluations.
    await asyncio.sleep(2.0 + 3 * hosts[0].each_s)
    began, before = clock(), _cpu_s(hosts)
    lost_at = None
    if lose is not None:
        await asyncio.sleep(seconds / 3)
        lost_at = clock()
        lose.end(signal.SIGKILL)
        await asyncio.sleep(2 * seconds / 3)
    else:
        await asyncio.sleep(seconds)
    ended = clock()
    after = _cpu_s(hosts)
    stop.set()
    seen = await asyncio.gather(*tasks)
    # Whole evaluations: lanes that began together end together, and half a wave more or less would be chance.
    span = ended - began
    whole = span // hosts[0].each_s * hosts[0].each_s if hosts[0].each_s else span
    inside = [[(at, took) for at, took in one.ended if began <= at < began + whole] for one in seen]
    flat = sorted(took for one in inside for _, took in one)
    return {
        "lanes": sum(host.lanes for host in hosts),
        "each_s": hosts[0].each_s,
        "hosts": len(hosts),
        "searchers": searchers,
        "seconds": whole,
        "evaluations": len(flat),
        "per_s": len(flat) / whole,
        "each": [len(one) for one in inside],
        "took_median_s": flat[len(flat) // 2] if flat else None,
        "took_p99_s": flat[int(len(flat) * 0.99)] if flat else None,
        "client_cores": (after[0] - before[0]) / span,
        "server_cores": (after[1] - before[1]) / span,
        "ended_at_s": [round(at - began, 3) for one in inside for at, _ in one],
        "lost_at_s": lost_at - began if lost_at is not None else None,
        "notices": [(round(at - began, 3), text) for one in seen for at, text in one.notices],
    }


def _cpu_s(hosts: Sequence[Host]) -> tuple[float, float]:
    """Processor time of this process, and of the evaluators."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    servers, tick = 0.0, os.sysconf("SC_CLK_TCK")
    for host in hosts:
        if host.process is not None:
            fields = Path(f"/proc/{host.process.pid}/stat").read_text().rpartition(")")[2].split()
            servers += (int(fields[11]) + int(fields[12])) / tick
    return own.ru_utime + own.ru_stime, servers


def gap_after_loss(run: dict[str, Any], lost_lanes: int) -> tuple[float, float]:
    """Evaluations that the loss cost beyond the lanes that are gone, and seconds until the loss was told."""
    lost = run["lost_at_s"]
    before = [at for at in run["ended_at_s"] if at < lost]
    after = [at for at in run["ended_at_s"] if at >= lost]
    rate = len(before) / lost
    left = rate * (run["lanes"] - lost_lanes) / run["lanes"]
    told = next((at for at, text in run["notices"] if at >= lost and "lost" in text), None)
    return left * (run["seconds"] - lost) - len(after), (told - lost) if told is not None else -1.0


def throughput(counts: Sequence[int], each_s: float, seconds: float, raw: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The figures of fleets of these sizes, by one searcher."""
    one_lane = 1.0 / each_s
    for lanes in counts:
        with fleet(lanes, each_s) as hosts:
            run = raw[f"{lanes} lanes, {each_s:g} s"] = asyncio.run(measure(hosts, seconds))
        if lanes == 1:
            one_lane = run["per_s"]
        share = run["per_s"] / (lanes * one_lane)
        print(
            f"{lanes:4} lanes, {run['hosts']:2} hosts: {run['per_s']:7.2f}/s, {share:.3f} of {lanes} times one lane, "
            f"median {run['took_median_s']:.2f} s, client {run['client_cores']:.2f} and servers {run['server_cores']:.2f} cores"
        )
        yield {
            "figure": f"throughput of {lanes} simulated lanes over {lanes} times one lane's, evaluations of {each_s:g} s",
            "value": round(share, 4),
            "unit": "1",
            **({"bound": ">= 0.9"} if lanes == 64 and each_s == 1 else {}),
        }
        yield {
            "figure": f"processor of evaluators and one searcher at {lanes} simulated lanes, evaluations of {each_s:g} s",
            "value": round(run["client_cores"] + run["server_cores"], 3),
            "unit": "cores",
        }


def ceiling(seconds: float, raw: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What one service and one searcher come to when no evaluation has to be waited for."""
    with fleet(4 * LANES_PER_HOST, 0.0, on_one=True) as hosts:
        run = raw["ceiling"] = asyncio.run(measure(hosts, seconds))
    print(
        f"one service, nothing to wait for: {run['per_s']:.1f}/s, "
        f"client {run['client_cores']:.2f} and server {run['server_cores']:.2f} cores"
    )
    yield {
        "figure": "evaluations per second through one service, which take no time themselves",
        "value": round(run["per_s"], 1),
        "unit": "1/s",
    }
    for who, cores in (("a service", run["server_cores"]), ("a searcher's pool", run["client_cores"])):
        yield {
            "figure": f"processor time that an evaluation costs {who}",
            "value": round(1e3 * cores / run["per_s"], 2),
            "unit": "ms",
        }


def fairness(seconds: float, raw: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """How evenly many searchers are served, and how long they wait."""
    with fleet(LANES_PER_HOST, 1.0) as hosts:
        run = raw["fairness"] = asyncio.run(measure(hosts, seconds, searchers=SEARCHERS, depth=4))
    fair = sum(run["each"]) ** 2 / (len(run["each"]) * sum(n * n for n in run["each"]))
    print(
        f"{SEARCHERS} searchers on {LANES_PER_HOST} lanes: {min(run['each'])} to {max(run['each'])} each, Jain's index {fair:.4f}"
    )
    yield {
        "figure": f"fairness of {SEARCHERS} searchers on {LANES_PER_HOST} lanes, Jain's index",
        "value": round(fair, 4),
        "unit": "1",
    }
    yield {
        "figure": f"wait of a request behind {SEARCHERS} searchers with 4 each on {LANES_PER_HOST} lanes, median",
        "value": round(run["took_median_s"] - 1.0, 3),
        "unit": "s",
    }


def loss(seconds: float, raw: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What a killed host costs beyond its own lanes."""
    with fleet(4 * LANES_PER_HOST, 1.0) as hosts:
        run = raw["a lost host"] = asyncio.run(measure(hosts, seconds, lose=hosts[1]))
    cost, told = gap_after_loss(run, LANES_PER_HOST)
    print(
        f"one of four hosts lost: told after {told:.3f} s, {cost:.1f} evaluations fewer than three hosts would have made"
    )
    yield {"figure": "a killed host is known to a searcher after", "value": round(told, 3), "unit": "s"}
    yield {
        "figure": f"evaluations of 1 s that the loss of a host of {LANES_PER_HOST} lanes costs beyond those lanes, of 4 hosts",
        "value": round(cost, 1),
        "unit": "evaluations",
    }


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, nargs="+", default=[1, 4, 16, 64, 256])
    parser.add_argument("--each", type=float, default=1.0, help="seconds of an evaluation, where sizes are compared")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    raw: dict[str, Any] = {}
    figures: list[dict[str, Any]] = []
    if "lanes" in options.only:
        figures += throughput(options.lanes, options.each, options.seconds, raw)
    for part, measured in (("ceiling", ceiling), ("fairness", fairness), ("loss", loss)):
        if part in options.only:
            figures += measured(options.seconds, raw)
    results.save(__file__, figures, raw)


if __name__ == "__main__":
    began = time.monotonic()
    main()
    print(f"{time.monotonic() - began:.0f} s")
