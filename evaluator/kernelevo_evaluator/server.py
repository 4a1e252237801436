"""One evaluator from its start to its end: store, executor, gRPC server, health, drain."""

from __future__ import annotations

import asyncio
import contextlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]

from kernelevo_api.channel import MESSAGE_LIMIT_BYTES
from kernelevo_api.errors import StoreUnavailable
from kernelevo_api.evaluator.v1 import evaluator_pb2, evaluator_pb2_grpc
from kernelevo_evaluator.auth import Gate, TokenInterceptor
from kernelevo_evaluator.call_counting import CountingInterceptor
from kernelevo_evaluator.decoding import DecodingInterceptor
from kernelevo_evaluator.evaluations import Evaluations
from kernelevo_evaluator.health import HealthService
from kernelevo_evaluator.health_port import LIVENESS, HealthPort
from kernelevo_evaluator.lives import Lives
from kernelevo_evaluator.metrics import Metrics, MetricsPage
from kernelevo_evaluator.service import EvaluatorService
from kernelevo_evaluator.sockets import ListenError, bind
from kernelevo_evaluator.store import Store
from kernelevo_evaluator.telemetry import Telemetry
from kernelevo_evaluator.tokens import read_tokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelevo_evaluator.executor import Executor
    from kernelevo_evaluator.settings import EvaluatorSettings

SERVICE = evaluator_pb2.DESCRIPTOR.services_by_name["EvaluatorService"].full_name
HEALTH_POLL_S = 1.0
STREAMS_PER_CONNECTION = 1000
"""Calls under way on one connection; its client holds back what is beyond."""
CALLS_BEFORE_BEGUN = 4000
"""Calls, over all connections, that have come and are not begun; beyond it gRPC cancels new ones at random, and beyond twice as
many all of them. Its own bound is a thousand, which a few connections that reset what they ask for fill in no time."""
HANDSHAKE_S = 20.0
"""How long a new connection may take until it speaks HTTP/2, TLS included."""
PRUNE_EVERY_S = 600.0
_LAST_ANSWERS_S = 2.0
"""How long calls that are being answered have to end once nothing runs any more."""

_log = structlog.get_logger("kernelevo.evaluator")


def evaluator_version() -> str:
    """Version of this distribution."""
    try:
        return version("kernelevo")
    except PackageNotFoundError:
        return "0"


