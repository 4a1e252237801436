"""The evaluators of a run: the ones that were named, as one pool, or one that is started for it."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from kernelevo_api.channel import RetryPolicy, Tls
from kernelevo_api.client import AsyncEvaluatorClient
from kernelevo_api.pool import Endpoint, EvaluatorPool
from kernelevo_searcher.embedded import EMBEDDED, EmbeddedEvaluator
from kernelevo_searcher.settings import SettingsInvalid

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from kernelevo_searcher.settings import SearcherSettings

__all__ = ["open_evaluators"]


@asynccontextmanager
async def open_evaluators(
    addresses: Sequence[str], settings: SearcherSettings, folder: Path
) -> AsyncIterator[EvaluatorPool]:
    """The named evaluators, or one started in `folder`; not connected yet.

    Raises:
        SettingsInvalid: one of the addresses cannot be used, or what the settings say of TLS and tokens.
        NoEvaluator: none was named, and none can be started here.
    """
    if addresses:
        pool = _named(addresses, settings)
        try:
            yield pool
        finally:
            await pool.close()
        return
    with EmbeddedEvaluator(folder) as embedded:
        # The pool retries, after a look at whether its process is there.
        async with AsyncEvaluatorClient(
            embedded.address, client_id=_client_id(), retry=RetryPolicy(queue_s=0.0, unavailable_s=0.0)
        ) as client:
            await embedded.wait_ready(client, settings.start_timeout_s)
            yield EvaluatorPool([Endpoint(name=EMBEDDED, transport=client)], revive=embedded.start)


def _named(addresses: Sequence[str], settings: SearcherSettings) -> EvaluatorPool:
    try:
        token = settings.token_file.read_text(encoding="utf-8").strip() if settings.token_file else None
        tls = None
        if settings.tls_root or settings.tls_certificate:
            tls = Tls(
                root_certificates=settings.tls_root.read_bytes() if settings.tls_root else None,
                private_key=settings.tls_key.read_bytes() if settings.tls_key else None,
                certificate_chain=settings.tls_certificate.read_bytes() if settings.tls_certificate else None,
            )
        return EvaluatorPool.of(addresses, client_id=_client_id(), token=token, tls=tls)
    except OSError as error:
        raise SettingsInvalid(f"{error.filename} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise SettingsInvalid(f"not an evaluator's address: {error}") from error


def _client_id() -> str:
    return f"kernelevo-{os.getpid()}"
