"""The processor as a device: what it is, and which languages run on it."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

from kernelevo_api.types import ArithmeticRate, CheckedOn, Device, DeviceKind, Language, LanguageSupport

if TYPE_CHECKING:
    from kernelevo_evaluator.messages.referee import MachineFacts


def cpu_languages(compiler: bool, triton: bool) -> tuple[LanguageSupport, ...]:
    """The languages that this host takes, with a compiler and with Triton or without."""
    supports = [
        LanguageSupport(
            language=Language.TORCH,
            device_kind=DeviceKind.CPU,
            checked_on=CheckedOn.DEVICE,
            notes="Plain torch operators.",
        )
    ]
    if compiler:
        supports.append(
            LanguageSupport(
                language=Language.CPP_INLINE,
                device_kind=DeviceKind.CPU,
                checked_on=CheckedOn.DEVICE,
                notes=(
                    'torch\'s load_inline. extern "C" functions with is_python_module=False and no_implicit_headers=True, '
                    "called through ctypes, build in a third of a second; torch's headers take half a minute."
                ),
            )
        )
    if triton:
        supports.append(
            LanguageSupport(
                language=Language.TRITON,
                device_kind=DeviceKind.CPU,
                checked_on=CheckedOn.INTERPRETER,
                notes="Under TRITON_INTERPRET=1: checked, not timed, never final.",
            )
        )
    return tuple(supports)


def cpu_device(name_of_lane: str, cpus: frozenset[int], facts: MachineFacts) -> Device:
    """The cores of one lane, with what its referee measured on them."""
    name, flags = platform.processor() or platform.machine(), ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
            elif key.strip() in ("flags", "Features"):
                wanted = ("avx2", "fma", "avx512f", "avx512bw", "amx_tile", "asimd", "sve")
                flags = " ".join(flag for flag in wanted if flag in value.split())
                break
    return Device(
        id=name_of_lane,
        kind=DeviceKind.CPU,
        name=name,
        architecture=f"{platform.machine()} {flags}".strip(),
        multiprocessors=len(cpus),
        l2_bytes=facts.cache_bytes,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        measured_bandwidth_gb_per_s=facts.copy_gb_per_s,
        measured_rates=tuple(ArithmeticRate(dtype=dtype, tflop_per_s=rate) for dtype, rate in facts.rates.items()),
        healthy=True,
        cpus=tuple(sorted(cpus)),
    )
