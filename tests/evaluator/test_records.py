"""What is recorded and how it is found again."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
import sqlalchemy as sa
from scripted_executor import PROBLEM

from kernelevo_api import errors
from kernelevo_api.client import problem_digest
from kernelevo_api.evaluator.v1 import evaluator_pb2 as pb
from kernelevo_api.evaluator.v1 import evaluator_pb2_grpc
from kernelevo_api.types import (
    Problem,
    Verdict,
)

pytestmark = pytest.mark.timeout(120)

DIGEST = problem_digest(PROBLEM)


class TestRecords:
    async def test_pages_newest_first(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        for number in range(5):
            await client.evaluate(make_request(f"passed {number}"))
        other = Problem(source=PROBLEM + "# other\n")
        await client.evaluate(make_request("crashed", problem=other))
        everything = [one async for one in client.list_evaluations(page_size=2)]
        assert len(everything) == 6
        assert everything[0].verdict is Verdict.CRASHED
        assert sorted(everything, key=lambda one: one.created_at, reverse=True) == everything
        assert len([one async for one in client.list_evaluations(DIGEST, page_size=2)]) == 5
        assert [one async for one in client.list_evaluations("0" * 64)] == []

    async def test_bad_pages_name_their_field(self, host: Any) -> None:
        await host.start()
        async with grpc.aio.insecure_channel(host.address) as channel:
            stub: Any = evaluator_pb2_grpc.EvaluatorServiceStub(channel)
            for field, message in (
                ("page_size", pb.ListEvaluationsRequest(page_size=-1)),
                ("page_size", pb.ListEvaluationsRequest(page_size=1001)),
                ("page_token", pb.ListEvaluationsRequest(page_token="x")),
                ("page_token", pb.ListEvaluationsRequest(page_token="W10=")),
                ("key", pb.GetEvaluationRequest()),
            ):
                method = stub.GetEvaluation if field == "key" else stub.ListEvaluations
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await method(message)
                error = errors.from_rpc_error(caught.value, host.address)
                assert isinstance(error, errors.InvalidRequest)
                assert [one.field for one in error.violations] == [field]

    async def test_capabilities(self, host: Any) -> None:
        client = await host.start(queue_capacity=9, queue_capacity_per_client=3)
        found = await client.get_capabilities()
        assert found.api_version == "v1"
        assert found.devices[0].name == "scripted"
        assert (found.queue.lanes, found.queue.capacity, found.queue.capacity_per_client) == (1, 9, 3)
        await host.stop()
        again = await (await host.start()).get_capabilities()
        assert again.instance_id == found.instance_id != ""

    async def test_a_store_that_cannot_be_written_loses_nothing(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        asked = make_request("passed hold")
        task = host.ask(asked, client)
        await host.executor.until("started", 1)
        store = host.server._store
        with store._writer.connect() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        # Every connection of the pool: a limit on the file's size is what a full disk looks like to SQLite.
        limit = [f"PRAGMA max_page_count={pages}"]

        def full(connection: Any, *_: Any) -> None:
            for statement in limit:
                connection.execute(statement)

        sa.event.listen(store._engine, "checkout", full)
        blob = "x" * 200_000
        with pytest.raises(errors.StoreUnavailable):
            await client.evaluate(make_request("passed", extra=f"# {blob}"))
        host.executor.release()
        limit[:] = ["PRAGMA query_only=1"]
        with pytest.raises(errors.StoreUnavailable):
            await task
        limit[:] = ["PRAGMA query_only=0", "PRAGMA max_page_count=1000000"]
        assert (await client.evaluate(asked)).verdict is Verdict.PASSED
        assert host.executor.started == ["passed hold"]
