"""Every number and path of the evaluator that a person may want to change, and where its value came from.

Precedence: flag, environment (`KERNELEVO_EVALUATOR_…`), the `[evaluator]` table of `kernelevo.toml`, default. An unknown key, in
any of them, is an error that names the known ones.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from kernelevo_api.channel import MESSAGE_LIMIT_BYTES, target_of
from kernelevo_api.types import Limits
from kernelevo_sandbox import DockerOptions, GpuAccess, open_sandbox
from kernelevo_sandbox.cgroups import memory_limit_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.fields import FieldInfo

    from kernelevo_sandbox import Sandbox

ENVIRONMENT_PREFIX = "KERNELEVO_EVALUATOR_"
TABLE = "evaluator"
CONFIGURATION_FILE = "kernelevo.toml"

MIB = 1 << 20
GIB = 1 << 30

Seconds = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]
Bytes = Annotated[int, pydantic.Field(gt=0)]
Count = Annotated[int, pydantic.Field(gt=0)]
Device = Literal["auto", "cpu", "cuda", "simulated"]
DeepChecks = Literal["final", "profile", "never"]


class SettingsInvalid(Exception):
    """A setting that is not known or whose value is not usable; the message says which, where, and what is."""


def host_memory_bytes() -> int:
    """Memory that there is for the evaluator: this host's, or less where its container or service is given less."""
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        physical = 8 * GIB
    limit = memory_limit_bytes()
    return physical if limit is None else min(physical, limit)


