"""Who owns what outlives a process (control groups, containers, folders): a mark that tells a dead owner from a living one."""

from __future__ import annotations

import os
import re
from pathlib import Path

from kernelevo_sandbox.watchdog import start_time

MARK = r"n(\d+)-p(\d+)-t(\d+)"
"""What a mark looks like, as a regular expression."""


def mark() -> str:
    """This process's own mark: its pid namespace, pid and start time, which no other process ever has."""
    pid = os.getpid()
    return f"n{_pid_namespace()}-p{pid}-t{start_time(pid)}"


def known(text: str) -> bool:
    """Whether the owner of that mark can be looked up from here: it is one, of this pid namespace."""
    match = re.fullmatch(MARK, text)
    return match is not None and int(match.group(1)) == _pid_namespace()


def dead(text: str) -> bool:
    """Whether the owner of that mark is known to live no more. Not so where it cannot be known."""
    match = re.fullmatch(MARK, text)
    return match is not None and known(text) and start_time(int(match.group(2))) != int(match.group(3))


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino
