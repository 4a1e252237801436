"""docs/attacks.md: what came of every attack on every backend."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from attack import Outcome, Result
from attacks import ATTACKS

if TYPE_CHECKING:
    from collections.abc import Mapping

HEAD = """# Attacks and what came of them

Made by `python benchmarks/isolation.py`; the tests run the same attacks. *Contained*: it did not get what it was
after. *Limited*: it was held or ended at a limit. Attacks of the kind `build` are what a candidate hands to `load_inline`: the
evaluator's own builder builds them, and the verdict is what their candidate is told. Under `none` nothing isolates: there an
attack is a control, which must be seen to succeed; `-` marks those that would harm a host without isolation, whose target not
every host has, or whose tool is missing on that backend. Contained means that this attempt failed, no more.
"""


def table(found: Mapping[str, Mapping[str, Outcome]], missing: Mapping[str, str]) -> str:
    """The page.

    Args:
        found: outcomes by backend and attack; an attack that was not tried there has none.
        missing: backends that could not be tried, and why.
    """
    lines = [HEAD, "| kind | attack | " + " | ".join(found) + " |", "| --- | --- |" + " --- |" * len(found)]
    for attack in ATTACKS:
        cells = [found[name][attack.name].shown if attack.name in found[name] else "-" for name in found]
        lines.append(f"| {attack.kind} | {attack.name} | {' | '.join(cells)} |")
    for name, one in found.items():
        counts = Counter(outcome.result for outcome in one.values())
        lines += ["", f"{name}: {len(one)} tried, {counts[Result.NOT_CONTAINED]} not contained."]
    lines += [f"\nNot tried: {name}: {reason}" for name, reason in missing.items()]
    return "\n".join(lines) + "\n"
