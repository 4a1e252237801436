"""Calls to the engine: in bounded threads, each with a time limit, errors mapped at this edge. Nothing else imports `docker`."""

from __future__ import annotations

import asyncio
import functools
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from kernelevo_sandbox.contract import SandboxBroken, SandboxUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kernelevo_sandbox.docker.options import DockerOptions

DEFAULT_HOST = "unix:///var/run/docker.sock"
IMAGE_LABEL = "org.kernelevo.sandbox"
"""Says that an image was made to run untrusted programs: the tools that give containers GPUs trust what is in an image."""
_LEAST_API = (1, 41)
_THREADS = 4
_LOG_LINES = 20
_BUILD = "build it: docker build -f Dockerfile.gpu -t {image} . (without a registry: sudo make sandbox-image)"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What the engine says of a container's end."""

    running: bool
    pid: int
    """Of its first process, as the engine's host numbers it."""
    exit_code: int
    out_of_memory: bool
    error: str


class Engine:
    """One engine on this host, asked over its Unix socket."""

    def __init__(self, options: DockerOptions) -> None:
        """
        Raises:
            SandboxUnavailable: the `docker` package is missing, or the engine is not on this host.
        """
        try:
            import docker
            import requests
        except ImportError as failure:
            raise SandboxUnavailable(
                "the docker package is missing: pip install 'kernelevo[docker]', or use bubblewrap"
            ) from failure
        host = options.host or os.environ.get("DOCKER_HOST") or DEFAULT_HOST
        if not host.startswith("unix://"):
            raise SandboxUnavailable(
                f"the engine must be on this host, at unix://…, not {host}: memory is shared with it"
            )
        self.host = host
        self._options = options
        self._errors = docker.errors
        self._failures = (docker.errors.DockerException, requests.exceptions.RequestException)
        # The package keeps connections by address asked, each in a pool.
        client = functools.partial(docker.APIClient, base_url=host, timeout=options.call_seconds, num_pools=_THREADS)
        self._make = client
        self._client: Any = None
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="docker")

    async def open(self) -> str:
        """Connect, and see that the engine and the image are fit; returns the image's id.

        Raises:
            SandboxUnavailable: they are not; says what to do.
        """
        if self._client is None:
            try:
                self._client = await self._threaded(self._connect)
            except (OSError, *self._failures) as failure:
                raise SandboxUnavailable(f"no Docker engine answers at {self.host}: {failure}") from failure
        try:
            info = await self._threaded(self._client.info)
            version = await self._threaded(self._client.version)
        except self._failures as failure:
            raise SandboxUnavailable(f"the Docker engine at {self.host} does not answer: {failure}") from failure
        if refusal := engine_refusal(info, version.get("ApiVersion", "0.0"), self._options.runtime):
            raise SandboxUnavailable(refusal)
        image = self._options.image
        try:
            found = await self._threaded(functools.partial(self._client.inspect_image, image))
        except self._errors.ImageNotFound as failure:
            raise SandboxUnavailable(f"there is no image {image}: {_BUILD.format(image=image)}") from failure
        except self._failures as failure:
            raise SandboxUnavailable(f"the Docker engine at {self.host} does not answer: {failure}") from failure
        if refusal := image_refusal(image, found.get("Config") or {}):
            raise SandboxUnavailable(refusal)
        return str(found["Id"])

    def _knock(self) -> None:
        """See that somebody answers: the package leaves a socket open where nobody does."""
        with socket.socket(socket.AF_UNIX) as trial:
            trial.settimeout(self._options.call_seconds)
            trial.connect(self.host.removeprefix("unix://"))

    def _connect(self) -> Any:
        self._knock()
        # The package leaves a socket open as well where it asks for the version in its constructor.
        asking = self._make(version=".".join(map(str, _LEAST_API)))
        try:
            newest = asking.version(api_version=False)["ApiVersion"]
        finally:
            asking.close()
        return self._make(version=newest)

    async def create(self, config: Mapping[str, Any]) -> str:
        """Create a container; returns its id."""
        answer = await self._call("create a container", self._client.create_container_from_config, dict(config))
        return str(answer["Id"])

    async def start(self, container: str) -> None:
        """Start a container."""
        await self._call("start a container", self._client.start, container)

    async def state(self, container: str) -> State:
        """How a container is."""
        said = (await self._call("look at a container", self._client.inspect_container, container))["State"]
        return State(
            running=bool(said["Running"]),
            pid=int(said["Pid"]),
            exit_code=int(said["ExitCode"]),
            out_of_memory=bool(said["OOMKilled"]),
            error=str(said.get("Error") or ""),
        )

    async def log(self, container: str) -> str:
        """What a container's first process wrote before it was ready."""
        text = await self._call("read a container's log", self._client.logs, container, tail=_LOG_LINES)
        return str(text.decode("utf-8", "backslashreplace"))

    async def remove(self, container: str) -> bool:
        """Kill and remove a container; whether there was one."""
        try:
            await self._call("remove a container", self._client.remove_container, container, v=True, force=True)
        except SandboxBroken as failure:
            cause = failure.__cause__
            # 404: it is gone. 409: somebody else is removing it.
            if isinstance(cause, self._errors.APIError) and cause.status_code in (404, 409):
                return False
            raise
        return True

    async def labelled(self, label: str) -> dict[str, dict[str, str]]:
        """Labels, by id, of every container with that label, running or not."""
        found = await self._call("list containers", self._client.containers, all=True, filters={"label": [label]})
        return {str(one["Id"]): dict(one["Labels"]) for one in found}

    def close(self) -> None:
        """Give up the connection. Idempotent."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._client is not None:
            self._client.close()
            self._client = None

    async def _call(self, what: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        def call() -> Any:
            self._knock()
            return function(*arguments, **named)

        try:
            return await self._threaded(call)
        except TimeoutError as failure:
            raise SandboxBroken(f"the engine did not {what} within {self._options.call_seconds:g} s") from failure
        except (OSError, *self._failures) as failure:
            raise SandboxBroken(f"the engine did not {what}: {failure}") from failure

    async def _threaded(self, function: Callable[[], T]) -> T:
        # The client's own limit is one of silence. This one holds where an engine answers byte by byte, too; the thread that
        # is left behind ends with the client's.
        async with asyncio.timeout(2 * self._options.call_seconds):
            return await asyncio.get_running_loop().run_in_executor(self._threads, function)


def engine_refusal(info: Mapping[str, Any], api: str, runtime: str | None) -> str | None:
    """Why this engine cannot isolate; `None`: it can. Pure: judges what the engine says of itself."""
    if info.get("OSType") != "linux":
        return f"the Docker engine runs {info.get('OSType')} containers: Linux is needed"
    if tuple(int(part) for part in api.split(".")) < _LEAST_API:
        return f"the Docker engine speaks API {api}: 20.10 (API {'.'.join(map(str, _LEAST_API))}) or newer is needed"
    security = {str(entry).split(",")[0].removeprefix("name=") for entry in info.get("SecurityOptions") or ()}
    if "seccomp" not in security:
        return "the Docker engine has no seccomp: use one that was built with it, or bubblewrap"
    if "rootless" in security:
        return "a rootless Docker engine keeps its containers from root's control: use bubblewrap, which needs no root"
    if runtime is not None and runtime not in (info.get("Runtimes") or {}):
        known = ", ".join(sorted(info.get("Runtimes") or {}))
        return f"the Docker engine knows no runtime {runtime}: it has {known}"
    return None


def image_refusal(name: str, config: Mapping[str, Any]) -> str | None:
    """Why programs are not run from this image; `None`: they are."""
    if (config.get("Labels") or {}).get(IMAGE_LABEL) != "1":
        return (
            f"{name} is no sandbox image (it has no label {IMAGE_LABEL}=1): {_BUILD.format(image='kernelevo-sandbox')}"
        )
    if config.get("Volumes"):
        return f"{name} declares volumes, which would be writable and without a size: build it without VOLUME"
    names = [entry.partition("=")[0] for entry in config.get("Env") or ()]
    # What prepares a container acts on them, with root's rights (CVE-2025-23266 was an LD_PRELOAD).
    if loading := [entry for entry in names if entry.startswith("LD_") and entry != "LD_LIBRARY_PATH"]:
        return f"{name} sets {', '.join(loading)}: build it without"
    return None
