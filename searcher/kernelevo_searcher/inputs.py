"""Files that people name: reading them, and saying what is wrong with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelevo_api.types import Problem

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["BadInput", "read_candidate", "read_problem", "read_text"]

_LARGEST_SOURCE = 8 << 20


class BadInput(Exception):
    """A file or an option that cannot be used; the message says what is wrong with it."""


def _read_source(path: Path, what: str) -> str:
    if path.is_file() and path.suffix != ".py":
        raise BadInput(f"{what} {path} is not a Python file: its name must end in .py.")
    return read_text(path, what)


def read_text(path: Path, what: str) -> str:
    """What a text file holds.

    Raises:
        BadInput: it is none, or empty.
    """
    if not path.exists():
        raise BadInput(f"{what} {path} does not exist.")
    if path.is_dir():
        raise BadInput(f"{what} {path} is a folder; name the file in it.")
    try:
        if path.stat().st_size > _LARGEST_SOURCE:
            raise BadInput(
                f"{what} {path} is larger than {_LARGEST_SOURCE >> 20} MiB; it is hardly a text of a person's."
            )
        source = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{what} {path} is not UTF-8 text ({error.reason} at byte {error.start}).") from error
    except OSError as error:
        raise BadInput(f"{what} {path} cannot be read: {error.strerror}.") from error
    if not source.strip():
        raise BadInput(f"{what} {path} is empty.")
    return source


def read_problem(path: Path) -> Problem:
    """A problem from its file.

    Raises:
        BadInput: it is no file with Python in it.
    """
    name = path.parent.name if path.stem == "problem" and path.resolve().parent.name else path.stem
    return Problem(source=_read_source(path, "the problem"), name=name or path.resolve().parent.name)


def read_candidate(path: Path, what: str = "the candidate") -> str:
    """A candidate's source from its file.

    Raises:
        BadInput: it is no file with Python in it.
    """
    return _read_source(path, what)
