"""Evaluations as messages and as JSON, of which the large parts are written once for the many answers that share them.

An answer out of the cache is an earlier evaluation with another id and time: timing, correctness, build and the rest are the very
same objects. They are most of its size, and of the work of writing it.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kernelevo_api.json import to_json
from kernelevo_api.types import Evaluation
from kernelevo_api.wire import to_message
from kernelevo_evaluator.newest import Newest

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelevo_api.evaluator.v1 import evaluator_pb2 as pb

T = TypeVar("T")

PARTS_KEPT = 512
"""Parts of which is kept how they are written: those of some 64 evaluations."""


def _large() -> tuple[str, ...]:
    """Fields of an evaluation that hold a value with fields of its own."""
    hints = typing.get_type_hints(Evaluation)
    return tuple(
        field.name
        for field in dataclasses.fields(Evaluation)
        if any(dataclasses.is_dataclass(kind) for kind in typing.get_args(hints[field.name]))
        and typing.get_origin(hints[field.name]) is not tuple
    )


_PARTS = _large()
_WITHOUT_PARTS: dict[str, Any] = dict.fromkeys(_PARTS)


class _Made(Generic[T]):
    """What was made of the newest few values. They are told apart by identity, and held for as long as that counts."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._made: Newest[int, tuple[Any, T]] = Newest(PARTS_KEPT)

    def of(self, value: Any) -> T:
        key = id(value)
        found = self._made.use(key)
        if found is None:
            found = self._made[key] = (value, self._make(value))
        return found[1]


class Written:
    """Writes evaluations. Belongs to one event loop."""

    def __init__(self) -> None:
        self._messages = _Made(to_message)
        self._texts = _Made(dump)

    def message(self, evaluation: Evaluation) -> pb.Evaluation:
        """As `to_message`."""
        if not evaluation.from_cache:
            return typing.cast("pb.Evaluation", to_message(evaluation))
        message = typing.cast("pb.Evaluation", to_message(dataclasses.replace(evaluation, **_WITHOUT_PARTS)))
        for name in _PARTS:
            part = getattr(evaluation, name)
            if part is not None:
                getattr(message, name).CopyFrom(self._messages.of(part))
        return message

    def text(self, evaluation: Evaluation) -> str:
        """JSON that `from_json` reads; of an object with the same fields as `to_json`'s."""
        if not evaluation.from_cache:
            return dump(evaluation)
        parts = [dump(dataclasses.replace(evaluation, **_WITHOUT_PARTS))[1:-1]]
        for name in _PARTS:
            part = getattr(evaluation, name)
            if part is not None:
                parts.append(f'"{name}":{self._texts.of(part)}')
        return f"{{{','.join(parts)}}}"


def dump(value: Any) -> str:
    """A plain value as JSON without spaces."""
    return json.dumps(to_json(value), allow_nan=False, separators=(",", ":"))
