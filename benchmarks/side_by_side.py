"""One model and one evaluator, driven by unmodified `openevolve-run` and by `kernelevo evolve`: as many calls, as many tokens,
and what each found.

    python benchmarks/side_by_side.py [--seeds 2] [--budget 300000] [--jobs 2] [--no-save]

The model is a server that speaks the OpenAI protocol and answers by the formula of benchmarks/search.py: it reads the kernel that
it is asked to improve out of the prompt, as a model would, and proposes one change of its configuration on a recorded landscape;
a quarter of its replies is of no use. It charges the same for every reply. The evaluator is the service with a simulated device,
which takes the time that was recorded and adds noise. `kernelevo evolve` spends its budget first, without its tuner, which has
nothing to ask a model for; openevolve gets as many iterations as that bought, through examples/openevolve and its settings. Both
ask one question at a time and begin with the same kernel.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import results
import yaml
from searching.landscape import RECORDED, recorded
from searching.proposer import Model
from searching.sources import parse, render
from server_process import SIMULATED, NotMeasured, exit_status, server

from kernelevo_api.client import EvaluatorClient

sys.path.insert(0, str(results.ROOT))

from tests.searcher.openai_server import Asked, Reply, serve

if TYPE_CHECKING:
    from searching.landscape import Configuration, Landscape

PROBLEM = "class Model: pass\n\ndef get_inputs(): return []\n\ndef get_init_inputs(): return []\n"
EXAMPLE = results.ROOT / "examples" / "openevolve"
OPENEVOLVE, OURS = "openevolve-run", "kernelevo evolve"
TOKENS = 4_000
"""Of each reply: half for the prompt, half for the completion."""
ASKED_ABOUT = ("\n# Current Program\n", "\n# The kernel")
"""Before the kernel that a prompt wants improved: openevolve's heading, and ours."""
LONGEST_S = 600


@dataclass(frozen=True, slots=True)
class Run:
    """What one search came to."""

    by: str
    landscape: str
    seed: int
    calls: int
    tokens: int
    evaluations: int
    value: float
    """Share of the optimum of the kernel that it says is the best."""


