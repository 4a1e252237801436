"""The command `kernelevo-evaluator`: serve, doctor, status, token, settings.

Exit codes: 0 all is well, 1 the evaluator cannot do its work here (the message says what is missing), 2 usage.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kernelevo_api.errors import EvaluatorError
from kernelevo_evaluator import lifeline
from kernelevo_evaluator.settings import EvaluatorSettings, LoadedSettings, SettingsInvalid, load_settings

if TYPE_CHECKING:
    from kernelevo_evaluator.doctor import Check
    from kernelevo_evaluator.server import EvaluatorServer

app = typer.Typer(
    help="The KernelEvo evaluator: builds, checks and times GPU kernels that nobody trusts.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_EMBEDDED_DRAIN_S = 2.0
"""An evaluator that belongs to its parent has nobody else to finish work for."""

StateDir = Annotated[Path | None, typer.Option(help="Folder of results, accepted requests and built artefacts.")]
SandboxName = Annotated[
    str | None, typer.Option("--sandbox", help="bubblewrap, docker, or none for code that one wrote oneself.")
]
Configuration = Annotated[
    Path | None, typer.Option("--config", help="Configuration file; kernelevo.toml in this folder when absent.")
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any other setting; `settings` lists them. Repeatable."),
]


def main() -> None:
    """Run the command."""
    app()


@app.command()
def serve(
    listen: Annotated[
        str | None, typer.Option(help="unix:PATH or host:port. A socket in the state folder when absent.")
    ] = None,
    state_dir: StateDir = None,
    sandbox: SandboxName = None,
    insecure_loopback: Annotated[
        bool | None, typer.Option("--insecure-loopback", help="Allow plain TCP on a loopback address.")
    ] = None,
    tls_certificate: Annotated[Path | None, typer.Option(help="PEM: the server's certificate chain.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM: the server's private key.")] = None,
    tls_client_ca: Annotated[Path | None, typer.Option(help="PEM: ask clients for certificates of this CA.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="TOML file of accepted tokens; `token` writes it.")] = None,
    executor: Annotated[
        str | None, typer.Option("--executor", help="local: this host's devices; ray: those of a Ray cluster.")
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="The cluster's address, e.g. host:6379 or auto; with --executor ray.")
    ] = None,
    config: Configuration = None,
    assignments: Assignments = None,
    ready_fd: Annotated[
        int | None, typer.Option(help="Write the address and a newline to this descriptor when ready, and close it.")
    ] = None,
    exit_with_parent: Annotated[
        bool, typer.Option("--exit-with-parent", help="End when the process that started this one has ended.")
    ] = False,
    show_settings: Annotated[
        bool, typer.Option("--show-settings", help="Print every setting and where it came from, and end.")
    ] = False,
) -> None:
    """Serve evaluations until SIGTERM, which drains: running work ends, queued work goes on at the next start.

    Candidates run in a sandbox whose guarantees are tried first; without the essential ones the server does not start.
    """
    flags = {
        "listen": listen,
        "state_dir": state_dir,
        "sandbox": sandbox,
        "insecure_loopback": insecure_loopback,
        "tls_certificate": tls_certificate,
        "tls_key": tls_key,
        "tls_client_ca": tls_client_ca,
        "token_file": token_file,
        "executor": executor,
        "ray_address": ray_address,
    }
    loaded = _load(flags, assignments, config)
    if show_settings:
        _print_settings(loaded, as_json=False)
        return
    _need_linux()
    settings = loaded.settings
    if exit_with_parent and loaded.origin["drain_s"] == "default":
        settings = settings.model_copy(update={"drain_s": _EMBEDDED_DRAIN_S})
    raise typer.Exit(asyncio.run(_serve(settings, ready_fd, exit_with_parent)))


@app.command()
def doctor(
    state_dir: StateDir = None,
    sandbox: SandboxName = None,
    config: Configuration = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
) -> None:
    """Try what this host guarantees, say what is missing and how to get it. Exit code 1 if the server would not start."""
    settings = _load({"state_dir": state_dir, "sandbox": sandbox}, None, config).settings
    _need_linux()
    from kernelevo_evaluator.doctor import examine, sound

    checks = asyncio.run(examine(settings))
    good = sound(checks)
    if as_json:
        print(json.dumps({"sound": good, "checks": [asdict(check) for check in checks]}, indent=2))  # noqa: T201
    elif sys.stdout.isatty():
        _print_checks(checks)
    else:
        for check in checks:
            print(_plain(check))  # noqa: T201
    if not as_json:
        _say("the evaluator can work here" if good else "the evaluator cannot work here; see what is missing above")
    raise typer.Exit(0 if good else 1)


@app.command()
def status(
    address: Annotated[str, typer.Argument(help="unix:PATH, a path, or host:port.")],
    once: Annotated[bool, typer.Option("--once", help="Print once, where a terminal would get a live table.")] = False,
    token_file: Annotated[Path | None, typer.Option(help="File whose first word is the token to use.")] = None,
    tls_ca: Annotated[Path | None, typer.Option(help="PEM: talk TLS, and trust servers of this CA.")] = None,
    tls_certificate: Annotated[Path | None, typer.Option(help="PEM: this client's certificate chain.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM: this client's private key.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
) -> None:
    """Show what a running evaluator has and how busy it is, live on a terminal. Exit code 1 if none answers."""
    from kernelevo_api.channel import Tls
    from kernelevo_evaluator.status import show

    try:
        token = token_file.read_text(encoding="utf-8").split()[0] if token_file is not None else None
        pem = [path.read_bytes() if path is not None else None for path in (tls_ca, tls_key, tls_certificate)]
        tls = Tls(root_certificates=pem[0], private_key=pem[1], certificate_chain=pem[2]) if any(pem) else None
        asyncio.run(show(address, token, tls, once=once, as_json=as_json))
    except IndexError:
        _fail(f"{token_file} holds no token", 2)
    except (ValueError, OSError) as error:
        _fail(str(error), 2)
    except EvaluatorError as error:
        _fail(str(error), 1)
    except KeyboardInterrupt:
        return


@app.command()
def token(
    name: Annotated[str, typer.Argument(help="Who gets it: letters, digits, - and _.")],
    token_file: Annotated[Path, typer.Option(help="The server's token file; made where there is none.")],
    queued: Annotated[int | None, typer.Option(min=1, help="Most of its requests that wait.")] = None,
    running: Annotated[int | None, typer.Option(min=1, help="Most of its requests that run at once.")] = None,
) -> None:
    """Let one more in: print a new token, once, and add its digest to the token file. SIGHUP makes a server read it."""
    from kernelevo_evaluator.queue import Quota
    from kernelevo_evaluator.tokens import TokensInvalid, add_token

    try:
        print(add_token(token_file, name, Quota(queued, running)))  # noqa: T201
    except TokensInvalid as error:
        _fail(str(error), 1)


@app.command(name="settings")
def show_settings(
    config: Configuration = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
) -> None:
    """Print every setting, its value, and where the value came from."""
    _print_settings(_load({}, None, config), as_json=as_json)


async def _serve(settings: EvaluatorSettings, ready_fd: int | None, exit_with_parent: bool) -> int:
    # Imported here, so that `status` and `settings` work where an evaluator cannot run.
    from kernelevo_api.errors import StoreUnavailable
    from kernelevo_evaluator.executor import ExecutorFault
    from kernelevo_evaluator.logs import configure
    from kernelevo_evaluator.opening import Unsound
    from kernelevo_evaluator.server import evaluator_version
    from kernelevo_evaluator.sockets import ListenError, raise_open_files
    from kernelevo_evaluator.store import StoreLocked
    from kernelevo_evaluator.tokens import TokensInvalid
    from kernelevo_sandbox import SandboxError

    configure(settings)
    raise_open_files()
    stop, now = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop_or_hurry, stop, now)
    async with lifeline.watch_parent(now) if exit_with_parent else contextlib.nullcontext():
        starting = asyncio.create_task(_start(settings))
        try:
            if not await _before(starting, stop, now):
                starting.cancel()
            server, address = await starting
        except asyncio.CancelledError:
            return 0
        except (
            SandboxError,
            StoreLocked,
            StoreUnavailable,
            ListenError,
            TokensInvalid,
            ExecutorFault,
            Unsound,
        ) as error:
            _complain(str(error))
            return 1
        print(f"kernelevo-evaluator {evaluator_version()} listens on {address}", flush=True)  # noqa: T201
        if ready_fd is not None:
            with os.fdopen(ready_fd, "w") as ready:
                ready.write(f"{address}\n")
        loop.add_signal_handler(signal.SIGHUP, _reload, server)
        await _first(stop, now)
        draining = asyncio.create_task(server.drain(0.0 if now.is_set() else None))
        if not await _before(draining, now):
            server.evaluations.hurry()
        await draining
    return 0


async def _start(settings: EvaluatorSettings) -> tuple[EvaluatorServer, str]:
    from kernelevo_evaluator.opening import prepare
    from kernelevo_evaluator.server import EvaluatorServer, evaluator_version
    from kernelevo_evaluator.telemetry import from_environment

    prepared = await prepare(settings, _complain)
    try:
        # The server makes the executor once the state folder is its own, and then owns it.
        server = EvaluatorServer(prepared.make, settings, from_environment(evaluator_version()))
        address = await server.start()
        # What is there by now stays: no call waits while the collector looks through it.
        gc.freeze()
        return server, address
    except BaseException:
        await prepared.discard()
        raise


def _reload(server: EvaluatorServer) -> None:
    from kernelevo_evaluator.tokens import TokensInvalid

    try:
        server.reload_tokens()
    except TokensInvalid as error:
        _complain(f"the tokens stay as they were: {error}")


def _stop_or_hurry(stop: asyncio.Event, now: asyncio.Event) -> None:
    """The first signal drains, the second ends at once."""
    if stop.is_set():
        now.set()
    stop.set()


async def _first(*events: asyncio.Event) -> None:
    """Returns when the first of the events is set."""
    tasks = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _before(task: asyncio.Task[Any], *events: asyncio.Event) -> bool:
    """Wait for `task` or the first of `events`; whether the task has ended."""
    waiting = asyncio.create_task(_first(*events))
    try:
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    return task.done()


def _load(flags: dict[str, Any], assignments: list[str] | None, config: Path | None) -> LoadedSettings:
    given = dict(flags)
    for assignment in assignments or []:
        name, equals, value = assignment.partition("=")
        if not equals or name not in EvaluatorSettings.model_fields:
            _fail(f"--set {assignment}: write NAME=VALUE with a name that `kernelevo-evaluator settings` lists", 2)
        given[name] = value
    try:
        return load_settings(given, config)
    except SettingsInvalid as error:
        _fail(str(error), 2)


def _print_settings(loaded: LoadedSettings, *, as_json: bool) -> None:
    values = loaded.settings.model_dump(mode="json")
    values["listen"] = loaded.settings.address
    if as_json:
        rows = {name: {"value": value, "origin": loaded.origin[name]} for name, value in values.items()}
        print(json.dumps(rows, indent=2))  # noqa: T201
        return
    if not sys.stdout.isatty():
        for name, value in values.items():
            print(f"{name} = {value}  # {loaded.origin[name]}")  # noqa: T201
        return
    table = Table("setting", "value", "from", "what it is")
    for name, value in values.items():
        text = EvaluatorSettings.model_fields[name].description or ""
        table.add_row(name, escape(str(value)), escape(loaded.origin[name]), escape(text))
    Console().print(table)


def _print_checks(checks: tuple[Check, ...]) -> None:
    table = Table("", "what", "found", "what to do")
    for check in checks:
        mark = "[green]ok[/]" if check.holds else "[red]missing[/]" if check.essential else "[yellow]missing[/]"
        table.add_row(
            mark,
            escape(f"{check.group}: {check.name}"),
            escape(check.evidence),
            "" if check.holds else escape(check.remedy),
        )
    Console().print(table)


def _plain(check: Check) -> str:
    mark = "ok" if check.holds else "MISSING" if check.essential else "missing, not essential"
    remedy = f" -> {check.remedy}" if check.remedy and not check.holds else ""
    return f"{check.group}: {check.name}: {mark}: {check.evidence}{remedy}"


def _need_linux() -> None:
    if not sys.platform.startswith("linux"):
        _fail(
            f"the evaluator runs on Linux, not on {sys.platform}: candidates need its namespaces. The searcher runs here; "
            "point it at an evaluator elsewhere with --evaluator",
            1,
        )


def _say(text: str) -> None:
    typer.echo(text)


def _complain(text: str) -> None:
    typer.echo(text, err=True)


def _fail(text: str, code: int) -> NoReturn:
    _complain(f"error: {text}")
    raise typer.Exit(code)
