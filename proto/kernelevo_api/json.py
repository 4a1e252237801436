"""From the plain values of `kernelevo_api.types` to what `json.dumps` takes, and back.

Enums are their values, times ISO 8601 in UTC, durations seconds; absent and empty fields are left out. Numbers that JSON does not
have are the texts "NaN", "Infinity" and "-Infinity", as in protobuf's own mapping. Used by stores and by `--json`.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import types as pytypes
import typing
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

T = TypeVar("T")

_HINTS: dict[type[Any], dict[str, Any]] = {}
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_json(value: Any) -> dict[str, Any]:
    """A dictionary that `json.dumps(..., allow_nan=False)` takes."""
    return {
        field.name: _plain(item)
        for field in dataclasses.fields(value)
        if (item := getattr(value, field.name)) is not None and item != ()
    }


def from_json(data: Any, kind: type[T]) -> T:
    """The `kind` that `to_json` wrote. Fields not known here are ignored: a newer version may have written them.

    Raises:
        ValueError: the data is not what `to_json` writes for this type.
    """
    if not isinstance(data, dict):
        raise ValueError(f"{kind.__name__}: not an object")
    hints = _hints(kind)
    try:
        return kind(**{name: _value(item, hints[name]) for name, item in data.items() if name in hints})
    except (TypeError, KeyError) as error:
        raise ValueError(f"{kind.__name__}: {error}") from error


def _plain(item: Any) -> Any:
    if dataclasses.is_dataclass(item):
        return to_json(item)
    if isinstance(item, tuple):
        return [_plain(one) for one in item]
    if isinstance(item, enum.Enum):
        return item.value
    if isinstance(item, datetime):
        return item.astimezone(UTC).isoformat()
    if isinstance(item, timedelta):
        return item.total_seconds()
    if isinstance(item, float) and not math.isfinite(item):
        return "NaN" if math.isnan(item) else "Infinity" if item > 0 else "-Infinity"
    return item


def _value(item: Any, hint: Any) -> Any:
    if isinstance(hint, pytypes.UnionType):
        if item is None:
            return None
        (hint,) = (one for one in hint.__args__ if one is not pytypes.NoneType)
    if typing.get_origin(hint) is tuple:
        if not isinstance(item, list):
            raise ValueError(f"expected a list, got {type(item).__name__}")
        inner = typing.get_args(hint)[0]
        return tuple(_value(one, inner) for one in item)
    if dataclasses.is_dataclass(hint):
        return from_json(item, typing.cast("type[Any]", hint))
    if hint is datetime:
        return datetime.fromisoformat(item)
    if hint is timedelta:
        return timedelta(seconds=item)
    if hint is float:
        return _NOT_FINITE[item] if isinstance(item, str) else float(item)
    if issubclass(hint, enum.Enum):
        return hint(item)
    if not isinstance(item, hint):
        raise ValueError(f"expected {hint.__name__}, got {type(item).__name__}")
    return item


def _hints(kind: type[Any]) -> dict[str, Any]:
    hints = _HINTS.get(kind)
    if hints is None:
        hints = _HINTS[kind] = typing.get_type_hints(kind)
    return hints