def main() -> int:
    """0: measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2, help="runs of each on each landscape")
    parser.add_argument("--budget", type=int, default=300_000, help="tokens of each run")
    parser.add_argument("--jobs", type=int, default=2, help="pairs at once")
    parser.add_argument("--no-save", action="store_true", help="print only")
    given = parser.parse_args()
    todo = [(name, seed, given.budget) for name in RECORDED for seed in range(given.seeds)]
    with ThreadPoolExecutor(given.jobs) as pool:
        pairs = list(pool.map(pair, *zip(*todo, strict=True)))
    if not given.no_save:
        results.save(__file__, figures(pairs), [[asdict(run) for run in each] for each in pairs])
    return 0


def pair(name: str, seed: int, budget: int) -> tuple[Run, Run]:
    """Both on one landscape, ours first.

    Raises:
        NotMeasured: one of them failed, or they did not make as many calls.
    """
    with tempfile.TemporaryDirectory(prefix="ke") as folder:
        place = Path(folder)
        (place / "problem.py").write_text(PROBLEM, encoding="utf-8")
        space = recorded(name)
        (place / "start.py").write_text(kernel(space, space.start), encoding="utf-8")
        ours = search(OURS, space, seed, place, budget=budget)
        theirs = search(OPENEVOLVE, space, seed, place, iterations=ours.calls)
    for run in (ours, theirs):
        told = f"{run.calls} calls, {run.tokens} tokens, {run.evaluations} evaluations, {run.value:.1%} of the optimum"
        print(f"{name} seed {seed}: {run.by}: {told}", flush=True)
    if (ours.calls, ours.tokens) != (theirs.calls, theirs.tokens):
        raise NotMeasured(f"{ours.calls} calls of {OURS}, {theirs.calls} of {OPENEVOLVE}")
    return ours, theirs


def search(by: str, space: Landscape, seed: int, place: Path, *, budget: int = 0, iterations: int = 0) -> Run:
    """One search, with an evaluator and a model of its own.

    Args:
        budget: tokens that ours may spend.
        iterations: calls that openevolve makes.
    """
    folder = place / by.replace(" ", "-")
    folder.mkdir()
    settings = {**SIMULATED, "simulated_lanes": 1}
    with server(folder, settings) as evaluator, serve(Answers(space, seed), repeat_last=True) as model:
        with EvaluatorClient(evaluator.address, client_id="benchmark") as client:
            client.wait_ready(60)
        if by == OURS:
            best = evolve(place, folder, evaluator.address, model.base_url, seed, budget)
        else:
            best = openevolve(place, folder, evaluator.address, model.base_url, seed, iterations)
        with EvaluatorClient(evaluator.address, client_id="benchmark") as client:
            evaluations = sum(1 for _ in client.list_evaluations())
    configuration, _ = parse(best)
    value = space.value(configuration)
    return Run(by, space.name, seed, len(model.asked), model.charged_tokens, evaluations, value)


def evolve(place: Path, folder: Path, address: str, model: str, seed: int, budget: int) -> str:
    """The best kernel of `kernelevo evolve`."""
    command = [Path(sys.executable).parent / "kernelevo", "evolve", place / "problem.py", "--start", place / "start.py"]
    command += ["--run", folder / "run", "--evaluator", address, "--model", "scripted", "--base-url", model]
    command += ["--budget-tokens", budget, "--seed", seed, "--without", "tune", "--without", "patience", "--json"]
    done = _called(command, folder, KERNELEVO_CALLS_IN_FLIGHT="1")
    return Path(json.loads(done)["best_kernel"]).read_text(encoding="utf-8")


def openevolve(place: Path, folder: Path, address: str, model: str, seed: int, iterations: int) -> str:
    """The best program of `openevolve-run`."""
    settings: dict[str, Any] = yaml.safe_load((EXAMPLE / "config.yaml").read_text(encoding="utf-8"))
    settings["random_seed"] = seed
    settings["checkpoint_interval"] = iterations
    settings["evaluator"]["parallel_evaluations"] = 1
    settings["evaluator"]["evaluator_args"] |= {"address": address, "problem": str(place / "problem.py")}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    command = [Path(sys.executable).parent / "openevolve-run", place / "start.py", EXAMPLE / "evaluator.py"]
    command += ["--config", folder / "config.yaml", "--output", folder / "out", "--iterations", iterations]
    _called([*command, "--api-base", model, "--primary-model", "scripted"], folder, OPENAI_API_KEY="none")
    return (folder / "out" / "best" / "best_program.py").read_text(encoding="utf-8")


def _called(command: list[Any], folder: Path, **environment: str) -> str:
    own = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **environment}
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        env=os.environ | own,
    )
    if done.returncode not in (0, 1) or (done.returncode and not done.stdout):
        raise NotMeasured(f"{command[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


# The model.


def kernel(space: Landscape, configuration: Configuration) -> str:
    """The source of a configuration, which tells the simulated device its speedup over the start."""
    speedup = space.value(configuration) / space.value(space.start)
    return f"SIMULATED_SPEEDUP = {speedup:.6f}\n{render(space, configuration)}"


def parent_of(asked: Asked, space: Landscape) -> Configuration:
    """The configuration that a prompt wants improved; the start where it wants a new one, or where that is no kernel."""
    text = str(asked.body["messages"][-1]["content"])
    for heading in ASKED_ABOUT:
        _, found, after = text.partition(heading)
        if found and (shown := after.partition("CONFIGURATION = ")[0]).count("```") == 1:
            return parse(after[len(shown) :])[0]
    return space.start


class Answers:
    """The model's side of a search: the same luck for the call of the same number, whoever asks."""

    def __init__(self, space: Landscape, seed: int) -> None:
        self._space, self._seed, self._calls = space, seed, 0

    def __call__(self, asked: Asked) -> Reply:
        self._calls += 1
        found = Model().reply(self._space, parent_of(asked, self._space), random.Random(f"{self._seed}:{self._calls}"))
        # openevolve takes prose for a program: no evaluator lets it pass.
        text = "BROKEN"
        if found.configuration is not None:
            source = kernel(self._space, found.configuration)
            text = f"Name: n{self._calls}\nIdea: idea {self._calls}\n\n```python\n{source}```\n"
        return Reply(content=text, prompt_tokens=TOKENS // 2, completion_tokens=TOKENS // 2)


def figures(pairs: list[tuple[Run, Run]]) -> list[dict[str, Any]]:
    """What is published of these pairs."""
    calls = statistics.median(ours.calls for ours, _ in pairs)
    where = f"side by side, {len(pairs)} pairs of runs"
    found: list[dict[str, Any]] = [
        {"figure": f"{where}: model calls of each", "value": calls, "unit": "calls, median"},
        {
            "figure": f"{where}: pairs with other calls or tokens",
            "value": sum((ours.calls, ours.tokens) != (theirs.calls, theirs.tokens) for ours, theirs in pairs),
            "unit": "pairs",
            "bound": "== 0",
        },
    ]
    for number, by in enumerate((OURS, OPENEVOLVE)):
        runs = [each[number] for each in pairs]
        mean, evaluations = (
            statistics.fmean(item) for item in zip(*((r.value, r.evaluations) for r in runs), strict=True)
        )
        found += [
            {"figure": f"{where}: {by}, share of the optimum found", "value": round(mean, 4), "unit": "share, mean"},
            {"figure": f"{where}: {by}, evaluations", "value": round(evaluations, 1), "unit": "evaluations, mean"},
        ]
    better = sum(ours.value > theirs.value for ours, theirs in pairs)
    worse = sum(ours.value < theirs.value for ours, theirs in pairs)
    return [
        *found,
        {"figure": f"{where}: {OURS} found the better kernel", "value": better, "unit": "pairs"},
        {"figure": f"{where}: {OPENEVOLVE} found the better kernel", "value": worse, "unit": "pairs"},
    ]


if __name__ == "__main__":
    sys.exit(exit_status(main))
