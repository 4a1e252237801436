"""Several evaluators as one: found, watched, chosen by load, and replaced when they are lost.

Each evaluator schedules its own devices; the pool only chooses where a request goes, and sends it elsewhere under the same
`request_id` where that host is lost. No queue across evaluators, no membership, no leader.

    async with EvaluatorPool.of(["gpu1:50051", "evaluators.gpu.svc:50051", "file:hosts.txt"]) as pool:
        await pool.connect(device=parse_requirement("kind=cuda,memory=80GiB"))
        report = await pool.register(Problem(source=text))
        evaluation = await pool.evaluate(
            EvaluateRequest(problem_digest=report.problem_digest, candidate=Candidate(source=kernel))
        )
"""

from kernelevo_api.pool.devices import describe, fits, parse_requirement
from kernelevo_api.pool.discovery import Place, sources_of
from kernelevo_api.pool.endpoint import Endpoint, EvaluatorTransport, PoolSettings
from kernelevo_api.pool.errors import NoEvaluator, NotEvaluated
from kernelevo_api.pool.notices import Change, Notice
from kernelevo_api.pool.pool import EvaluatorPool

__all__ = [
    "Change",
    "Endpoint",
    "EvaluatorPool",
    "EvaluatorTransport",
    "NoEvaluator",
    "NotEvaluated",
    "Notice",
    "Place",
    "PoolSettings",
    "describe",
    "fits",
    "parse_requirement",
    "sources_of",
]
