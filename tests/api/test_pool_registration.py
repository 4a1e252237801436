"""What a pool makes of problems: registered everywhere, and refused in the words of who refused them."""

from __future__ import annotations

import pytest
from tests.api.test_pool import Evaluator, a_pool, request

from kernelevo_api.errors import (
    CallRefused,
    EvaluatorFault,
    FieldViolation,
    InvalidRequest,
    ProblemRefused,
    TooLarge,
    Unauthenticated,
    UnknownProblem,
    Unsupported,
)
from kernelevo_api.pool import NoEvaluator, Notice
from kernelevo_api.types import Problem


async def test_a_problem_is_registered_where_it_is_not_known() -> None:
    one, two = Evaluator(), Evaluator()
    two.down = True
    pool = a_pool(one, two)
    await pool.connect()
    problem = Problem(source="p")
    report = await pool.register(problem)
    assert report.problem_digest == "d" and one.problems == [problem]
    two.down = False
    digest = next(iter(pool.endpoints[0].registered))
    one.down = True
    await pool.evaluate(request(problem_digest=digest))
    assert two.problems == [problem]
    # A store that was wiped says that it does not know it.
    two.scripts = [UnknownProblem("never heard of it")]
    await pool.evaluate(request(problem_digest=digest))
    assert two.problems == [problem, problem]


async def test_an_evaluator_that_refuses_what_others_took_is_left_out_of_it() -> None:
    notices: list[Notice] = []
    one, two = Evaluator(), Evaluator()
    two.refuses = ProblemRefused("its outputs are constant here")
    pool = a_pool(one, two, notices=notices)
    await pool.connect()
    await pool.register(Problem(source="p"))
    digest = next(iter(pool.endpoints[0].registered))
    for _ in range(4):
        await pool.evaluate(request(problem_digest=digest), preferred="e1")
    assert len(one.requests) == 4 and [notice.evaluator for notice in notices] == ["e1"]
    one.refuses = ProblemRefused("its outputs are constant here")
    with pytest.raises(ProblemRefused):
        await pool.register(Problem(source="q"))


@pytest.mark.parametrize("kind", [InvalidRequest, TooLarge, Unsupported, ProblemRefused])
async def test_what_is_wrong_with_a_problem_arrives_as_it_was_said(kind: type[CallRefused]) -> None:
    one, two = Evaluator(), Evaluator()
    said = kind("problem.name is longer than 1000 characters", violations=[FieldViolation("problem.name", "too long")])
    one.refuses, two.refuses = said, EvaluatorFault("its disk is full")
    pool = a_pool(one, two)
    await pool.connect()
    with pytest.raises(kind) as raised:
        await pool.register(Problem(source="p"))
    assert raised.value is said
    assert pool.endpoints[0].up, "who refuses a problem is well"
    one.refuses = None
    assert (await pool.register(Problem(source="p"))).problem_digest == "d"


async def test_nobody_knows_us_or_nobody_is_well() -> None:
    one, two = Evaluator(), Evaluator()
    one.refuses = two.refuses = Unauthenticated("no such token")
    pool = a_pool(one, two)
    await pool.connect()
    with pytest.raises(Unauthenticated):
        await pool.register(Problem(source="p"))
    two.refuses = EvaluatorFault("its disk is full")
    with pytest.raises(NoEvaluator, match="its disk is full"):
        await pool.register(Problem(source="p"))
