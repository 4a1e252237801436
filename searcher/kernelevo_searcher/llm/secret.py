"""A string that must not be shown: an API key."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex

__all__ = ["Secret"]

_SHOWN = "***"


class Secret:
    """Holds a string that appears neither in `repr` nor in `str`, and refuses to be pickled or copied into a store.

    `reveal()` is the one way to the value; it is called where the value goes onto the wire and nowhere else.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself."""
        return self._value

    def redact(self, text: str) -> str:
        """`text` with every appearance of the value replaced: endpoints quote keys in their error messages."""
        return text.replace(self._value, _SHOWN) if self._value else text

    def __bool__(self) -> bool:
        return bool(self._value)

    def __repr__(self) -> str:
        return f"Secret({_SHOWN})"

    def __str__(self) -> str:
        return _SHOWN

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("a secret is not written down")
