"""Built objects, kept in a folder under the digest of all that went into them."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kernelevo_api.types import Diagnostic, KernelResources  # noqa: TC001 - msgspec resolves the fields' types at run time

if TYPE_CHECKING:
    from collections.abc import Iterator

CACHE_BYTES = 1 << 30
"""Size of the folder beyond which the objects that were used longest ago are dropped."""
_PARTIAL_SECONDS = 3600.0


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
        """Take a finished object and its notes in, and drop the oldest entries beyond the folder's size.

        Raises:
            OSError: there is no room for them; nothing that is not whole stays.
        """
        path = self.path(digest)
        with self._appearing(path.with_suffix(".json")) as fd:
            _write(fd, msgspec.json.encode(notes))
        with self._appearing(path) as fd:
            offset, size = 0, os.fstat(object_fd).st_size
            while offset < size:
                piece = os.pread(object_fd, 1 << 20, offset)
                if not piece:
                    break
                _write(fd, piece)
                offset += len(piece)
        self._trim()
        return path

    @contextlib.contextmanager
    def _appearing(self, path: Path) -> Iterator[int]:
        """A descriptor of what is to be at `path` once it is whole. Two builds of one digest may end at once."""
        fd, name = tempfile.mkstemp(suffix=".partial", dir=self._folder)
        try:
            try:
                yield fd
            finally:
                os.close(fd)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def _trim(self) -> None:
        for entry in self._folder.glob("*.partial"):  # of a life that was cut short
            with contextlib.suppress(FileNotFoundError):
                if time.time() - entry.stat().st_mtime > _PARTIAL_SECONDS:
                    entry.unlink()
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


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
