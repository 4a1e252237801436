"""What `kernelevo-evaluator status` shows of a running evaluator: what it has, how busy it is, what it judged last."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from kernelevo_api.client import AsyncEvaluatorClient
from kernelevo_api.errors import EvaluatorError
from kernelevo_api.json import to_json
from kernelevo_api.types import Verdict

if TYPE_CHECKING:
    from kernelevo_api.channel import Tls
    from kernelevo_api.types import Capabilities, Evaluation

REFRESH_S = 1.0
_TIMEOUT_S = 10.0
_LATEST = 10


async def show(address: str, token: str | None, tls: Tls | None, *, once: bool, as_json: bool) -> None:
    """Print the state of the evaluator at `address`; on a terminal a table that is kept up to date until interrupted.

    Raises:
        EvaluatorError: none answers; while a table is shown, that stands in the table instead.
    """
    async with AsyncEvaluatorClient(address, token=token, tls=tls) as client:
        found = await client.get_capabilities(timeout=_TIMEOUT_S)
        if as_json:
            print(json.dumps(to_json(found), indent=2))  # noqa: T201
        elif not sys.stdout.isatty():
            for name, value in facts(found):
                print(f"{name}: {value}")  # noqa: T201
        elif once:
            Console().print(_screen(address, found, await _latest(client), ""))
        else:
            await _live(client, address, found)


async def _live(client: AsyncEvaluatorClient, address: str, found: Capabilities) -> None:
    latest = await _latest(client)
    with Live(_screen(address, found, latest, ""), refresh_per_second=4) as live:
        while True:
            await asyncio.sleep(REFRESH_S)
            trouble = ""
            try:
                found = await client.get_capabilities(timeout=_TIMEOUT_S, retry=False)
                latest = await _latest(client)
            except EvaluatorError as error:
                trouble = str(error)
            live.update(_screen(address, found, latest, trouble))


async def _latest(client: AsyncEvaluatorClient) -> list[Evaluation]:
    found: list[Evaluation] = []
    async with contextlib.aclosing(client.list_evaluations(page_size=_LATEST, timeout=_TIMEOUT_S)) as listed:
        async for one in listed:
            found.append(one)
            if len(found) == _LATEST:
                break
    return found


def facts(found: Capabilities) -> list[tuple[str, str]]:
    """Names and values, one line each."""
    queue = found.queue
    lines = [("version", f"{found.evaluator_version}, API {found.api_version}, protocol {found.protocol_version}")]
    if queue is not None:
        lines += [
            ("running", f"{queue.running}, {queue.lanes} lanes"),
            ("queued", f"{queue.queued} of {queue.capacity}"),
        ]
    for device in found.devices:
        state = "" if device.healthy else ", NOT HEALTHY" + (f": {device.fault}" if device.fault else "")
        lines.append((f"device {device.id}", f"{device.name}, {device.architecture}{state}"))
    languages = [one.language.value for one in found.languages if one.language is not None]
    lines.append(("languages", ", ".join(dict.fromkeys(languages))))
    lines.append(("toolchain", ", ".join(f"{tool.name} {tool.version}" for tool in found.toolchain)))
    if found.sandbox is not None:
        missing = [one.name for one in found.sandbox.guarantees if not one.holds]
        lines.append(("sandbox", found.sandbox.backend + (f", without {', '.join(missing)}" if missing else "")))
    return lines


def _screen(address: str, found: Capabilities, latest: list[Evaluation], trouble: str) -> Group:
    table = Table(title=f"evaluator at {escape(address)}", show_header=False, title_justify="left")
    for name, value in facts(found):
        table.add_row(escape(name), escape(value))
    if trouble:
        table.add_row("[red]does not answer[/]", escape(trouble))
    recent = Table(
        "when", "verdict", "language", "speedup", "seconds", title="latest evaluations", title_justify="left"
    )
    now = datetime.now(UTC)
    for one in islice(latest, _LATEST):
        style = "green" if one.verdict is Verdict.PASSED else ""
        recent.add_row(*map(escape, _row(one, now)), style=style)
    return Group(table, recent) if latest else Group(table)


def _row(one: Evaluation, now: datetime) -> tuple[str, str, str, str, str]:
    ago = f"{(now - one.created_at).total_seconds():.0f} s ago" if one.created_at is not None else ""
    speedup = one.timing.speedup if one.timing is not None else None
    stages = [stage for stage in one.timeline.stages if stage.start and stage.end] if one.timeline is not None else []
    spent = sum((stage.end - stage.start).total_seconds() for stage in stages if stage.start and stage.end)
    return (
        ago,
        one.verdict.value + (" (cached)" if one.from_cache else ""),
        one.language.value if one.language is not None else "",
        f"{speedup.value:.3g} [{speedup.low:.3g}, {speedup.high:.3g}]" if speedup is not None else "",
        f"{spent:.1f}" if stages and not one.from_cache else "",
    )
