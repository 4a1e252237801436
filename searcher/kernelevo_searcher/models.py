"""Which models a run may ask, and what each is for. Values only: who talks to them lives in `llm`.

A model is written as `NAME` or as `NAME,key=value,…`, e.g. `gpt-5,role=strong,reasoning_effort=high`. The same keys make a
table in `kernelevo.toml`. What is left out comes from the settings of that name, which then hold for all models of the run.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["ModelRole", "ModelSettings", "model_from_text", "model_from_values", "with_labels"]


class ModelRole(enum.Enum):
    """What a model is asked for. Where no model has the role that an action wants, any is asked."""

    ANY = "any"
    STRONG = "strong"
    """Structure: rewrite, restart, and refine."""
    CHEAP = "cheap"
    """Small work: fix, and refine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """One model behind one endpoint. Part of a run's log; the key itself is never in it."""

    name: str
    """As the endpoint knows it."""
    label: str = ""
    """As the log, the ledger and the prices know it; the name, unless two models of a run share theirs."""
    base_url: str | None = None
    """OpenAI-compatible endpoint; absent: OpenAI's own."""
    api: str = "chat"
    """The endpoint's protocol: chat (chat completions) or responses."""
    api_key_env: str | None = None
    """Environment variable that holds the key."""
    role: ModelRole = ModelRole.ANY
    weight: float = 1.0
    """Share of the calls among the models that may be asked for the same."""
    max_reply_tokens: int = 16_384
    """Largest reply, reasoning included."""
    reasoning: bool = False
    """A reasoning model: no sampling parameters are sent."""
    reasoning_effort: str | None = None
    """E.g. "low", "medium", "high"; makes it a reasoning model."""
    temperature: float | None = None
    """Absent leaves it to the endpoint."""
    reply_limit: str | None = None
    """How a chat endpoint calls the limit of its reply: max_completion_tokens, or max_tokens on older servers."""
    stream: bool = False
    edits: bool | None = None
    """Ask for SEARCH/REPLACE edits (true) or whole files (false); absent: whole files."""
    price: str | None = None
    """INPUT/OUTPUT or INPUT/CACHED/OUTPUT in dollars for a million tokens; absent: published prices, if any."""


_KINDS: dict[str, type] = {
    "weight": float,
    "max_reply_tokens": int,
    "temperature": float,
    "reasoning": bool,
    "stream": bool,
    "edits": bool,
    "role": ModelRole,
}
_KEYS = tuple(field.name for field in dataclasses.fields(ModelSettings))
_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def model_from_text(text: str, defaults: Mapping[str, object]) -> ModelSettings:
    """A model from `NAME[,key=value,…]`.

    Raises:
        ValueError: no name, an unknown key, or a value that is none.
    """
    name, *items = [part.strip() for part in text.split(",")]
    values: dict[str, object] = {"name": name}
    for item in items:
        key, separator, value = item.partition("=")
        if not separator:
            raise ValueError(f"{item!r} in the model {text!r} is not key=value; keys are {', '.join(_KEYS)}")
        values[key.strip()] = value.strip()
    return model_from_values(values, defaults)


def model_from_values(values: Mapping[str, object], defaults: Mapping[str, object]) -> ModelSettings:
    """A model from the keys of a table; `defaults` fill what it leaves out.

    Raises:
        ValueError: no name, an unknown key, or a value that is none.
    """
    unknown = sorted(values.keys() - set(_KEYS))
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r} of a model; keys are {', '.join(_KEYS)}")
    given = {key: _read(key, value) for key, value in {**defaults, **values}.items() if value is not None}
    if not given.get("name"):
        raise ValueError("a model needs a name")
    model = ModelSettings(**given)
    if model.weight <= 0 or model.max_reply_tokens < 1 or (model.temperature is not None and model.temperature < 0):
        raise ValueError(f"model {model.name}: weight and max_reply_tokens must be positive, temperature not negative")
    if model.api not in ("chat", "responses"):
        raise ValueError(f"model {model.name}: api is chat or responses")
    if model.reply_limit not in (None, "max_completion_tokens", "max_tokens"):
        raise ValueError(f"model {model.name}: reply_limit is max_completion_tokens or max_tokens")
    if model.price is not None:
        from kernelevo_searcher.llm.prices import ModelPrice

        ModelPrice.from_text(model.price)
    return model


def _read(key: str, value: object) -> Any:
    kind = _KINDS.get(key, str)
    try:
        if kind is bool:
            return value if isinstance(value, bool) else _WORDS[str(value).lower()]
        return kind(value)
    except (KeyError, ValueError):
        choices = f": one of {', '.join(item.value for item in kind)}" if issubclass(kind, enum.Enum) else ""
        raise ValueError(f"{value!r} is no value of a model's {key}{choices}") from None


def with_labels(models: Iterable[ModelSettings]) -> tuple[ModelSettings, ...]:
    """The models, each with a label.

    Raises:
        ValueError: two have the same.
    """
    labelled = tuple(dataclasses.replace(model, label=model.label or model.name) for model in models)
    labels = [model.label for model in labelled]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"two models are called {label!r}; tell them apart: {label},label=…")
    return labelled
