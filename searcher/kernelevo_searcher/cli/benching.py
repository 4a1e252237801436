"""`kernelevo bench`: many problems with one budget each, new or resumed."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelevo_api.errors import EvaluatorError
from kernelevo_api.pool import NoEvaluator
from kernelevo_searcher.catalogue import find_problems, sample
from kernelevo_searcher.cli.common import (
    NOT_DONE,
    AcceptOption,
    BaselineOption,
    EvaluatorOption,
    Exit,
    JsonOption,
    app,
    checked_baseline,
    reported_errors,
    settings_from,
)
from kernelevo_searcher.cli.evolving import advice
from kernelevo_searcher.cli.interrupts import run_draining
from kernelevo_searcher.drain import Drain
from kernelevo_searcher.evaluators import open_evaluators
from kernelevo_searcher.inputs import BadInput
from kernelevo_searcher.mechanisms import Mechanism, PolicyName  # noqa: TC001 - typer resolves them
from kernelevo_searcher.open_models import open_models
from kernelevo_searcher.runs import folder_name, unique_name
from kernelevo_searcher.suite.folder import Suite
from kernelevo_searcher.suite.results import Ending, ending_text, problem_result
from kernelevo_searcher.suite.running import Listener, carry_out
from kernelevo_searcher.wording import plain, ratio_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from kernelevo_searcher.settings import SearcherSettings
    from kernelevo_searcher.suite.folder import SuiteProblem

__all__ = ["bench"]

_NAME_WIDTH = 44


@app.command(
    epilog="Exit code: 0 every problem has come to its end, 2 usage, 3 interrupted, no evaluator, or some could not be done."
)
def bench(
    problems: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SUITE...",
            help="a folder of problems (e.g. a checkout of KernelBench), a problem's file, a list of both (NAME.txt, a path in "
            "each line), or hf:OWNER/NAME; not needed with --resume",
        ),
    ] = None,
    level: Annotated[list[int] | None, typer.Option(help="only of this level of KernelBench (repeatable)")] = None,
    problem_id: Annotated[list[int] | None, typer.Option(help="only with this number (repeatable)")] = None,
    draw: Annotated[
        int | None, typer.Option("--sample", metavar="N", min=1, help="so many, drawn evenly from the levels")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="of the sample, and of everything random in a search")] = None,
    evaluations: Annotated[
        int | None, typer.Option(min=1, help="candidates of each problem at most [default: 60 without a model]")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="time that the search of each problem may take")] = None,
    budget_tokens: Annotated[int | None, typer.Option(min=0, help="tokens for each problem [default: 1000000]")] = None,
    budget_dollars: Annotated[float | None, typer.Option(help="dollars for each problem")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[,KEY=VALUE…]", help="a model that writes kernels, as for evolve (repeatable)"),
    ] = None,
    base_url: Annotated[str | None, typer.Option(metavar="URL", help="OpenAI-compatible endpoint")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="environment variable that holds the key, never the key itself")
    ] = None,
    target_speedup: Annotated[float | None, typer.Option(help="stop a search once this is certain")] = None,
    baseline: BaselineOption = None,
    other: Annotated[
        bool,
        typer.Option(
            "--other-baseline/--no-other-baseline", help="measure each best kernel over the other baseline too"
        ),
    ] = True,
    hints: Annotated[str | None, typer.Option(help="advice to the model, in your own words")] = None,
    policy: Annotated[
        PolicyName | None, typer.Option(help="how the searches choose; the others are baselines [default: evolve]")
    ] = None,
    without: Annotated[
        list[Mechanism] | None, typer.Option(help="leave this part of the policy out, to see its worth (repeatable)")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="searches at once [default: one for each lane of the evaluators, two with a model]"),
    ] = None,
    evaluator: EvaluatorOption = None,
    device: Annotated[str | None, typer.Option(metavar="WHAT", help="what to measure on, e.g. kind=cuda")] = None,
    output: Annotated[
        Path | None, typer.Option("--run", metavar="DIR", help="folder of the suite [default: runs/bench-SUITE-TIME]")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="DIR",
            help="go on with a suite as it was asked for; only --jobs and --evaluator may change",
        ),
    ] = None,
    accept_refused: AcceptOption = False,
    as_json: JsonOption = False,
) -> None:
    """Search many problems with one budget each, and report what they come to together.

    Each problem is a run of its own in the suite's folder, with its best kernel and its report. In the folder stand results.json,
    results.md (a table for a README) and report.html: fast_p over eager and over torch.compile, geometric means with intervals,
    verdicts and costs. A suite can be stopped or killed at any moment, and gone on with by --resume. `kernelevo report DIR`
    writes the results of a suite that is still going on.

    \b
    Examples:
      kernelevo bench examples --evaluations 20
      kernelevo bench KernelBench --level 1 --level 2 --sample 40 --evaluator gpu1:50051 --evaluator gpu2:50051
      kernelevo bench hf:ScalingIntelligence/KernelBench --level 1 --model gpt-5 --budget-dollars 2
      kernelevo bench --resume runs/bench-KernelBench-20261201-101500-3f2a
    """
    with reported_errors():
        wanted = {
            "evaluations": evaluations,
            "minutes": minutes,
            "budget_tokens": budget_tokens,
            "budget_dollars": budget_dollars,
            "model": tuple(model or ()),
            "base_url": base_url,
            "api_key_env": api_key_env,
            "target_speedup": target_speedup,
            "baseline": checked_baseline(baseline),
            "hints": advice(hints, None),
            "seed": seed,
            "policy": policy,
            "without": tuple(without or ()),
            "device": device,
        }
        if resume is not None:
            given = [name for name, value in wanted.items() if value not in (None, ())]
            given += [name for name, value in (("SUITE", problems), ("run", output), ("sample", draw)) if value]
            if given:
                raise BadInput(f"--resume goes on with a suite as it was asked for: leave out {', '.join(given)}.")
            suite, settings = Suite.open(resume), settings_from(evaluator)
            addresses = settings.evaluators if evaluator else suite.settings.evaluators
        else:
            if not problems:
                raise BadInput("name a suite (kernelevo bench KernelBench), or one to go on with (--resume DIR).")
            settings = settings_from(evaluator, **wanted)
            entries = [entry for place in problems for entry in find_problems(place, level or (), problem_id or ())]
            if draw is not None:
                entries = sample(entries, draw, settings.seed)
            # A suite's figures are of one kind of device.
            run = replace(settings.run_settings(), accept_refused_problem=accept_refused, verify_on=())
            open_models(run, os.environ)
            name = problems[0].rstrip("/").rpartition("/")[2] or "suite"
            path = output or settings.runs_dir / unique_name(f"bench-{folder_name(Path(name).stem)}")
            suite, addresses = Suite.create(path, name, entries, run, other_baseline=other), settings.evaluators
        stream = sys.stderr if as_json else sys.stdout
        stream.write(f"suite: {suite.path}, {len(suite.problems)} problems\n")
        stream.flush()
        with suite.locked():
            _work(suite, addresses, settings, jobs, stream, as_json=as_json)


def _work(
    suite: Suite,
    addresses: Sequence[str],
    settings: SearcherSettings,
    jobs: int | None,
    stream: TextIO,
    *,
    as_json: bool,
) -> None:
    from kernelevo_searcher.suite.report import summary_lines, write_results

    teller, drain = _Teller(suite, stream), Drain()
    to_resume = f"kernelevo bench --resume {shlex.quote(str(suite.path))}"
    try:
        run_draining(_carry_out(suite, addresses, settings, jobs, drain, teller), drain, teller.draining)
    except KeyboardInterrupt:
        raise Exit(NOT_DONE, f"stopped at once. Go on with: {to_resume}") from None
    except (EvaluatorError, NoEvaluator) as error:
        raise Exit(NOT_DONE, f"{error}\nNothing is lost. Once that is mended: {to_resume}") from error
    finally:
        teller.wipe()
    results = write_results(suite)
    if as_json:
        typer.echo(json.dumps(results.as_json(), allow_nan=False))
    else:
        for line in [*summary_lines(results), f"report: {suite.path / 'report.html'}"]:
            typer.echo(line)
    if results.open or teller.could_not:
        raise Exit(NOT_DONE, f"not all is done; nothing is lost. Go on with: {to_resume}")


async def _carry_out(
    suite: Suite,
    addresses: Sequence[str],
    settings: SearcherSettings,
    jobs: int | None,
    drain: Drain,
    teller: _Teller,
) -> None:
    async with open_evaluators(addresses, settings, suite.path / "evaluator") as pool:
        async with drain.preparing():
            await pool.connect(device=suite.device or suite.settings.device)
        if drain.asked:
            return
        assert pool.device is not None
        pinned = suite if suite.device is not None else suite.pinned(pool.device)
        teller.suite = pinned
        await carry_out(pinned, pool, settings, jobs=jobs, drain=drain, listener=teller)


class _Teller(Listener):
    """A line for each problem that has come to its end; on a terminal, what is searched at the moment."""

    def __init__(self, suite: Suite, stream: TextIO) -> None:
        self.suite = suite
        self.could_not = 0
        self._stream = stream
        self._running: dict[str, str] = {}
        self._width = len(str(len(suite.problems)))
        self._numbers = {problem.folder: number for number, problem in enumerate(suite.problems, 1)}

    def begins(self, problem: SuiteProblem, evaluator: str) -> None:
        self._running[problem.folder] = problem.name
        self._status()

    def ends(self, problem: SuiteProblem) -> None:
        outcomes = self.suite.outcomes()
        refused = outcomes.not_taken.get(problem.folder)
        if refused is not None:
            said = f"{refused.state.value}: {', '.join(refused.codes)}"
        else:
            result = problem_result(self.suite, problem, outcomes.compared.get(problem.folder))
            first, other = self.suite.baselines
            said = ending_text(result.ending)
            if result.speedup is not None:
                said += f", {ratio_text(result.speedup)} over {first.value}"
            if result.over_other is not None:
                said += f", {ratio_text(result.over_other)} over {other.value}"
            if result.ending is Ending.NONE_PASSED:
                said += f" ({result.why})"
            said += f"; {result.evaluated} evaluated"
            said += f", {result.tokens:,} tokens" if result.tokens else ""
        self._say(problem, said)

    def cannot(self, problem: SuiteProblem, why: str) -> None:
        self.could_not += 1
        self._say(problem, f"not done: {why}")

    def draining(self) -> None:
        """Tell that the suite was asked to end."""
        self.wipe()
        self._stream.write(
            "stopping: nothing new is started, what is under way is waited for; a second Ctrl-C stops at once\n"
        )
        self._stream.flush()

    def wipe(self) -> None:
        """Take the status away."""
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()

    def _say(self, problem: SuiteProblem, said: str) -> None:
        self._running.pop(problem.folder, None)
        self.wipe()
        number = f"{self._numbers[problem.folder]:>{self._width}}/{len(self._numbers)}"
        self._stream.write(f"{number} {plain(problem.name):<{_NAME_WIDTH}} {' '.join(plain(said).split())[:300]}\n")
        self._stream.flush()
        self._status()

    def _status(self) -> None:
        if sys.stderr.isatty():
            names = ", ".join(plain(name) for name in self._running.values())
            sys.stderr.write(f"\r\x1b[2K{f'searching {names}'[:110]}")
            sys.stderr.flush()