def default_state_dir() -> Path:
    """`$XDG_STATE_HOME/kernelevo/evaluator`, else under `~/.local/state`."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "kernelevo" / "evaluator"


def _maximum_memory() -> int:
    return host_memory_bytes() * 3 // 4


class EvaluatorSettings(BaseSettings):
    """The evaluator's settings. Descriptions are what `kernelevo-evaluator settings` prints."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, extra="forbid", frozen=True, validate_default=True, env_ignore_empty=True
    )

    # Where
    listen: str = pydantic.Field("", description="unix:PATH or host:port; empty: evaluator.sock in the state folder")
    state_dir: Path = pydantic.Field(
        default_factory=default_state_dir, description="folder of results, accepted requests and built artefacts"
    )
    database_url: pydantic.SecretStr | None = pydantic.Field(
        None,
        description="postgresql://…: results and requests in a database that several evaluators share; empty: a file in the "
        "state folder",
    )
    keep_days: Annotated[float, pydantic.Field(gt=0)] | None = pydantic.Field(
        None, description="days that evaluations, and problems that nobody uses, are kept; empty: for ever"
    )
    keep_bytes: Bytes | None = pydantic.Field(
        None, description="most that evaluations and problems take up, the oldest go first; empty: no bound"
    )
    sandbox: Literal["bubblewrap", "docker", "none"] = pydantic.Field(
        "bubblewrap", description="isolation; none only for code that one wrote oneself"
    )
    docker_image: str = pydantic.Field(
        "kernelevo-sandbox", description="image of sandboxes in docker, built from Dockerfile.gpu; never pulled"
    )
    docker_host: str | None = pydantic.Field(
        None, description="the engine's Unix socket, unix:///PATH; empty: DOCKER_HOST, or the usual place"
    )
    docker_runtime: str | None = pydantic.Field(
        None, description="OCI runtime of the engine, e.g. runsc; empty: the engine's default"
    )
    docker_gpu: Literal["cdi", "toolkit", "nodes"] = pydantic.Field(
        "cdi",
        description="how a GPU comes into a container: CDI, NVIDIA's container toolkit, or its device nodes alone",
    )

    # Who may call
    insecure_loopback: bool = pydantic.Field(False, description="allow plain TCP on a loopback address")
    tls_certificate: Path | None = pydantic.Field(None, description="PEM file: the server's certificate chain")
    tls_key: Path | None = pydantic.Field(None, description="PEM file: the server's private key")
    tls_client_ca: Path | None = pydantic.Field(None, description="PEM file: asks clients for certificates of this CA")
    token_file: Path | None = pydantic.Field(None, description="TOML file of accepted tokens")

    # Seen from outside
    metrics: str = pydantic.Field(
        "", description="host:port of a plain page for Prometheus, open to whoever reaches it; empty: none"
    )

    health: str = pydantic.Field(
        "",
        description="host:port of a plain health service and nothing else, for probes that speak no TLS; empty: none",
    )

    connection_idle_s: Seconds = pydantic.Field(
        600.0,
        description="seconds after which a connection without a call is closed; its client opens another when it asks",
    )

    # Queue
    queue_capacity: Count = pydantic.Field(256, description="most requests that wait, over all clients")
    queue_capacity_per_client: Count = pydantic.Field(64, description="most requests of one client that wait")
    grace_s: Annotated[float, pydantic.Field(ge=0)] = pydantic.Field(
        30.0, description="seconds that work goes on for a client that went away"
    )
    drain_s: Annotated[float, pydantic.Field(ge=0)] = pydantic.Field(
        60.0, description="seconds that running work has to finish after SIGTERM"
    )
    maximum_source_bytes: Annotated[int, pydantic.Field(gt=0, le=MESSAGE_LIMIT_BYTES // 4)] = pydantic.Field(
        1 * MIB, description="longest problem or candidate"
    )

    # Executor
    device: Device = pydantic.Field(
        "auto",
        description="what candidates run on; auto: the host's NVIDIA GPUs where there are any, else its processor; "
        "simulated: nothing runs, verdicts are made up, to size a fleet",
    )
    simulated_lanes: Count = pydantic.Field(1, description="lanes of a simulated device")
    simulated_s: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] = pydantic.Field(
        1.0, description="seconds that a simulated evaluation takes"
    )
    simulated_name: Annotated[str, pydantic.Field(min_length=1)] = pydantic.Field(
        "simulated", description="what a simulated device calls itself; another name is another kind of device"
    )
    lane_cpus: str | None = pydantic.Field(
        None, description="cores of each lane, e.g. 0-3;4-7; empty: shared out among the GPUs, or all in one CPU lane"
    )
    build_workers: Count = pydantic.Field(1, description="builds that run at once, beside the lanes")
    spare_runners: Annotated[int, pydantic.Field(ge=0)] | None = pydantic.Field(
        None,
        description="runners kept warm on each lane for the next evaluations; empty: as many as its cores can keep up",
    )

    deep_checks: DeepChecks = pydantic.Field(
        "final",
        description="when a GPU's candidates are called once more under compute-sanitizer and Nsight Compute: with EFFORT_FINAL "
        "and profiles, only with profiles (profile), or never",
    )
    isolation_check_s: Seconds = pydantic.Field(
        60.0, description="seconds between two tries of what the sandbox guarantees, while the evaluator serves"
    )

    # A cluster's devices in place of this host's
    executor: Literal["local", "ray"] = pydantic.Field(
        "local", description="where devices are: local, on this host; ray, on the hosts of a Ray cluster"
    )
    ray_address: str = pydantic.Field(
        "", description="the cluster's address; empty: RAY_ADDRESS, else a cluster that runs here, else a new one"
    )
    ray_lanes: Count | None = pydantic.Field(
        None, description="GPUs to hold at most; unset: as many as the cluster has at the start"
    )
    ray_accelerator_type: str | None = pydantic.Field(
        None, description="hold GPUs of this type alone, by Ray's name, e.g. H200; needed where a cluster has several"
    )
    ray_start_s: Seconds = pydantic.Field(600.0, description="seconds that the first GPU may take to be there")
    ray_silence_s: Seconds = pydantic.Field(
        60.0, description="seconds after which a worker that says nothing is killed"
    )

    # Limits: what a request gets, and the most it may ask for
    build_time_s: Seconds = pydantic.Field(60.0, description="seconds a build may take")
    build_time_maximum_s: Seconds = pydantic.Field(600.0, description="most that a request may ask for")
    prepare_time_s: Seconds = pydantic.Field(60.0, description="seconds import, construction and first calls may take")
    prepare_time_maximum_s: Seconds = pydantic.Field(600.0, description="most that a request may ask for")
    check_time_s: Seconds = pydantic.Field(60.0, description="seconds the checks may take")
    check_time_maximum_s: Seconds = pydantic.Field(600.0, description="most that a request may ask for")
    run_time_s: Seconds = pydantic.Field(120.0, description="seconds the timing may take")
    run_time_maximum_s: Seconds = pydantic.Field(1200.0, description="most that a request may ask for")
    profile_time_s: Seconds = pydantic.Field(60.0, description="seconds a profile may take")
    profile_time_maximum_s: Seconds = pydantic.Field(600.0, description="most that a request may ask for")
    memory_bytes: Bytes = pydantic.Field(
        default_factory=lambda: min(4 * GIB, _maximum_memory()), description="host memory of one runner"
    )
    memory_maximum_bytes: Bytes = pydantic.Field(
        default_factory=_maximum_memory, description="most that a request may ask for; three quarters of what there is"
    )
    device_memory_bytes: Bytes = pydantic.Field(
        16 * GIB, description="memory of a GPU that one runner may hold, its context of half a GiB included"
    )
    device_memory_maximum_bytes: Bytes = pydantic.Field(64 * GIB, description="most that a request may ask for")
    processes: Count = pydantic.Field(256, description="processes and threads of one runner")
    processes_maximum: Count = pydantic.Field(1024, description="most that a request may ask for")
    output_bytes: Bytes = pydantic.Field(1 * MIB, description="what a candidate may print")
    output_maximum_bytes: Bytes = pydantic.Field(8 * MIB, description="most that a request may ask for")
    temporary_bytes: Bytes = pydantic.Field(256 * MIB, description="size of a runner's private /tmp")
    temporary_maximum_bytes: Bytes = pydantic.Field(1 * GIB, description="most that a request may ask for")

    cpu_time_s: Seconds | None = pydantic.Field(
        None,
        description="processor seconds of all processes of a candidate's runner, or of a build, together; unset: what its "
        "cores give within the limits of its stages",
    )

    # Logs
    log_format: Literal["auto", "console", "json"] = pydantic.Field(
        "auto", description="auto: console on a terminal, json elsewhere"
    )
    log_level: Literal["debug", "info", "warning", "error"] = pydantic.Field("info", description="least that is logged")

    @pydantic.field_validator("listen")
    @classmethod
    def _an_address(cls, value: str) -> str:
        return target_of(value) if value else value

    @pydantic.field_validator("metrics", "health")
    @classmethod
    def _a_port(cls, value: str, info: pydantic.ValidationInfo) -> str:
        if value and target_of(value).startswith("unix:"):
            raise ValueError(f"{info.field_name} is served on host:port")
        return value

    @pydantic.field_validator("lane_cpus")
    @classmethod
    def _core_sets(cls, value: str | None) -> str | None:
        parse_core_sets(value)
        return value

    @pydantic.model_validator(mode="after")
    def _fits_together(self) -> EvaluatorSettings:
        for default, maximum in _LIMIT_FIELDS:
            if getattr(self, default) > getattr(self, maximum):
                raise ValueError(f"{default} ({getattr(self, default)}) is above {maximum} ({getattr(self, maximum)})")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError("tls_client_ca needs tls_certificate and tls_key")
        if self.queue_capacity_per_client > self.queue_capacity:
            raise ValueError("queue_capacity_per_client is above queue_capacity")
        return self

    @property
    def address(self) -> str:
        """gRPC's target to listen on."""
        return self.listen or target_of(f"unix:{(self.state_dir / 'evaluator.sock').absolute()}")

    def open_sandbox(self) -> Sandbox:
        """The isolation that was chosen. The caller closes it.

        Raises:
            kernelevo_sandbox.SandboxUnavailable: this host cannot give it.
        """
        docker = DockerOptions(
            image=self.docker_image,
            host=self.docker_host,
            runtime=self.docker_runtime,
            gpu=GpuAccess(self.docker_gpu),
        )
        return open_sandbox(self.sandbox, docker=docker)

    def executor_settings(self) -> ExecutorSettings:
        """What the executor needs to know."""
        return ExecutorSettings(
            state_dir=self.state_dir,
            device=self.device,
            lane_cpus=parse_core_sets(self.lane_cpus),
            build_workers=self.build_workers,
            spare_runners=self.spare_runners,
            deep_checks=self.deep_checks,
            isolation_check_s=self.isolation_check_s,
            cpu_time_s=self.cpu_time_s,
            simulated_lanes=self.simulated_lanes,
            simulated_s=self.simulated_s,
            simulated_name=self.simulated_name,
            default_limits=self._limits(""),
            maximum_limits=self._limits("_maximum"),
        )

    def _limits(self, suffix: str) -> Limits:
        def time(name: str) -> timedelta:
            return timedelta(seconds=getattr(self, f"{name}{suffix}_s"))

        def size(name: str) -> int:
            return int(getattr(self, f"{name}{suffix}_bytes"))

        return Limits(
            build_time=time("build_time"),
            prepare_time=time("prepare_time"),
            check_time=time("check_time"),
            run_time=time("run_time"),
            profile_time=time("profile_time"),
            memory_bytes=size("memory"),
            device_memory_bytes=size("device_memory"),
            processes=self.processes_maximum if suffix else self.processes,
            output_bytes=size("output"),
            temporary_bytes=size("temporary"),
        )