class EvaluatorServer:
    """Serves one executor, which is made once the state folder is this server's own. `start`, then `drain`; both once."""

    def __init__(
        self, make_executor: Callable[[], Executor], settings: EvaluatorSettings, telemetry: Telemetry | None = None
    ) -> None:
        """`telemetry` is told of calls and evaluations, and closed at the end; `None`: nothing is traced."""
        self._make_executor = make_executor
        self._executor: Executor | None = None
        self._settings = settings
        self._telemetry = telemetry or Telemetry()
        self._store: Store | None = None
        self._server: grpc.aio.Server | None = None
        self._bound: str | None = None
        self._evaluations: Evaluations | None = None
        self._gate: Gate | None = None
        self._metrics_page: MetricsPage | None = None
        self._health_port: HealthPort | None = None
        self._health = HealthService()
        self._chores: list[asyncio.Task[None]] = []
        self._ended = asyncio.Event()

    @property
    def evaluations(self) -> Evaluations:
        """What stands behind the API."""
        assert self._evaluations is not None
        return self._evaluations

    async def start(self) -> str:
        """Start everything; returns the address that clients use, when calls are answered.

        Raises:
            ListenError, TokensInvalid, StoreLocked, StoreUnavailable, SandboxUnavailable
        """
        settings = self._settings
        self._gate = gate = Gate(
            read_tokens(settings.token_file) if settings.token_file else None,
            certificates=settings.tls_client_ca is not None,
        )
        metrics = Metrics()
        asked = [TokenInterceptor(gate)] if settings.token_file else []
        interceptors: list[grpc.aio.ServerInterceptor] = [
            CountingInterceptor(metrics),
            *asked,
            *self._telemetry.interceptors(),
            DecodingInterceptor(),
        ]
        try:
            url = settings.database_url.get_secret_value() if settings.database_url is not None else None
            self._store = await Store.open(Path(settings.state_dir), url)
            self._server = grpc.aio.server(interceptors=interceptors, options=_options(settings.connection_idle_s))
            # Before the executor: an address that is taken is known at once, not after devices were claimed.
            self._bound = address = bind(self._server, settings)
            self._metrics_page = self._serve_metrics(metrics)
            if settings.health:
                self._health_port = HealthPort(self._health, settings.health)
            self._executor = executor = self._make_executor()
            facts = await executor.start()
            self._evaluations = Evaluations(
                executor=executor,
                facts=facts,
                store=self._store,
                lives=await self._read_lives(),
                settings=settings,
                evaluator_version=evaluator_version(),
                metrics=metrics,
                telemetry=self._telemetry,
            )
            self._evaluations.set_quotas(gate.quotas)
            evaluator_pb2_grpc.add_EvaluatorServiceServicer_to_server(
                EvaluatorService(self._evaluations, gate), self._server
            )
            health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
            reflection.enable_server_reflection(
                (SERVICE, "grpc.health.v1.Health", reflection.SERVICE_NAME), self._server
            )
            self._health.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
            self._tell_health()
            await self._server.start()
            if self._health_port is not None:
                await self._health_port.start()
        except BaseException:
            await self._close()
            raise
        recovered = await self._evaluations.recover()
        if recovered:
            _log.info("interrupted requests go on", count=recovered)
        self._chores = [asyncio.create_task(self._watch_health()), asyncio.create_task(self._prune())]
        return address

    def reload_tokens(self) -> None:
        """Read the token file again: who was removed is refused from the next call on.

        Raises:
            TokensInvalid: nothing has changed.
        """
        if self._settings.token_file is None:
            return
        assert self._gate is not None
        self._gate.entries = read_tokens(self._settings.token_file)
        self.evaluations.set_quotas(self._gate.quotas)
        _log.info("tokens read again", names=sorted(self._gate.quotas))

    async def drain(self, seconds: float | None = None) -> None:
        """Refuse new work, let running work finish within `seconds` (a setting), stop the rest, and end."""
        if self._evaluations is not None:
            self._health.set(SERVICE, health_pb2.HealthCheckResponse.NOT_SERVING)
            self._health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
            await self._evaluations.drain(self._settings.drain_s if seconds is None else seconds)
        await self._close()

    async def wait(self) -> None:
        """Returns when `drain` is done."""
        await self._ended.wait()

    @property
    def metrics_address(self) -> str:
        """Where the page for Prometheus is; empty where there is none."""
        return self._metrics_page.address if self._metrics_page is not None else ""

    @property
    def health_address(self) -> str:
        """Where the health service answers in plain text; empty where it does not."""
        return self._health_port.address if self._health_port is not None else ""

    async def _read_lives(self) -> Lives:
        try:
            return await asyncio.to_thread(Lives.begin, Path(self._settings.state_dir))
        except OSError as error:
            raise StoreUnavailable(f"what earlier lives left in the state folder cannot be read: {error}") from error

    def _serve_metrics(self, metrics: Metrics) -> MetricsPage | None:
        if not self._settings.metrics:
            return None
        try:
            return MetricsPage.serve(metrics, self._settings.metrics)
        except OSError as error:
            raise ListenError(f"cannot listen on {self._settings.metrics} for metrics: {error}") from error

    async def _close(self) -> None:
        for chore in self._chores:
            chore.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await chore
        if self._server is not None:
            await self._server.stop(_LAST_ANSWERS_S)
        if self._health_port is not None:
            await self._health_port.close()
        if self._metrics_page is not None:
            await self._metrics_page.close()
        if self._executor is not None:
            await self._executor.close()
        if self._store is not None:
            await self._store.close()
        if self._bound is not None and self._bound.startswith("unix:"):
            Path(self._bound.removeprefix("unix:")).unlink(missing_ok=True)
        await self._telemetry.close()
        self._ended.set()

    async def _watch_health(self) -> None:
        while True:
            await asyncio.sleep(HEALTH_POLL_S)
            if not self.evaluations.draining:
                self._tell_health()

    async def _prune(self) -> None:
        days, most = self._settings.keep_days, self._settings.keep_bytes
        while days is not None or most is not None:
            assert self._store is not None
            try:
                removed = await self._store.prune(days * 86_400 if days is not None else None, most)
                if removed:
                    _log.info("pruned", evaluations=removed.evaluations, problems=removed.problems)
            except StoreUnavailable as error:
                _log.warning("not pruned", message=error.message)
            await asyncio.sleep(PRUNE_EVERY_S)

    def _tell_health(self) -> None:
        status = health_pb2.HealthCheckResponse
        healthy = self._executor is not None and self._executor.healthy
        now = status.SERVING if healthy else status.NOT_SERVING
        self._health.set(SERVICE, now)
        self._health.set("", now)


def _options(connection_idle_s: float) -> tuple[tuple[str, int], ...]:
    return (
        ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
        ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
        ("grpc.so_reuseport", 0),
        # A reader that is slow, or a call that says nothing, holds memory here.
        ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION),
        ("grpc.server.max_pending_requests", CALLS_BEFORE_BEGUN),
        ("grpc.server.max_pending_requests_hard_limit", 2 * CALLS_BEFORE_BEGUN),
        # Clients ping every minute, so that a vanished host is noticed on either side.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 20_000),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.max_connection_idle_ms", round(connection_idle_s * 1e3)),
        # Those that do not even say what they speak.
        ("grpc.server_handshake_timeout_ms", round(min(connection_idle_s, HANDSHAKE_S) * 1e3)),
    )
