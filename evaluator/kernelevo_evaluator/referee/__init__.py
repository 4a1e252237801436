"""The trusted side of an evaluation: seeds, expected outputs, comparison, the outside clock, the verdict.

Imports torch, runs as a process of its own, one resident for each lane, and runs no user code. What it reads of a runner's
memory it copies first.
"""
