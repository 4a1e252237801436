"""Every number and name of the searcher that a person may want to change.

Precedence: flag, environment (`KERNELEVO_…`), the `[searcher]` table of `kernelevo.toml` in the working folder, default. An
unknown key, in any of them, is an error that names the known ones.
"""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from kernelevo_api.pool import parse_requirement
from kernelevo_api.types import BaselineKind, DeviceRequirement, Language
from kernelevo_searcher.events import RunSettings
from kernelevo_searcher.mechanisms import Mechanism, PolicyName
from kernelevo_searcher.models import ModelSettings, model_from_text, model_from_values, with_labels

__all__ = ["SearcherSettings", "SettingsInvalid", "load_settings", "setting_origins"]

ENVIRONMENT_PREFIX = "KERNELEVO_"
OTHER_PREFIXES = ("KERNELEVO_EVALUATOR_",)
"""Variables of other programs of ours."""
TABLE = "searcher"
KNOWN_TABLES = frozenset({TABLE, "evaluator"})
CONFIGURATION_FILE = "kernelevo.toml"
MODEL_DEFAULTS = (
    "base_url",
    "api_key_env",
    "max_reply_tokens",
    "reasoning",
    "reasoning_effort",
    "temperature",
)
"""Settings that hold for every model that does not say otherwise."""
_EVALUATIONS_WITHOUT_MODEL = 60

Positive = Annotated[int, pydantic.Field(gt=0)]
PositiveFloat = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]


class SettingsInvalid(Exception):
    """A setting that is not known or whose value is not usable; the message says which, and what is."""


