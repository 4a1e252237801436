"""Which device a request may run on."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from kernelevo_api.types import DeviceKind, DeviceRequirement

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kernelevo_api.types import Device

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_WORDS = ("kind", "name", "architecture", "memory")


def fits(device: Device, wanted: DeviceRequirement | None) -> bool:
    """Whether a device is what is asked for. Empty fields of the requirement do not matter."""
    return wanted is None or (
        (wanted.kind is None or device.kind is wanted.kind)
        and (not wanted.name or device.name == wanted.name)
        and (not wanted.architecture or device.architecture == wanted.architecture)
        and device.memory_bytes >= wanted.minimum_memory_bytes
    )


def describe(wanted: DeviceRequirement | None) -> str:
    """A requirement in words, e.g. "NVIDIA H200 sm_90 with 80 GiB"."""
    if wanted is None:
        return "any device"
    words = [wanted.name or (wanted.kind.value if wanted.kind else ""), wanted.architecture]
    if wanted.minimum_memory_bytes:
        words.append(f"with {wanted.minimum_memory_bytes / (1 << 30):g} GiB")
    return " ".join(word for word in words if word) or "any device"


def parse_requirement(text: str) -> DeviceRequirement:
    """A requirement from text such as `kind=cuda,architecture=sm_90,memory=80GiB,name=NVIDIA H200`.

    Sizes are in bytes, or in KiB, MiB, GiB and TiB by their letter.

    Raises:
        ValueError: not of this form; the message says what is.
    """
    wanted = DeviceRequirement()
    for part in text.split(","):
        word, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value or word not in _WORDS:
            raise ValueError(f"{part.strip()!r} is no device requirement; write {', '.join(f'{w}=…' for w in _WORDS)}")
        match word:
            case "kind":
                if value not in {kind.value for kind in DeviceKind}:
                    raise ValueError(
                        f"{value!r} is no kind of device; it is {' or '.join(k.value for k in DeviceKind)}"
                    )
                wanted = replace(wanted, kind=DeviceKind(value))
            case "name":
                wanted = replace(wanted, name=value)
            case "architecture":
                wanted = replace(wanted, architecture=value)
            case _:
                size = _SIZE.fullmatch(value)
                if size is None:
                    raise ValueError(f"{value!r} is no size; write e.g. 80GiB")
                wanted = replace(wanted, minimum_memory_bytes=int(float(size[1]) * _UNITS[size[2].lower()]))
    return wanted


def one_kind(
    offers: Iterable[tuple[int, tuple[Device, ...]]], wanted: DeviceRequirement | None
) -> DeviceRequirement | None:
    """The one kind of device with the most lanes among those that fit, so that speedups are of one kind; `None` where none fits.

    Args:
        offers: lanes and devices of each evaluator; among equals the first counts.
    """
    lanes: dict[DeviceRequirement, float] = {}
    for count, devices in offers:
        for device in devices:
            if device.healthy and fits(device, wanted):
                kind = DeviceRequirement(
                    kind=device.kind,
                    name=device.name,
                    architecture=device.architecture,
                    minimum_memory_bytes=wanted.minimum_memory_bytes if wanted is not None else 0,
                )
                lanes[kind] = lanes.get(kind, 0.0) + count / len(devices)
    return max(lanes, key=lambda kind: lanes[kind]) if lanes else None
