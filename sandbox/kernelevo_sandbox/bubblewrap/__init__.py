"""The bubblewrap backend: namespaces, an unprivileged uid, a seccomp filter, control groups.

Who the sandboxed program is, outside, depends on who runs this and on what that uid can read:

* `DROPPED`: run by root; the launcher drops to a uid of its own for each sandbox, and bubblewrap makes a user namespace.
* `INSIDE`: run by root, and that uid cannot read the interpreter or another mount (/root is closed to it): bubblewrap
  mounts as root, and setpriv drops to the uid inside. The host's user namespace stays; every other one is unshared.
* `SAME`: run by an ordinary user, who stays that user outside, in a user namespace.

uid 0 inside is never the answer: it could open the host's /proc/sys for writing.
"""

from __future__ import annotations

from kernelevo_sandbox.bubblewrap.backend import BubblewrapSandbox
from kernelevo_sandbox.bubblewrap.shapes import Identity, find_bwrap, readable_by_others

__all__ = ["BubblewrapSandbox", "Identity", "find_bwrap", "readable_by_others"]
