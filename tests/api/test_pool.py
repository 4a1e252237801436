"""The pool's choices: what it sends where, what it sends again, and what it gives up."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from kernelevo_api.errors import (
    ContractViolation,
    DeadlineExceeded,
    Draining,
    EvaluatorFault,
    QueueFull,
    RequestIdReused,
    TooLarge,
    Unauthenticated,
    Unreachable,
)
from kernelevo_api.pool import Change, Endpoint, EvaluatorPool, NoEvaluator, NotEvaluated, Notice, PoolSettings
from kernelevo_api.types import (
    Candidate,
    Capabilities,
    Device,
    DeviceKind,
    DeviceRequirement,
    EvaluateRequest,
    Evaluation,
    Problem,
    ProblemReport,
    Progress,
    QueueState,
    Stage,
    Verdict,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

QUICK = PoolSettings(probe_s=0.02, longest_probe_s=0.02, rest_s=0.02, refresh_s=0.05)
GIB = 1 << 30


class Evaluator:
    """One evaluator at the process boundary: answers what it is told to, or does what the next script says."""

    def __init__(self, *names: str, lanes: int = 1, memory: int = 80 * GIB, instance: str = "") -> None:
        self.devices = tuple(
            Device(id=str(n), kind=DeviceKind.CUDA, name=name, architecture="sm_90", memory_bytes=memory, healthy=True)
            for n, name in enumerate(names or ("H200",))
        )
        self.lanes = lanes
        self.instance = instance
        self.life = 0
        self.scripts: list[Exception | Callable[..., Any]] = []
        """What the next evaluations do instead of passing."""
        self.requests: list[EvaluateRequest] = []
        self.problems: list[Problem] = []
        self.refuses: Exception | None = None
        """What it answers to any problem."""
        self.down = False
        self.health: asyncio.Queue[bool | Exception] = asyncio.Queue()
        self.hold: asyncio.Event | None = None

    async def get_capabilities(self) -> Capabilities:
        if self.down:
            raise Unreachable("nobody at home")
        return Capabilities(
            devices=self.devices,
            instance_id=self.instance,
            life_id=str(self.life),
            queue=QueueState(lanes=self.lanes, capacity=64, capacity_per_client=32),
        )

    async def register_problem(
        self,
        problem: Problem,
        *,
        accept_refused: bool = False,
        with_seeds: bool = False,
        on_progress: object = None,
    ) -> ProblemReport:
        if self.down:
            raise Unreachable("nobody at home")
        if self.refuses is not None:
            raise self.refuses
        self.problems.append(problem)
        return ProblemReport(problem_digest="d")

    async def evaluate(
        self, request: EvaluateRequest, *, on_progress: Callable[[Progress], None] | None = None
    ) -> Evaluation:
        if self.down:
            raise Unreachable("nobody at home")
        self.requests.append(request)
        script = self.scripts.pop(0) if self.scripts else None
        if isinstance(script, Exception):
            raise script
        if script is not None:
            script(on_progress)
        if self.hold is not None:
            await self.hold.wait()
        return Evaluation(verdict=Verdict.PASSED, request_id=request.request_id)

    def dies_while_it_runs(self, on_progress: Callable[[Progress], None]) -> None:
        """And is started again."""
        self.life += 1
        lost_while_it_ran(on_progress)

    async def watch_health(self) -> AsyncIterator[bool]:
        if self.down:
            raise Unreachable("nobody at home")
        yield True
        while True:
            state = await self.health.get()
            if isinstance(state, Exception):
                raise state
            yield state

    async def close(self) -> None:
        pass


def lost_while_it_ran(on_progress: Callable[[Progress], None]) -> None:
    on_progress(Progress(stage=Stage.TIME))
    raise Unreachable("the connection broke")


def lost_while_it_waited(on_progress: Callable[[Progress], None]) -> None:
    on_progress(Progress(stage=Stage.QUEUE))
    raise Unreachable("the connection broke")


def a_pool(*evaluators: Evaluator, notices: list[Notice] | None = None, **options: Any) -> EvaluatorPool:
    endpoints = [Endpoint(name=f"e{number}", transport=one) for number, one in enumerate(evaluators)]
    return EvaluatorPool(
        endpoints, settings=QUICK, on_notice=notices.append if notices is not None else None, **options
    )


def request(**fields: Any) -> EvaluateRequest:
    return EvaluateRequest(**{"problem_digest": "d", "candidate": Candidate(source="x"), **fields})


async def test_capacity_is_what_the_evaluators_say() -> None:
    pool = a_pool(Evaluator("H200", "H200", lanes=2), Evaluator("H200", lanes=1))
    await pool.connect()
    # One on each lane, and one behind it.
    assert pool.slots == 6


async def test_a_pool_of_one_of_them_fills_its_share_and_leaves_the_connection_open() -> None:
    big = Evaluator(*["H200"] * 4, lanes=4)
    pool = a_pool(big, Evaluator())
    await pool.connect()
    alone = pool.alone(pool.endpoints[0], lanes=1)
    await alone.connect(device=pool.device)
    assert [one.name for one in alone.endpoints] == [pool.endpoints[0].name] and alone.slots == 2
    await alone.evaluate(request())
    await pool.evaluate(request(), preferred=pool.endpoints[0].name)
    assert len(big.requests) == 2 and pool.slots == 10


async def test_work_goes_where_the_least_is_outstanding_for_its_size() -> None:
    big, small = Evaluator(*["H200"] * 4, lanes=4), Evaluator(lanes=1)
    pool = a_pool(big, small)
    await pool.connect()
    big.hold = small.hold = asyncio.Event()
    asked = [asyncio.create_task(pool.evaluate(request())) for _ in range(10)]
    while len(big.requests) + len(small.requests) < 10:
        await asyncio.sleep(0)
    assert (len(big.requests), len(small.requests)) == (8, 2)
    big.hold.set()
    await asyncio.gather(*asked)


async def test_many_clients_do_not_all_begin_with_the_first() -> None:
    evaluators = [Evaluator() for _ in range(4)]
    for _ in range(200):
        pool = a_pool(*evaluators)
        await pool.connect()
        await pool.evaluate(request())
    assert min(len(one.requests) for one in evaluators) > 10


async def test_speedups_of_different_kinds_of_device_are_kept_apart() -> None:
    notices: list[Notice] = []
    old, new, mixed = Evaluator("A100"), Evaluator("H200", "H200", lanes=2), Evaluator("A100", "H200", lanes=2)
    pool = a_pool(old, new, mixed, notices=notices)
    await pool.connect()
    assert pool.device is not None and pool.device.name == "H200"
    # Of the mixed one only the lane that fits counts.
    assert pool.slots == 4 + 2
    assert [(notice.change, notice.evaluator) for notice in notices] == [(Change.LEFT_OUT, "e0")]
    new.hold = mixed.hold = asyncio.Event()
    asked = [asyncio.create_task(pool.evaluate(request())) for _ in range(6)]
    while len(new.requests) + len(mixed.requests) < 6:
        await asyncio.sleep(0)
    new.hold.set()
    mixed.hold.set()
    await asyncio.gather(*asked)
    assert not old.requests and new.requests and mixed.requests
    assert {one.device for one in new.requests + mixed.requests} == {pool.device}


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        (DeviceRequirement(name="A100"), "A100"),
        (DeviceRequirement(minimum_memory_bytes=100 * GIB), "H200"),
        (DeviceRequirement(kind=DeviceKind.CUDA, architecture="sm_90", minimum_memory_bytes=30 * GIB), "A100"),
    ],
)
async def test_the_device_that_is_asked_for_is_used(wanted: DeviceRequirement, name: str) -> None:
    pool = a_pool(Evaluator("A100", "A100", lanes=2, memory=40 * GIB), Evaluator("H200", memory=141 * GIB))
    await pool.connect(device=wanted)
    assert pool.device is not None and pool.device.name == name
    assert pool.device.minimum_memory_bytes == wanted.minimum_memory_bytes
    assert len(pool.endpoints) == 1


async def test_a_device_that_nobody_has_is_refused_at_once() -> None:
    pool = a_pool(Evaluator())
    with pytest.raises(NoEvaluator, match="e0: it has no healthy device that is B200"):
        await pool.connect(device=DeviceRequirement(name="B200"))
    pool = a_pool(Evaluator())
    await pool.connect()
    with pytest.raises(NotEvaluated, match="no evaluator has a healthy device that is B200") as raised:
        await pool.evaluate(request(device=DeviceRequirement(name="B200")))
    assert raised.value.reason == "unsupported"


async def test_a_lost_evaluator_is_replaced_under_the_same_request_id_and_named() -> None:
    notices: list[Notice] = []
    one, two = Evaluator(), Evaluator()
    pool = a_pool(one, two, notices=notices)
    await pool.connect()
    one.scripts = two.scripts = [lost_while_it_ran]
    evaluation = await pool.evaluate(request(request_id="r"))
    assert evaluation.verdict is Verdict.PASSED
    assert [len(one.requests), len(two.requests)] == [1, 1]
    assert one.requests[0] == two.requests[0] and one.requests[0].request_id == "r"
    (lost,) = notices
    assert lost.change is Change.LOST and "connection broke" in str(lost)


async def test_a_request_goes_back_to_where_it_was_sent_before() -> None:
    evaluators = [Evaluator() for _ in range(8)]
    pool = a_pool(*evaluators)
    await pool.connect()
    await pool.evaluate(request(), preferred="e5")
    assert len(evaluators[5].requests) == 1


async def test_what_takes_evaluators_down_is_given_up_before_it_took_them_all() -> None:
    evaluators = [Evaluator() for _ in range(5)]
    for one in evaluators:
        one.scripts = [lost_while_it_ran]
    pool = a_pool(*evaluators)
    await pool.connect()
    with pytest.raises(NotEvaluated, match="lost while they ran it") as raised:
        await pool.evaluate(request())
    assert raised.value.reason == "evaluators_lost"
    assert sum(len(one.requests) for one in evaluators) == 3


@pytest.mark.parametrize("count", [1, 2])
async def test_what_takes_one_or_two_evaluators_down_again_and_again_is_given_up_too(count: int) -> None:
    evaluators = [Evaluator(instance=str(number)) for number in range(count)]
    for one in evaluators:
        one.scripts = [one.dies_while_it_runs for _ in range(9)]
    pool = a_pool(*evaluators)
    await pool.connect()
    with pytest.raises(NotEvaluated, match="lost while they ran it") as raised:
        await pool.evaluate(request())
    assert raised.value.reason == "evaluators_lost"
    assert sum(len(one.requests) for one in evaluators) == QUICK.lives


async def test_a_connection_that_breaks_is_no_evaluator_that_is_lost_again() -> None:
    one = Evaluator()
    one.scripts = [lost_while_it_ran for _ in range(9)]
    pool = a_pool(one)
    await pool.connect()
    assert (await pool.evaluate(request())).verdict is Verdict.PASSED
    assert len(one.requests) == 10


async def test_being_lost_while_it_waited_says_nothing_about_a_candidate() -> None:
    evaluators = [Evaluator() for _ in range(5)]
    for one in evaluators[:4]:
        one.scripts = [lost_while_it_waited]
    pool = a_pool(*evaluators)
    await pool.connect()
    assert (await pool.evaluate(request())).verdict is Verdict.PASSED


async def test_a_full_queue_is_left_alone_for_as_long_as_it_asks() -> None:
    one, two = Evaluator(), Evaluator()
    pool = a_pool(one, two)
    await pool.connect()
    one.scripts = [QueueFull("full", retry_delay=timedelta(seconds=30))]
    for _ in range(4):
        await pool.evaluate(request(), preferred="e0")
    assert (len(one.requests), len(two.requests)) == (1, 4)


async def test_where_all_are_full_a_request_waits_without_alarm() -> None:
    waits: list[str] = []
    one = Evaluator()
    pool = a_pool(one, on_wait=waits.append)
    await pool.connect()
    one.scripts = [QueueFull("full", retry_delay=timedelta(seconds=0.05))] * 3
    loop = asyncio.get_running_loop()
    began = loop.time()
    await pool.evaluate(request())
    assert loop.time() - began >= 0.15 and len(one.requests) == 4 and not waits


async def test_an_evaluators_own_fault_is_retried_elsewhere_and_not_for_ever() -> None:
    one, two = Evaluator(), Evaluator()
    pool = a_pool(one, two)
    await pool.connect()
    one.scripts = [EvaluatorFault("the device fell off the bus")]
    await pool.evaluate(request(), preferred="e0")
    assert (len(one.requests), len(two.requests)) == (1, 1)
    one.scripts = [EvaluatorFault("again")] * 9
    two.scripts = [EvaluatorFault("again")] * 9
    with pytest.raises(NotEvaluated) as raised:
        await pool.evaluate(request())
    assert raised.value.reason == "evaluator_fault"
    assert len(one.requests) + len(two.requests) == 2 + 3


async def test_an_evaluator_that_keeps_failing_is_set_aside() -> None:
    notices: list[Notice] = []
    bad, good = Evaluator(), Evaluator()
    pool = EvaluatorPool(
        [Endpoint(name="bad", transport=bad), Endpoint(name="good", transport=good)],
        settings=PoolSettings(rest_s=60.0),
        on_notice=notices.append,
    )
    await pool.connect()
    bad.scripts = [EvaluatorFault("no driver")] * 99
    for _ in range(10):
        await pool.evaluate(request(), preferred="bad")
    assert len(bad.requests) == 3 and len(good.requests) == 10
    assert [(notice.change, notice.evaluator) for notice in notices] == [(Change.LOST, "bad")]


async def test_one_that_drains_gets_nothing_more() -> None:
    one, two = Evaluator(), Evaluator()
    pool = a_pool(one, two)
    await pool.connect()
    one.scripts = [Draining("shutting down")]
    for _ in range(3):
        await pool.evaluate(request(), preferred="e0")
    assert (len(one.requests), len(two.requests)) == (1, 3)


async def test_what_one_evaluator_is_too_small_for_another_may_take() -> None:
    one, two = Evaluator(), Evaluator()
    pool = a_pool(one, two)
    await pool.connect()
    one.scripts = [TooLarge("too large")]
    assert (await pool.evaluate(request(), preferred="e0")).verdict is Verdict.PASSED
    one.scripts, two.scripts = [TooLarge("too large")], [TooLarge("too large")]
    with pytest.raises(NotEvaluated) as raised:
        await pool.evaluate(request())
    assert raised.value.reason == "too_large"


@pytest.mark.parametrize("error", [RequestIdReused("other content"), ContractViolation("nonsense")])
async def test_what_makes_no_sense_is_given_up(error: Exception) -> None:
    one = Evaluator()
    pool = a_pool(one)
    await pool.connect()
    one.scripts = [error] * 9
    with pytest.raises(NotEvaluated):
        await pool.evaluate(request())
    assert len(one.requests) <= 3


async def test_a_wrong_token_ends_it_only_where_no_other_evaluator_takes_us() -> None:
    one, two = Evaluator(), Evaluator()
    pool = a_pool(one, two)
    await pool.connect()
    one.scripts = [Unauthenticated("no such token")]
    await pool.evaluate(request(), preferred="e0")
    two.scripts = [Unauthenticated("no such token")]
    with pytest.raises(Unauthenticated):
        await pool.evaluate(request(), preferred="e1")


async def test_while_none_answers_a_request_waits_and_says_so() -> None:
    waits: list[str] = []
    one = Evaluator()
    pool = a_pool(one, on_wait=waits.append)
    await pool.connect()
    one.down = True
    asked = [asyncio.create_task(pool.evaluate(request())) for _ in range(3)]
    while not waits:
        await asyncio.sleep(0.01)
    one.down = False
    await asyncio.gather(*asked)
    assert len(waits) == 2 and "nobody at home" in waits[0] and not waits[1]


async def test_patience_and_deadlines_end_the_wait() -> None:
    one = Evaluator()
    pool = a_pool(one)
    await pool.connect()
    one.down = True
    with pytest.raises(NoEvaluator, match="nobody at home"):
        await pool.evaluate(request(), patience_s=0.05)
    with pytest.raises(DeadlineExceeded):
        await pool.evaluate(request(), timeout=0.05)


async def test_health_is_followed() -> None:
    notices: list[Notice] = []
    one, two = Evaluator(), Evaluator()
    pool = a_pool(one, two, notices=notices)

    async def until(change: Change, count: int = 1) -> None:
        async with asyncio.timeout(5):
            while sum(notice.change is change for notice in notices) < count:
                await asyncio.sleep(0.005)

    await pool.connect()
    async with pool:
        await asyncio.sleep(0)
        one.health.put_nowait(False)
        await until(Change.LOST)
        # It answers all the time, and still is not asked while it says that it takes no work.
        await asyncio.sleep(0.1)
        assert pool.slots == 2 and pool.choose("e0") == "e1"
        one.health.put_nowait(True)
        await until(Change.RETURNED)
        assert pool.slots == 4
        two.down = True
        two.health.put_nowait(Unreachable("the connection broke"))
        await until(Change.LOST, 2)
        two.down = False
        await until(Change.RETURNED, 2)
        assert pool.slots == 4


async def test_a_server_without_a_health_service_is_used_all_the_same() -> None:
    one = Evaluator()
    one.health.put_nowait(ContractViolation("UNIMPLEMENTED"))
    pool = a_pool(one)
    await pool.connect()
    async with pool:
        await asyncio.sleep(0.05)
        assert (await pool.evaluate(request())).verdict is Verdict.PASSED


async def test_one_that_was_away_at_first_joins() -> None:
    notices: list[Notice] = []
    one, two = Evaluator(instance="a"), Evaluator(instance="b")
    two.down = True
    pool = a_pool(one, two, notices=notices)
    await pool.connect()
    async with pool:
        assert len(pool.endpoints) == 1
        two.down = False
        async with asyncio.timeout(5):
            while len(pool.endpoints) < 2:
                await asyncio.sleep(0.005)
    assert [notice.change for notice in notices] == [Change.LOST, Change.JOINED]


async def test_another_name_of_a_lost_evaluator_takes_its_place() -> None:
    one, again = Evaluator(instance="a"), Evaluator(instance="a")
    pool = a_pool(one, again)
    await pool.connect()
    assert [endpoint.name for endpoint in pool.endpoints] == ["e0"]
    one.scripts = [lost_while_it_waited]
    await pool.evaluate(request())
    assert (len(one.requests), len(again.requests)) == (1, 1)
