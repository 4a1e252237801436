"""What openevolve calls for each program: the program goes to a KernelEvo evaluator, its verdict comes back as metrics.

The program never runs in this process. Settings come from `evaluator_args` in config.yaml, or from `--evaluator-args`.
"""

import functools
import socket
from pathlib import Path

from kernelevo_api.channel import Tls
from kernelevo_api.client import EvaluatorClient
from kernelevo_api.types import Candidate, Effort, EvaluateRequest, Evaluation, Problem, Verdict
from openevolve.evaluation_result import EvaluationResult

# Nothing was found out about the program. To raise has openevolve ask again; a score of zero would be held against the program.
UNDECIDED = {Verdict.TIMING_DISPUTED, Verdict.EVALUATOR_FAULT, Verdict.CANCELLED}


@functools.cache
def client(address: str, token_file: str | None, tls_root: str | None) -> EvaluatorClient:
    """One connection for each worker of openevolve; its threads share it."""
    token = Path(token_file).expanduser().read_text(encoding="utf-8").strip() if token_file else None
    root = Path(tls_root).expanduser().read_bytes() if tls_root else None
    encrypted = root is not None or (token is not None and not address.startswith("unix:"))
    return EvaluatorClient(
        address,
        client_id=f"openevolve-{socket.gethostname()}",
        token=token,
        tls=Tls(root_certificates=root) if encrypted else None,
    )


def evaluate(
    program_path: str,
    address: str = "unix:/tmp/kernelevo.sock",
    problem: str = "../softmax/problem.py",
    effort: str = "screen",
    timeout_s: float = 540.0,
    token_file: str | None = None,
    tls_root: str | None = None,
) -> EvaluationResult:
    """Have one program judged.

    Args:
        program_path: where openevolve wrote the program, a module that defines `ModelNew`.
        address: of the evaluator, `unix:PATH` or `host:port`.
        problem: the reference in KernelBench form; a relative path begins at this folder.
        effort: "screen" while searching; measure what is found with "final".
        timeout_s: of the whole call, the evaluator's queue included. Less than openevolve's own, so that the evaluator
            hears of the end and stops the work.
        token_file: file with the token, where the evaluator asks for one.
        tls_root: PEM file of the CA that the evaluator's certificate is checked by; the system's, where a token is given alone.

    Raises:
        kernelevo_api.errors.EvaluatorError: it was not evaluated, which says nothing about the program.
    """
    source = (Path(__file__).parent / problem).read_text(encoding="utf-8")
    request = EvaluateRequest(
        problem=Problem(source=source, name=Path(problem).parent.name),
        candidate=Candidate(source=Path(program_path).read_text(encoding="utf-8")),
        effort=Effort(effort),
    )
    evaluation = client(address, token_file, tls_root).evaluate(request, timeout=timeout_s)
    if evaluation.verdict in UNDECIDED:
        raise RuntimeError(f"{evaluation.verdict.value}: {evaluation.message}")
    return EvaluationResult(metrics=metrics(evaluation), artifacts=feedback(evaluation))


def metrics(evaluation: Evaluation) -> dict[str, float]:
    """Scores: the low end of the speedup's interval, so that luck in measuring is no merit; zero unless every check passed."""
    speedup = evaluation.timing.speedup if evaluation.timing is not None else None
    if evaluation.verdict is not Verdict.PASSED or speedup is None:
        return {"combined_score": 0.0, "speedup": 0.0}
    return {"combined_score": speedup.low, "speedup": speedup.value}


def feedback(evaluation: Evaluation) -> dict[str, str]:
    """What the next prompt shows of this program's verdict."""
    found = {"verdict": evaluation.verdict.value, "message": evaluation.message}
    if evaluation.error is not None:
        found["traceback"] = evaluation.error.traceback
    if evaluation.build is not None and evaluation.build.diagnostics:
        found["compiler"] = "\n".join(f"{one.message}\n{one.excerpt}" for one in evaluation.build.diagnostics[:3])
    return {name: text for name, text in found.items() if text}
