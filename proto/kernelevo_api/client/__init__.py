"""The typed client of an evaluator, for asyncio and for threads.

Both clients speak in the values of `kernelevo_api.types` and raise the errors of `kernelevo_api.errors`. They own the contract's
retries and nothing else: `UNAVAILABLE`, and `RESOURCE_EXHAUSTED` after its delay, under the same `request_id`; an unknown digest
is registered and the request sent again where the problem is known here.

    async with AsyncEvaluatorClient("unix:/run/user/1000/kernelevo/evaluator.sock") as client:
        report = await client.register_problem(Problem(source=text))
        evaluation = await client.evaluate(
            EvaluateRequest(problem_digest=report.problem_digest, candidate=Candidate(source=kernel))
        )
"""

from kernelevo_api.channel import RetryPolicy, Tls
from kernelevo_api.client.asynchronous import AsyncEvaluatorClient
from kernelevo_api.client.shared import problem_digest
from kernelevo_api.client.threaded import EvaluatorClient
from kernelevo_api.errors import EvaluatorError

__all__ = ["AsyncEvaluatorClient", "EvaluatorClient", "EvaluatorError", "RetryPolicy", "Tls", "problem_digest"]
