"""Suites without a model: TorchInductor's seeds and the tuner on problems of our own, and every winner measured once more.

`kernelevo bench` carries the suite out. What it reports as faster is then evaluated again, over eager and, in the time that is
left, over torch.compile: evaluations of their own, which chose nothing. The folder holds all that is known at any moment.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import machine
from results import RESULTS, ROOT, save
from server_process import START_S, server
from serving import kept

from kernelevo_api.client import EvaluatorClient
from kernelevo_api.types import BaselineKind, Candidate, Effort, EvaluateRequest, Problem
from kernelevo_searcher.suite.statistics import geometric_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

DISTURBED, TRIES = 0.25, 4
"""A second measurement whose interval reaches further than this share to either side says nothing: the host was busy with other
things. It is taken again, whatever it showed, so many times at most; the last one counts."""
DRAIN_S = 45.0
"""What is under way when the time for searches is over may take so long to end."""


def carry_out(suite: Path, folder: Path, address: str, seconds: float, options: Sequence[str]) -> dict[str, Any]:
    """Run the suite for so long at most, and return what `results.json` says, whether it came to its end or not."""
    kernelevo = [sys.executable, "-P", "-m", "kernelevo_searcher"]
    command = [*kernelevo, "bench", str(suite), "--evaluator", address, "--run", str(folder), *options]
    process = subprocess.Popen([*command, "--no-other-baseline"], env=os.environ | {"NO_COLOR": "1"})
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(DRAIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    subprocess.run([*kernelevo, "report", str(folder)], check=False, stdout=subprocess.DEVNULL)
    results: dict[str, Any] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return results


def measure(client: EvaluatorClient, folder: Path, baseline: BaselineKind, seconds: float) -> dict[str, Any]:
    """The best kernel of a run, evaluated anew."""
    source = (folder / "problem.py").read_text(encoding="utf-8")
    began = time.monotonic()
    try:
        report = client.register_problem(Problem(source=source), timeout=seconds)
        request = EvaluateRequest(
            request_id=str(uuid.uuid4()),
            problem_digest=report.problem_digest,
            candidate=Candidate(source=(folder / "best.py").read_text(encoding="utf-8")),
            effort=Effort.FULL,
            baseline=baseline,
            fresh=True,
        )
        found = kept(client.evaluate(request, timeout=seconds))
    except Exception as error:  # whatever happens to one of them, the others are measured
        found = {"verdict": type(error).__name__, "message": str(error)[:2000], "speedup": None}
    return found | {"seconds": time.monotonic() - began}


def again(
    client: EvaluatorClient, folder: Path, faster: Sequence[dict[str, Any]], end: float
) -> dict[str, dict[str, Any]]:
    """Every winner once more, by name: first all of them over eager, then over torch.compile until the time is over."""
    found: dict[str, dict[str, Any]] = {one["name"]: {} for one in faster}
    with (folder / "again.jsonl").open("a", encoding="utf-8") as file:
        for baseline in (BaselineKind.EAGER, BaselineKind.TORCH_COMPILE):
            for one in faster:
                left = end - time.monotonic()
                if left < 5:
                    continue
                tries: list[dict[str, Any]] = []
                while True:
                    tries.append(measure(client, folder / one["run"], baseline, min(left, 90.0)))
                    left = end - time.monotonic()
                    if left < 20 or len(tries) == TRIES or not disturbed(tries[-1]):
                        break
                measured = tries[-1] | {"earlier": tries[:-1]}
                found[one["name"]][baseline.value] = measured
                file.write(json.dumps({"name": one["name"], "baseline": baseline.value} | measured) + "\n")
                file.flush()
                ratio = measured["speedup"]
                print(f"{one['name']} over {baseline.value}: {measured['verdict']} {ratio}", flush=True)
    return found


def disturbed(measured: dict[str, Any]) -> bool:
    """Whether a measurement says nothing, by the width of its interval alone."""
    if measured["verdict"] == "timing_disputed":
        return True
    ratio = measured["speedup"]
    return bool(ratio) and (ratio[2] - ratio[1]) / 2 > DISTURBED * ratio[0]


def confirmed(measured: dict[str, Any] | None) -> bool:
    """Whether a second measurement passed, and proves a speedup by itself."""
    return bool(measured and measured["verdict"] == "passed" and measured["speedup"] and measured["speedup"][1] > 1)


def figures(device: str, results: dict[str, Any], measured: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """What the suite has come to; the bounds are those that were asked for."""
    rows = results["results"]
    faster = [one for one in rows if one["ending"] == "faster"]
    unconfirmed = [one["name"] for one in faster if not confirmed(measured[one["name"]].get("eager"))]
    # A problem without a kernel that is proved to be faster, and again, keeps its original.
    sure = [one["name"] for one in faster if one["name"] not in unconfirmed]
    kept_ = [
        one["speedup_over"]["eager"]["value"] if one["name"] in sure else 1.0 for one in rows if one["ending"] != "open"
    ]
    mean = geometric_mean(kept_)
    compiled = [ratio[0] for one in measured.values() if (ratio := one.get("torch_compile", {}).get("speedup"))]
    over_compiled = geometric_mean(compiled)
    gpu = device == "gpu"
    found: list[dict[str, Any]] = [
        {
            "figure": f"{device.upper()} problems faster than eager without a model",
            "value": len(sure),
            "unit": f"of {len(rows)}",
            "bound": ">= 10" if gpu else f">= {len(rows)}",
        },
        {
            "figure": f"{device.upper()} problems reported faster that a second measurement does not confirm",
            "value": len(unconfirmed),
            "unit": "problems",
            "bound": "<= 0",
        },
    ]
    if mean is not None:
        found.append(
            {
                "figure": f"geometric mean over eager without a model, {device.upper()} problems, 1 where none is confirmed",
                "value": mean.value,
                "unit": "x",
                "bound": ">= 1.3" if gpu else "> 1",
            }
        )
    if over_compiled is not None:
        found.append(
            {
                "figure": f"the same kernels over torch.compile, geometric mean of {len(compiled)}, {device.upper()}",
                "value": over_compiled.value,
                "unit": "x",
            }
        )
    return found


def ratio_text(ratio: Sequence[float] | None) -> str:
    """A speedup with its interval."""
    return f"{ratio[0]:.2f} [{ratio[1]:.2f}, {ratio[2]:.2f}]" if ratio else ""


def table(results: dict[str, Any], measured: dict[str, dict[str, Any]]) -> str:
    """For people: the machine, and a row for each problem."""
    lines = [
        f"{len(results['results'])} problems on {results['device']}, no model: TorchInductor's code for the reference, and the "
        f"tuner. {results['evaluated']} candidates evaluated, {results['minutes']:.1f} minutes of searches.",
        "",
        f"Machine: {machine.describe()}.",
        "",
        f"Versions: {', '.join(f'{name} {value}' for name, value in machine.versions().items())}.",
        "",
        "| problem | result | × eager | measured again | × torch.compile | kernel | eager | evaluated |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for one in results["results"]:
        found, verified = measured.get(one["name"], {}), one["speedup_over"]["eager"]
        speedup = [verified[name] for name in ("value", "low", "high")] if verified else None
        second = found.get("eager")
        said = ratio_text(second["speedup"]) if confirmed(second) else "not confirmed" if found else ""
        times = [f"{one[name]:,.1f} µs" if one[name] else "" for name in ("kernel_us", "baseline_us")]
        compiled = ratio_text(found.get("torch_compile", {}).get("speedup"))
        cells = [one["name"], one["ending"].replace("_", " "), ratio_text(speedup), said, compiled, *times]
        lines.append(f"| {' | '.join([*cells, str(one['evaluated'])])} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--suite", type=Path, help="a list of problems [default: suites/DEVICE.txt]")
    parser.add_argument("--evaluations", type=int, default=3, help="candidates of each problem")
    parser.add_argument("--seconds", type=float, default=350.0, help="for all of it")
    parser.add_argument("--jobs", type=int, default=1, help="searches at once")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="of the suite, which must not be there [default: a temporary one]")
    parser.add_argument("--evaluator", help="address of a running evaluator; default: one of our own")
    parser.add_argument("--no-save", action="store_true", help="print the table, and keep no figures")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    os.environ.setdefault("KERNELEVO_EVALUATOR_DEVICE", "cuda" if options.device == "gpu" else "cpu")
    suite = options.suite or ROOT / "benchmarks" / "suites" / f"{options.device}.txt"
    asked = ["--evaluations", str(options.evaluations), "--jobs", str(options.jobs), "--seed", str(options.seed)]
    with tempfile.TemporaryDirectory(prefix="kernelevo-suite-") as temporary:
        folder = options.folder or Path(temporary) / "suite"
        place = Path(temporary) / "evaluator"
        place.mkdir()
        if options.evaluator:
            results, measured = search(suite, folder, options.evaluator, end, asked)
        else:
            with server(place, {"log_level": "warning"}, inherits=True) as served:
                results, measured = search(suite, folder, served.address, end, asked)
        raw = {"results": results, "again": measured}
        (folder / "all.json").write_text(json.dumps(raw), encoding="utf-8")
    text = table(results, measured)
    print(text, flush=True)
    if not options.no_save:
        save(__file__, figures(options.device, results, measured), raw=raw)
        (RESULTS / f"suite_{options.device}.md").write_text(text, encoding="utf-8")


def search(
    suite: Path, folder: Path, address: str, end: float, asked: Sequence[str]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Results of the suite, and of its winners' second measurements."""
    with EvaluatorClient(address, client_id="benchmark") as client:
        client.wait_ready(START_S)
        # A quarter of the time is for what is measured again.
        results = carry_out(suite, folder, address, 0.75 * (end - time.monotonic()), asked)
        faster = [one for one in results["results"] if one["ending"] == "faster"]
        return results, again(client, folder, faster, end)


if __name__ == "__main__":
    main()
