"""What share of KernelBench's problems is handled: a seeded sample loaded, audited, given a seed, and the seed evaluated.

    kernelbench.py run CHECKOUT FILE     # on the machine with the device; FILE gets a line for each problem at its end
    kernelbench.py save FILE             # the figures and the table, on the same machine

The problems are read from a checkout, and none of their text is kept. A run that was cut off goes on with the same FILE. Several
evaluators share the device: what is looked at are verdicts, and no figure here is a time.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
import uuid
from collections import Counter, deque
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import machine
from results import RESULTS, save
from server_process import START_S, server

from kernelevo_api.client import EvaluatorClient
from kernelevo_api.errors import EvaluatorError, InvalidRequest, ProblemRefused, TooLarge
from kernelevo_api.types import Candidate, Effort, EvaluateRequest
from kernelevo_searcher.catalogue import find_problems, sample
from kernelevo_searcher.checking import State, why_not

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelevo_searcher.catalogue import Entry

GIB = 1 << 30
EACH_S = 120.0
"""Most that one problem may take."""
ABOUT = "about"
"""Key of the record's first line: what the run was, and on which machine."""


def look_at(client: EvaluatorClient, entry: Entry, end: float) -> dict[str, Any]:
    """How far one problem comes: its state after the audit, its seed or why there is none, the seed's verdict."""
    row: dict[str, Any] = {"problem": entry.name, "state": State.NOT_CHECKED.value, "codes": [], "why": ""}
    began = time.monotonic()

    def left() -> float:
        return max(1.0, end - time.monotonic())

    try:
        problem = entry.read()
        report = client.register_problem(problem, timeout=left())
        row |= {"state": State.TAKEN.value, "audit_s": time.monotonic() - began}
        report = client.register_problem(problem, with_seeds=True, timeout=left())
        row["seed_s"] = time.monotonic() - began - row["audit_s"]
        row["seed"] = report.seeds[0].language.value if report.seeds and report.seeds[0].language else ""
        if not report.seeds:
            row["why"] = "; ".join(one.message for one in report.findings if one.code == "no_seed")[:500]
            return row
        evaluation = client.evaluate(
            EvaluateRequest(
                request_id=str(uuid.uuid4()),
                problem_digest=report.problem_digest,
                candidate=Candidate(source=report.seeds[0].source),
                effort=Effort.SCREEN,
            ),
            timeout=left(),
        )
        row |= {"verdict": evaluation.verdict.value if evaluation.verdict else "", "why": evaluation.message[:500]}
    except (ProblemRefused, InvalidRequest, TooLarge) as refused:
        state, codes, reasons = why_not(refused)
        row |= {"state": state.value, "codes": list(codes), "why": "; ".join(reasons)[:500]}
    except EvaluatorError as error:
        row |= {"error": type(error).__name__, "why": str(error)[:500]}
    row["seconds"] = time.monotonic() - began
    return row


