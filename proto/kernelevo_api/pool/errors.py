"""What a pool raises beside the errors of a single evaluator."""

from __future__ import annotations


class NoEvaluator(Exception):
    """None of the evaluators can be used; the message names each with its reason, and says what to do."""


class NotEvaluated(Exception):
    """This request will not be carried out by anybody, however often it is sent."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        """A word for programs, e.g. "too_large", "evaluator_fault", "evaluators_lost"."""
