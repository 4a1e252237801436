"""What Nsight Compute wrote about a process, read strictly: its table of kernels, or why there is none.

The table comes out of the candidate's sandbox: advice to its author, and a count to hold beside the trace.
"""

from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import dataclass, field

from kernelevo_api.types import KernelCounters

TIME = "gpu__time_duration.sum"
SHARES = {
    "memory_share": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "compute_share": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "l2_hit_share": "lts__t_sector_hit_rate.pct",
}
REGISTERS = "launch__registers_per_thread"
METRICS = (TIME, *SHARES.values(), REGISTERS)
"""What Nsight Compute is asked for. Few: each pass over a kernel runs it again."""
MOST_KERNELS = 4096
"""Launches of one call that are read."""

_NAME = "Kernel Name"
_HEAD = re.compile(r'^"ID",', re.MULTILINE)
_REFUSED = re.compile(r"^==ERROR== (.{1,300})$", re.MULTILINE)
_NO_PERMISSION = "ERR_NVGPUCTRPERM"
_US = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What was counted in one call."""

    launches: int
    counters: tuple[KernelCounters, ...]
    """By kernel, the longest first."""
    trouble: str = ""
    """Why there is no table; empty where there is one."""


@dataclass(slots=True)
class _Sum:
    count: int = 0
    us: float = 0.0
    registers: int | None = None
    weighted: dict[str, float] = field(default_factory=dict)


def read_counters(output: str) -> Counted:
    """The table in what a profiled process and the profiler around it wrote."""
    head = _HEAD.search(output)
    if head is None:
        return Counted(launches=0, counters=(), trouble=_trouble(output))
    rows = _rows(output[head.start() :])
    header, units = rows[:2] if len(rows) > 1 else ([], [])
    if _NAME not in header or TIME not in header or len(set(header)) != len(header) or len(units) != len(header):
        return Counted(launches=0, counters=(), trouble="its table has another form than expected")
    columns = {name: number for number, name in enumerate(header)}
    scale = _US.get(units[columns[TIME]])
    sums: dict[str, _Sum] = {}
    launches = 0
    for row in rows[2 : 2 + MOST_KERNELS]:
        us = _number(row[columns[TIME]])
        if not row[0].isdigit() or scale is None or us is None:
            return Counted(launches=0, counters=(), trouble="its table has another form than expected")
        launches += 1
        _add(sums.setdefault(row[columns[_NAME]][:200], _Sum()), us * scale, row, columns)
    if not launches:
        return Counted(launches=0, counters=(), trouble="it saw no kernel")
    counters = sorted((_counters(name, one) for name, one in sums.items()), key=lambda one: -one.total_us)
    return Counted(launches=launches, counters=tuple(counters))


def _rows(text: str) -> list[list[str]]:
    """Lines of the table, from its head to the first line that has another number of fields."""
    rows: list[list[str]] = []
    for line in text.split("\n"):
        try:
            row = next(csv.reader(io.StringIO(line), strict=True), [])
        except csv.Error:
            break
        if not row or (rows and len(row) != len(rows[0])):
            break
        rows.append(row)
        if len(rows) > MOST_KERNELS + 2:
            break
    return rows


def _add(total: _Sum, us: float, row: list[str], columns: dict[str, int]) -> None:
    total.count += 1
    total.us += us
    for name, metric in SHARES.items():
        share = _number(row[columns[metric]]) if metric in columns else None
        if share is not None:
            total.weighted[name] = total.weighted.get(name, 0.0) + us * min(share, 100.0) / 100
    registers = _number(row[columns[REGISTERS]]) if REGISTERS in columns else None
    if registers is not None and registers < 1 << 16:
        total.registers = int(registers)


def _counters(name: str, total: _Sum) -> KernelCounters:
    shares = {key: value / total.us for key, value in total.weighted.items()} if total.us > 0 else {}
    return KernelCounters(kernel=name, count=total.count, total_us=total.us, registers=total.registers, **shares)


def _number(text: str) -> float | None:
    """A number as the profiler writes it, with commas between thousands; `None` for anything else."""
    if not re.fullmatch(r"[0-9][0-9,]{0,24}(\.[0-9]{1,12})?", text):
        return None
    value = float(text.replace(",", ""))
    return value if math.isfinite(value) and value < 1e15 else None


def _trouble(output: str) -> str:
    if _NO_PERMISSION in output:
        return (
            f"this host does not let the device's counters be read ({_NO_PERMISSION}): run the evaluator as root, or load the "
            "driver with NVreg_RestrictProfilingToAdminUsers=0"
        )
    said = _REFUSED.search(output)
    if said is not None:
        return said[1]
    if "bytes cut …" in output:
        return "it wrote more than is kept of a process' output"
    return "it saw no kernel" if "No kernels were profiled" in output else "it wrote no table"