def read_record(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the run was, and the rows; a line that was cut off counts for nothing."""
    about: dict[str, Any] = {}
    rows: dict[str, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            one = json.loads(line)
        except ValueError:
            continue
        if ABOUT in one:
            about = one[ABOUT]
        else:
            rows[one["problem"]] = one
    return about, list(rows.values())


def run(checkout: Path, path: Path, levels: Sequence[int], count: int, seed: int, servers: int, seconds: float) -> None:
    """Look at a sample, on so many evaluators at once, and append each outcome."""
    end = time.monotonic() + seconds
    entries = sample(find_problems(checkout, levels), count, seed)
    about = {"levels": list(levels), "sample": [one.name for one in entries], "seed": seed}
    known = {row["problem"] for row in read_record(path)[1]}
    waiting = deque(entry for entry in entries if entry.name not in known)
    lock = threading.Lock()
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // servers)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with path.open("a", encoding="utf-8") as file, ExitStack() as stack:

        def keep(line: dict[str, Any]) -> None:
            with lock:
                file.write(json.dumps(line) + "\n")
                file.flush()

        def work(client: EvaluatorClient) -> None:
            while time.monotonic() < end:
                with lock:
                    if not waiting:
                        return
                    entry = waiting.popleft()
                row = look_at(client, entry, min(end, time.monotonic() + EACH_S))
                if time.monotonic() < end:
                    keep(row)
                print(
                    {name: row.get(name) for name in ("problem", "state", "codes", "seed", "verdict", "why")},
                    flush=True,
                )

        keep({ABOUT: about | {"machine": machine.describe(), "versions": machine.versions()}})
        clients = []
        for number in range(servers):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kernelevo-benchmark-"))
            mine = cores[number * share : (number + 1) * share] or cores
            settings = {
                "log_level": "warning",
                "lane_cpus": f"{mine[0]}-{mine[-1]}",
                "spare_runners": 1,
                "memory_bytes": min(24 * GIB, memory * 3 // 4 // servers),
                "device_memory_bytes": 30 * GIB,
                "prepare_time_s": 120,
                "check_time_s": 120,
            }
            served = stack.enter_context(server(Path(folder), settings, inherits=True))
            clients.append(stack.enter_context(EvaluatorClient(served.address, client_id="benchmark")))
        for client in clients:
            client.wait_ready(START_S)
        threads = [threading.Thread(target=work, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def outcome(row: dict[str, Any]) -> str:
    """In a few words."""
    if row["state"] != State.TAKEN.value:
        return f"{row['state'].replace('_', ' ')}: {', '.join(row['codes']) or row.get('error', '')}"
    if row.get("verdict") == "passed":
        return "taken, its seed passes"
    if row.get("verdict"):
        return f"taken, its seed does not pass: {row['verdict']}"
    return f"taken, not evaluated: {row['error']}" if "error" in row else "taken, no seed"


def figures(about: dict[str, Any], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Shares of the sample; what was not reached is part of it, and handled by nobody."""
    total = len(about["sample"])
    taken = [row for row in rows if row["state"] == State.TAKEN.value]
    judged = [row for row in rows if row["state"] in (State.TAKEN.value, State.REFUSED.value)]
    passed = [row for row in taken if row.get("verdict") == "passed"]
    where = f"of {total} KernelBench problems, levels {', '.join(map(str, about['levels']))}, seed {about['seed']}"
    found: list[dict[str, Any]] = [
        {"figure": f"{what} {where}", "value": 100 * len(some) / total, "unit": "%"}
        for what, some in (("loaded and audited,", judged), ("taken by the audit,", taken))
    ]
    seeded: dict[str, Any] = {
        "figure": f"with an Inductor seed that passes, of the {len(taken)} taken {where}",
        "value": 100 * len(passed) / max(1, len(taken)),
        "unit": "%",
        "bound": ">= 80",
    }
    return [*found, seeded]


def table(about: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """For people: how many come how far, and each problem with what holds it up."""
    reached = {row["problem"]: row for row in rows}
    outcomes = {name: outcome(reached[name]) if name in reached else "not reached" for name in about["sample"]}
    lines = [
        f"A sample of {len(outcomes)} problems of KernelBench, levels {', '.join(map(str, about['levels']))}, drawn with seed "
        f"{about['seed']}.",
        "",
        f"Machine: {about['machine']}.",
        "",
        f"Versions: {', '.join(f'{name} {value}' for name, value in about['versions'].items())}.",
        "",
        "| outcome | problems |",
        "| --- | ---: |",
        *(f"| {what} | {number} |" for what, number in Counter(outcomes.values()).most_common()),
        "",
        "| problem | outcome | why |",
        "| --- | --- | --- |",
    ]
    for name, what in outcomes.items():
        why = "" if what.endswith("passes") else " ".join(reached.get(name, {}).get("why", "").split())[:200]
        lines.append(f"| {name} | {what} | {why.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("checkout", type=Path)
    running.add_argument("record", type=Path)
    running.add_argument("--level", type=int, action="append", help="of these levels [default: 1 and 2]")
    running.add_argument("--sample", type=int, default=40)
    running.add_argument("--seed", type=int, default=0)
    running.add_argument("--servers", type=int, default=4, help="evaluators at once")
    running.add_argument("--seconds", type=float, default=360.0, help="for all of it")
    saving = commands.add_parser("save")
    saving.add_argument("record", type=Path)
    options = parser.parse_args()
    if options.command == "run":
        levels = options.level or [1, 2]
        run(
            options.checkout,
            options.record,
            levels,
            options.sample,
            options.seed,
            options.servers,
            options.seconds,
        )
        return
    about, rows = read_record(options.record)
    save(__file__, figures(about, rows), raw={"about": about, "rows": rows})
    text = table(about, rows)
    (RESULTS / "kernelbench.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
