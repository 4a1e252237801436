"""The conformance kit: what the contract promises, as checks that every backend runs.

A check takes a `Kit` and raises AssertionError where the backend does not conform. `ISOLATION` names those that only a
backend which isolates can pass. Checks look from both sides where they can: what the program reports is compared with what
is seen from outside. The kit must not know any backend. One module for each family of guarantees.
"""

from __future__ import annotations

from kernelevo_sandbox.conformance import crossing, endings, freezing, isolation, limits
from kernelevo_sandbox.conformance.kit import CHECKS, ISOLATION, Kit

__all__ = ["CHECKS", "ISOLATION", "Kit", "crossing", "endings", "freezing", "isolation", "limits"]