_LIMIT_FIELDS = tuple(
    (name.replace("_maximum", ""), name) for name in EvaluatorSettings.model_fields if "_maximum" in name
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSettings:
    """What an executor needs to know of the settings."""

    state_dir: Path
    device: Device = "auto"
    lane_cpus: tuple[frozenset[int], ...] | None = None
    """Cores of each lane; `None`: shared out among the GPUs, or all in one lane of the processor."""
    build_workers: int = 1
    spare_runners: int | None = None
    """Of each lane; `None`: as many as its cores can keep up."""
    deep_checks: DeepChecks = "final"
    isolation_check_s: float = 60.0
    cpu_time_s: float | None = None
    """Of a candidate's runner, and of a build; `None`: only wall clocks bound it."""
    simulated_lanes: int = 1
    simulated_s: float = 1.0
    simulated_name: str = "simulated"
    default_limits: Limits
    maximum_limits: Limits


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings, and where each value came from: `flag`, a variable's name, a file's path, or `default`."""

    settings: EvaluatorSettings
    origin: Mapping[str, str]


class _Table(PydanticBaseSettingsSource):
    """Values that were read already."""

    def __init__(self, kind: type[BaseSettings], values: Mapping[str, Any]) -> None:
        super().__init__(kind)
        self._values = dict(values)

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self._values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return self._values


def load_settings(flags: Mapping[str, Any], configuration: Path | None = None) -> LoadedSettings:
    """Settings from all their sources. `flags` holds what was given on the command line; `None` values do not count.

    Raises:
        SettingsInvalid: an unknown key, or a value that cannot be used.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    path = configuration or Path(CONFIGURATION_FILE)
    table = _read_table(path, required=configuration is not None)
    variables = {
        name.removeprefix(ENVIRONMENT_PREFIX).lower(): name
        for name, value in os.environ.items()
        if name.startswith(ENVIRONMENT_PREFIX) and value
    }
    known = EvaluatorSettings.model_fields
    for names, where in ((variables, "the environment"), (table, str(path))):
        unknown = sorted(set(names) - set(known))
        if unknown:
            raise SettingsInvalid(
                f"unknown setting {', '.join(unknown)} in {where}; the settings are {', '.join(known)}"
            )

    class Sourced(EvaluatorSettings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, _Table(settings_cls, table)

    try:
        settings: EvaluatorSettings = Sourced(**given)
    except (pydantic.ValidationError, SettingsError) as error:
        raise SettingsInvalid(_explain(error, given, variables, table, path)) from error
    return LoadedSettings(settings, {name: _origin(name, given, variables, table, path) for name in known})


def _read_table(path: Path, *, required: bool) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if required:
            raise SettingsInvalid(f"there is no configuration file {path}") from None
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsInvalid(f"{path} cannot be read: {error}") from error
    try:
        table = tomllib.loads(text).get(TABLE, {})
    except tomllib.TOMLDecodeError as error:
        raise SettingsInvalid(f"{path} is not TOML: {error}") from error
    if not isinstance(table, dict):
        raise SettingsInvalid(f"{TABLE} in {path} is not a table")
    return table


def _origin(
    name: str, flags: Mapping[str, Any], variables: Mapping[str, str], table: Mapping[str, Any], path: Path
) -> str:
    if name in flags:
        return "flag"
    if name in variables:
        return variables[name]
    return str(path) if name in table else "default"


def _explain(
    error: Exception, flags: Mapping[str, Any], variables: Mapping[str, str], table: Mapping[str, Any], path: Path
) -> str:
    if not isinstance(error, pydantic.ValidationError):
        return str(error)
    parts = []
    for one in error.errors():
        name = str(one["loc"][0]) if one["loc"] else ""
        where = f" ({_origin(name, flags, variables, table, path)})" if name else ""
        parts.append(f"{name}{where}: {one['msg']}".lstrip(": "))
    return "; ".join(parts)


def parse_core_sets(text: str | None) -> tuple[frozenset[int], ...] | None:
    """`0-3;4-7` as two sets of cores; `None` for nothing.

    Raises:
        ValueError: not of this form, or sets that overlap.
    """
    if not text:
        return None
    sets: list[frozenset[int]] = []
    for part in text.split(";"):
        cores: set[int] = set()
        for piece in part.split(","):
            first, dash, last = piece.strip().partition("-")
            if not first.isdecimal() or (dash and not last.isdecimal()):
                raise ValueError(f"{text!r} is no list of cores; write e.g. 0-3;4-7")
            cores.update(range(int(first), int(last or first) + 1))
        if not cores or any(cores & other for other in sets):
            raise ValueError(f"lanes of {text!r} are empty or share cores")
        sets.append(frozenset(cores))
    return tuple(sets)
