"""Prices: the user's win, published ones serve, and what is unknown stays unknown."""

from __future__ import annotations

import sys
from decimal import Decimal

import pytest

from kernelevo_searcher.llm.prices import ModelPrice, PriceTable
from kernelevo_searcher.proposers import Usage

USAGE = Usage(prompt_tokens=1_000_000, completion_tokens=500_000, cached_tokens=400_000)


def test_the_users_price_wins() -> None:
    table = PriceTable(own={"gpt-5": ModelPrice.from_text("2/0.5/8")})
    assert table.cost("gpt-5", USAGE) == Decimal("0.6") * 2 + Decimal("0.4") * Decimal("0.5") + Decimal("0.5") * 8


def test_without_a_price_for_cached_tokens_they_cost_what_others_do() -> None:
    assert ModelPrice.from_text("$2/$8").cost(USAGE) == Decimal(6)


@pytest.mark.parametrize("text", ["", "2", "a/b", "-1/2", "1/2/3/4", "nan/1", "inf/1"])
def test_prices_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="not a price"):
        ModelPrice.from_text(text)


def test_published_prices() -> None:
    pytest.importorskip("genai_prices")
    table = PriceTable()
    cost = table.cost("gpt-5", USAGE, base_url="https://api.openai.com/v1")
    assert cost is not None and cost > 0
    assert table.cost("gpt-5", USAGE) == cost


def test_unknown_is_unknown() -> None:
    assert PriceTable().cost("no-such-model-zz", USAGE) is None
    assert PriceTable().cost("gpt-5", USAGE, base_url="http://localhost:8000/v1") is None
    assert PriceTable(published=False).cost("gpt-5", USAGE) is None


def test_without_the_extra_only_the_users_prices_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    assert PriceTable().cost("gpt-5", USAGE) is None
