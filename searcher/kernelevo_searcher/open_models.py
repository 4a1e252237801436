"""From a run's settings to proposers that can be asked: keys from the environment, prices, prompts.

Everything that can be wrong is found here, before a token is paid: a missing key, an unusable URL, a broken template, a budget
in dollars for a model whose price nobody knows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kernelevo_searcher.inputs import BadInput
from kernelevo_searcher.proposers import Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kernelevo_searcher.events import RunSettings
    from kernelevo_searcher.llm.endpoint import EndpointSettings
    from kernelevo_searcher.llm.proposer import LLMProposer
    from kernelevo_searcher.models import ModelSettings

__all__ = ["OpenModels", "open_models"]

OPENAI_KEY = "OPENAI_API_KEY"


def _no_price(_model: str, _usage: Usage) -> float | None:
    return None


@dataclass(frozen=True, slots=True)
class OpenModels:
    """The models of a run, ready."""

    proposers: Mapping[str, LLMProposer] = field(default_factory=dict)
    """By label."""
    cost: Callable[[str, Usage], float | None] = _no_price
    """Dollars for a usage of the model with this label; absent where its price is not known."""

    async def aclose(self) -> None:
        """Let go of connections."""
        for proposer in self.proposers.values():
            await proposer.aclose()


def open_models(run: RunSettings, environment: Mapping[str, str], *, keys: bool = True) -> OpenModels:
    """The models of a run.

    Args:
        keys: they will be called; without, no key is looked for.

    Raises:
        BadInput: one cannot be used as it is set up.
    """
    if not run.models:
        return OpenModels()
    # Only a run with a model needs the model's library.
    from kernelevo_searcher.llm.endpoint import OPENAI_URL
    from kernelevo_searcher.llm.prices import ModelPrice, PriceTable
    from kernelevo_searcher.llm.proposer import LLMProposer
    from kernelevo_searcher.prompts import PromptError, PromptLibrary

    table = PriceTable(
        own={model.label: ModelPrice.from_text(model.price) for model in run.models if model.price is not None}
    )
    by_label = {model.label: model for model in run.models}

    def cost(label: str, usage: Usage) -> float | None:
        model = by_label.get(label)
        if model is None:
            return None
        name = label if model.price is not None else model.name
        dollars = table.cost(name, usage, base_url=model.base_url or OPENAI_URL)
        return None if dollars is None else round(float(dollars), 9)

    if run.budget_dollars is not None:
        for model in run.models:
            if cost(model.label, Usage(prompt_tokens=1000, completion_tokens=1000)) is None:
                raise BadInput(
                    f"the price of {model.label} is not known, so a budget in dollars cannot be kept. Name it, in dollars "
                    f"for a million tokens of input and output: --model {model.name},price=1.25/10"
                )
    try:
        prompts = PromptLibrary(Path(run.prompts) if run.prompts is not None else None)
        proposers = {
            model.label: LLMProposer(_endpoint(model, environment, keys=keys), prompts=prompts, edits=model.edits)
            for model in run.models
        }
        next(iter(proposers.values())).rehearse()
    except PromptError as error:
        raise BadInput(str(error)) from error
    return OpenModels(proposers, cost)


def _endpoint(model: ModelSettings, environment: Mapping[str, str], *, keys: bool) -> EndpointSettings:
    from kernelevo_searcher.llm.endpoint import OPENAI_URL, EndpointSettings
    from kernelevo_searcher.llm.secret import Secret

    name = model.api_key_env or (OPENAI_KEY if model.base_url is None else None)
    key = environment.get(name, "") if name is not None else ""
    if keys and name is not None and not key:
        raise BadInput(f"the environment variable {name} is not set; it must hold the API key for {model.label}.")
    try:
        return EndpointSettings(
            model=model.name,
            base_url=model.base_url or OPENAI_URL,
            api="responses" if model.api == "responses" else "chat",
            api_key=Secret(key) if key else None,
            max_reply_tokens=model.max_reply_tokens,
            reasoning=model.reasoning or model.reasoning_effort is not None,
            reasoning_effort=model.reasoning_effort,
            temperature=model.temperature,
            stream=model.stream,
            **({"reply_limit_parameter": model.reply_limit} if model.reply_limit is not None else {}),  # type: ignore[arg-type]
        )
    except ValueError as error:
        raise BadInput(str(error)) from error
