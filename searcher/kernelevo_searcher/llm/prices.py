"""What a call costs in dollars: the user's own table first, then the `genai-prices` extra where it is installed.

An unknown price is `None`, never zero: a budget in dollars refuses to start on it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernelevo_searcher.proposers import Usage

__all__ = ["ModelPrice", "PriceTable"]

_MILLION = Decimal(1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPrice:
    """Dollars for a million tokens."""

    input_per_million: Decimal
    output_per_million: Decimal
    cached_input_per_million: Decimal | None = None
    """Of prompt tokens that the provider had cached; absent: the same as others."""

    @classmethod
    def from_text(cls, text: str) -> ModelPrice:
        """From `INPUT/OUTPUT` or `INPUT/CACHED/OUTPUT`, e.g. `1.25/10` or `1.25/0.125/10`.

        Raises:
            ValueError: it is neither, or a price is negative.
        """
        try:
            prices = [Decimal(part.strip().removeprefix("$")) for part in text.split("/")]
        except InvalidOperation:
            prices = []
        if len(prices) not in {2, 3} or any(not price.is_finite() or price < 0 for price in prices):
            raise ValueError(f"not a price: {text!r}; write INPUT/OUTPUT in dollars for a million tokens, e.g. 1.25/10")
        return cls(
            input_per_million=prices[0],
            output_per_million=prices[-1],
            cached_input_per_million=prices[1] if len(prices) == 3 else None,
        )

    def cost(self, usage: Usage) -> Decimal:
        """Dollars for `usage`."""
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        cached_price = (
            self.input_per_million if self.cached_input_per_million is None else self.cached_input_per_million
        )
        dollars = (
            (usage.prompt_tokens - cached) * self.input_per_million
            + cached * cached_price
            + usage.completion_tokens * self.output_per_million
        )
        return dollars / _MILLION


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTable:
    """Prices by model; the user's win over published ones."""

    own: Mapping[str, ModelPrice] = field(default_factory=dict)
    published: bool = True
    """Ask the `genai-prices` extra for models that are not in `own`. It reads its own files, never the network."""

    def cost(self, model: str, usage: Usage, *, base_url: str | None = None) -> Decimal | None:
        """Dollars for `usage` of `model`; `None` where the price is not known.

        A model behind `base_url` is only looked up under the provider that the URL belongs to: the same name at another
        endpoint may cost something else, or nothing.
        """
        own = self.own.get(model)
        if own is not None:
            return own.cost(usage)
        if not self.published:
            return None
        return _published(model, usage, base_url)


def _published(model: str, usage: Usage, base_url: str | None) -> Decimal | None:
    try:
        import genai_prices
    except ImportError:
        return None
    tokens = genai_prices.Usage(
        input_tokens=usage.prompt_tokens,
        cache_read_tokens=min(usage.cached_tokens, usage.prompt_tokens),
        output_tokens=usage.completion_tokens,
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if base_url is None:
                price = genai_prices.calc_price(tokens, model)
            else:
                price = genai_prices.calc_price(tokens, model, provider_api_url=base_url)
    except (LookupError, ValueError):
        return None
    return Decimal(price.total_price)