class SearcherSettings(BaseSettings):
    """The searcher's settings."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, extra="forbid", frozen=True, env_ignore_empty=True, protected_namespaces=()
    )

    # The search
    seed: int = pydantic.Field(0, description="of everything random in the search")
    policy: PolicyName = pydantic.Field(
        PolicyName.EVOLVE, description="how the search chooses: ours, or the baselines greedy and independent"
    )
    without: tuple[Mechanism, ...] = pydantic.Field(
        (), description="parts of the policy to leave out, to see what they are worth"
    )
    evaluations: Positive | None = pydantic.Field(
        None, description=f"candidates to evaluate at most; without a model {_EVALUATIONS_WITHOUT_MODEL} unless set"
    )
    minutes: PositiveFloat | None = pydantic.Field(None, description="time the search may take")
    budget_tokens: Annotated[int, pydantic.Field(ge=0)] = pydantic.Field(
        1_000_000, description="tokens the model may cost, prompts and replies together"
    )
    budget_dollars: PositiveFloat | None = pydantic.Field(
        None, description="dollars the models may cost; every model's price must be known"
    )
    target_speedup: PositiveFloat | None = pydantic.Field(
        None, description="stop once the lower bound of the best reaches it"
    )
    floor_share: PositiveFloat = pydantic.Field(
        0.95, description="stop once the best runs at this share of the measured bandwidth"
    )
    patience: Positive | None = pydantic.Field(
        None,
        description="evaluations without improvement that end the search; unset: 25, or a quarter of the evaluations",
    )
    verify: Positive | None = pydantic.Field(
        None, description="candidates verified at the end; unset: 5 with a model, 2 without"
    )
    baseline: BaselineKind = pydantic.Field(BaselineKind.EAGER, description="what speedups are over")
    language: Language | None = pydantic.Field(None, description="what candidates are to be written in")
    hints: str = pydantic.Field("", description="advice to the model, in your own words")
    memory: Path | None = pydantic.Field(
        None, description="bank of lessons of earlier runs that models are told of (kernelevo memory)"
    )
    runs_dir: Path = pydantic.Field(Path("runs"), description="folder of new runs")

    # The models
    model: Annotated[tuple[str | dict[str, Any], ...], NoDecode] = pydantic.Field(
        (), description="models that write kernels, each NAME[,key=value,…] or a table; none: tuning only"
    )
    base_url: str | None = pydantic.Field(None, description="OpenAI-compatible endpoint, e.g. http://localhost:8000/v1")
    api_key_env: str | None = pydantic.Field(
        None, description="environment variable that holds the key; unset: OPENAI_API_KEY for the default endpoint"
    )
    max_reply_tokens: Positive = pydantic.Field(16_384, description="largest reply, reasoning included")
    reasoning: bool = pydantic.Field(False, description="a reasoning model: no sampling parameters are sent")
    reasoning_effort: str | None = pydantic.Field(None, description="e.g. low, medium, high")
    temperature: Annotated[float, pydantic.Field(ge=0)] | None = pydantic.Field(
        None, description="unset leaves it to the endpoint"
    )
    merge_share: Annotated[float, pydantic.Field(ge=0, le=1)] = pydantic.Field(
        0.0, description="share of the model's calls on kernels that passed that join two of different structure"
    )
    calls_in_flight: Positive = pydantic.Field(RunSettings().calls_in_flight, description="model calls at once")
    prompts: Path | None = pydantic.Field(None, description="folder of templates that replace the built-in ones")

    # The evaluators
    evaluators: tuple[str, ...] = pydantic.Field(
        (), description="addresses, or file:PATH with one a line; none: one is started for the run"
    )
    device: str | None = pydantic.Field(
        None, description="what to measure on, e.g. kind=cuda,memory=80GiB; unset: the kind with the most lanes"
    )
    verify_on: tuple[str, ...] = pydantic.Field(
        (), description="other kinds of device that the winner is verified on, each written as device is"
    )
    token_file: Path | None = pydantic.Field(None, description="file that holds the evaluators' bearer token")
    tls_root: Path | None = pydantic.Field(
        None, description="PEM file of the CA that the evaluators' TLS is checked by"
    )
    tls_key: Path | None = pydantic.Field(None, description="PEM file of one's own key, for mutual TLS")
    tls_certificate: Path | None = pydantic.Field(None, description="PEM file of one's own certificate")
    start_timeout_s: PositiveFloat = pydantic.Field(120.0, description="seconds an evaluator has to answer at first")

    @pydantic.field_validator("model", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        """A text that is no JSON is one specification, and one alone is a list of one."""
        if isinstance(value, str):
            text = value.strip()
            value = json.loads(text) if text.startswith(("[", "{")) else [text] if text else []
        return [value] if isinstance(value, dict) else value

    @pydantic.model_validator(mode="after")
    def _readable(self) -> SearcherSettings:
        self.models()
        return self

    def models(self) -> tuple[ModelSettings, ...]:
        """The models, with what their specifications leave out.

        Raises:
            ValueError: a specification cannot be read, or two models share a label.
        """
        defaults = {name: getattr(self, name) for name in MODEL_DEFAULTS}
        return with_labels(
            model_from_text(item, defaults) if isinstance(item, str) else model_from_values(item, defaults)
            for item in self.model
        )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then the environment; the file is put beneath them by `load_settings`."""
        return init_settings, env_settings, _Beneath(settings_cls)

    @pydantic.field_validator("device")
    @classmethod
    def _a_device(cls, value: str | None) -> str | None:
        if value is not None:
            parse_requirement(value)
        return value

    @pydantic.field_validator("verify_on")
    @classmethod
    def _devices(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        for value in values:
            parse_requirement(value)
        return values

    @property
    def device_requirement(self) -> DeviceRequirement | None:
        """What `device` says."""
        return parse_requirement(self.device) if self.device is not None else None

    def run_settings(self) -> RunSettings:
        """What goes into a run's log."""
        evaluations = self.evaluations
        models = self.models()
        if evaluations is None and not models:
            evaluations = _EVALUATIONS_WITHOUT_MODEL
        return RunSettings(
            seed=self.seed,
            policy=self.policy,
            without=self.without,
            evaluations=evaluations,
            minutes=self.minutes,
            budget_tokens=self.budget_tokens,
            budget_dollars=self.budget_dollars,
            target_speedup=self.target_speedup,
            floor_share=self.floor_share,
            patience=self.patience,
            verify=self.verify,
            baseline=self.baseline,
            evaluators=self.evaluators,
            device=self.device_requirement,
            verify_on=tuple(map(parse_requirement, self.verify_on)),
            models=models,
            calls_in_flight=self.calls_in_flight,
            prompts=str(self.prompts.resolve()) if self.prompts is not None else None,
            language=self.language,
            hints=self.hints,
            merge_share=self.merge_share,
            memory=str(self.memory.resolve()) if self.memory is not None else None,
        )


class _Beneath(PydanticBaseSettingsSource):
    """The `[searcher]` table of the configuration file."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        return _read_file(Path(CONFIGURATION_FILE))


def load_settings(**flags: Any) -> SearcherSettings:
    """The settings, with flags that were given above all else; `None` is a flag that was not given.

    Raises:
        SettingsInvalid: an unknown key or an unusable value, wherever it stands.
    """
    _refuse_unknown_variables()
    given = {name: value for name, value in flags.items() if value is not None and value != ()}
    try:
        return SearcherSettings(**given)
    except pydantic.ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise SettingsInvalid(f"a setting cannot be used: {problems}{_known_if_unknown(error)}") from error
    except SettingsError as error:
        raise SettingsInvalid(f"a setting cannot be read: {error}. Lists are written as JSON.") from error


def setting_origins(**flags: Any) -> dict[str, str]:
    """For every setting, where its value comes from: "flag", "environment", "file" or "default"."""
    file = _read_file(Path(CONFIGURATION_FILE))
    names = {name.upper() for name in os.environ}
    origins = {}
    for name in SearcherSettings.model_fields:
        if flags.get(name) not in (None, ()):
            origins[name] = "flag"
        elif f"{ENVIRONMENT_PREFIX}{name}".upper() in names:
            origins[name] = "environment"
        else:
            origins[name] = "file" if name in file else "default"
    return origins


def _read_file(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsInvalid(f"{path} cannot be read: {error}") from error
    unknown = content.keys() - KNOWN_TABLES
    if unknown:
        known = ", ".join(f"[{name}]" for name in sorted(KNOWN_TABLES))
        raise SettingsInvalid(f"{path}: unknown key {min(unknown)!r}; known are the tables {known}")
    table = content.get(TABLE, {})
    if not isinstance(table, dict):
        raise SettingsInvalid(f"{path}: {TABLE!r} must be a table: [{TABLE}]")
    return table


def _refuse_unknown_variables() -> None:
    known = {f"{ENVIRONMENT_PREFIX}{name}".upper() for name in SearcherSettings.model_fields}
    for name in os.environ:
        upper = name.upper()
        if upper.startswith(ENVIRONMENT_PREFIX) and upper not in known and not upper.startswith(OTHER_PREFIXES):
            raise SettingsInvalid(f"unknown environment variable {name}. {_known()}")


def _known() -> str:
    return f"Known settings: {', '.join(sorted(SearcherSettings.model_fields))}."


def _known_if_unknown(error: pydantic.ValidationError) -> str:
    return f". {_known()}" if any(item["type"] == "extra_forbidden" for item in error.errors()) else ""
