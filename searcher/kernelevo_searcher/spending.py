"""What model calls cost, by action and model: the account that the run's end and its report show."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelevo_searcher.proposers import Usage

__all__ = ["Spending", "SpendingRow"]


@dataclass(slots=True, kw_only=True)
class SpendingRow:
    """Calls of one action by one model."""

    action: str
    model: str
    calls: int = 0
    useful: int = 0
    """Replies that held a candidate."""
    failed: int = 0
    """Calls without a reply."""
    usage: Usage = field(default_factory=Usage)
    dollars: float = 0.0
    """Of the calls whose price is known."""
    dollars_unknown: bool = False
    """Some were paid for at a price that is not known."""

    def charge(self, usage: Usage | None, dollars: float | None) -> None:
        """Count one call's cost."""
        if usage is None:
            return
        self.usage += usage
        self.dollars += dollars or 0.0
        # Without a price and without tokens it cost nothing, whatever the price.
        self.dollars_unknown |= dollars is None and usage.total_tokens > 0


@dataclass(slots=True)
class Spending:
    """All rows, and their sum."""

    rows: dict[tuple[str, str], SpendingRow] = field(default_factory=dict)
    total: SpendingRow = field(default_factory=lambda: SpendingRow(action="all", model="all"))

    def count(
        self, action: str, model: str, *, useful: bool, failed: bool, usage: Usage | None, dollars: float | None
    ) -> None:
        """One call that ended."""
        row = self.rows.setdefault((action, model), SpendingRow(action=action, model=model))
        for each in (row, self.total):
            each.calls += 1
            each.useful += useful
            each.failed += failed
            each.charge(usage, dollars)
