"""Connections on which nobody asks for anything are closed, and cost their clients nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest

from kernelevo_api.types import Verdict

pytestmark = pytest.mark.timeout(120)
SILENT = 100
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


async def test_a_connection_without_a_call_is_closed(host: Any, make_request: Any) -> None:
    client = await host.start(connection_idle_s=1.0)
    await client.wait_ready()
    path = host.address.removeprefix("unix:")
    silent = [await asyncio.open_unix_connection(path) for _ in range(SILENT)]
    for _, writer in silent[::2]:
        writer.write(PREFACE[:-4])  # and then nothing more

    async def ended(reader: asyncio.StreamReader) -> None:
        while await reader.read(4096):
            pass

    try:
        async with asyncio.timeout(60):
            await asyncio.gather(*(ended(reader) for reader, _ in silent))
    finally:
        for _, writer in silent:
            writer.close()

    # One that speaks, and has nothing to ask, is told to go; its next call goes over another.
    async with grpc.aio.insecure_channel(host.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        await channel.channel_ready()
        async with asyncio.timeout(60):
            await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        assert channel.get_state() is not grpc.ChannelConnectivity.READY
        await channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
    assert (await client.evaluate(make_request())).verdict is Verdict.PASSED


async def test_a_call_keeps_its_connection(host: Any, make_request: Any) -> None:
    await host.start(connection_idle_s=0.2)
    running = host.ask(make_request("passed hold"))
    await host.executor.until("started", 1)
    await asyncio.sleep(1.5)  # Several times as long as an idle connection has.
    host.executor.release()
    assert (await running).verdict is Verdict.PASSED
    assert len(host.executor.started) == 1
