"""Which of the host's folders a sandbox needs, and what every root file system says about its user."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kernelevo_sandbox.contract import Mount

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HOSTNAME = "sandbox"


def interpreter_mounts() -> tuple[Mount, ...]:
    """What the running Python needs inside: its prefix and its base prefix, where /usr does not hold them already.

    Folders of an editable install are the caller's to add.
    """
    prefixes = [Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent.parent]
    wanted = []
    for prefix in dict.fromkeys(prefixes):
        if prefix != Path("/") and not prefix.is_relative_to("/usr"):
            wanted.append(Mount(source=prefix, target=str(prefix)))
    return tuple(wanted)


def needed(mounts: Iterable[Mount], shown: Mapping[str, Path]) -> list[Mount]:
    """Those mounts that nothing above them shows already, outer ones first.

    `shown` are places inside that a source is visible at in any case.
    """
    bound = {Path(target): source for target, source in shown.items()}
    found = []
    for mount in sorted(set(mounts), key=lambda mount: (len(Path(mount.target).parts), mount.target)):
        target = Path(mount.target)
        if bound.get(target) == mount.source:
            continue
        above = next((place for place in target.parents if place in bound), None)
        if above is not None and bound[above] / target.relative_to(above) == mount.source:
            continue
        bound[target] = mount.source
        found.append(mount)
    return found


def etc_files(uid: str) -> dict[str, str]:
    """Files of /etc by name, for a sandbox whose program is that uid inside."""
    return {
        "passwd": f"sandbox:x:{uid}:{uid}::/tmp:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n",
        "group": f"sandbox:x:{uid}:\nnogroup:x:65534:\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        "hosts": f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost\n",
    }
