"""Built objects, kept in a folder under the digest of all that went into them."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import msgspec

from kernelevo_api.types import Diagnostic, KernelResources  # noqa: TC001 - msgspec resolves the fields' types at run time

if TYPE_CHECKING:
    from pathlib import Path

CACHE_BYTES = 1 << 30
"""Size of the folder beyond which the objects that were used longest ago are dropped."""


class Notes(msgspec.Struct, frozen=True):
    """What a build said beside its object: kept with it, since a cached object is reported like a fresh one."""

    kernels: tuple[KernelResources, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()


class Artefacts:
    """The folder. Several processes may share it: an entry appears whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, digest: str) -> Path:
        """Where the object of this digest lies, if it does."""
        return self._folder / f"{digest}.so"

    def find(self, digest: str) -> tuple[Path, Notes] | None:
        """The object and its notes, marked as used just now."""
        path = self.path(digest)
        try:
            os.utime(path)
        except FileNotFoundError:
            return None
        notes = Notes()
        with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
            notes = msgspec.json.decode(path.with_suffix(".json").read_bytes(), type=Notes)
        return path, notes

    def keep(self, digest: str, object_fd: int, notes: Notes) -> Path:
        """Take a finished object and its notes in, and drop the oldest entries beyond the folder's size."""
        path = self.path(digest)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        partial.write_bytes(msgspec.json.encode(notes))
        partial.replace(path.with_suffix(".json"))
        with partial.open("wb") as target:
            offset, size = 0, os.fstat(object_fd).st_size
            while offset < size:
                piece = os.pread(object_fd, 1 << 20, offset)
                if not piece:
                    break
                target.write(piece)
                offset += len(piece)
        partial.replace(path)
        self._trim()
        return path

    def _trim(self) -> None:
        kept = []
        for entry in self._folder.glob("*.so"):
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat()
                kept.append((status.st_mtime, status.st_size, entry))
        total = 0
        for _, size, entry in sorted(kept, reverse=True):
            total += size
            if total > CACHE_BYTES:
                for file in (entry, entry.with_suffix(".json")):
                    with contextlib.suppress(FileNotFoundError):
                        file.unlink()
