"""Building what a candidate hands to `load_inline`: C++ for the CPU, with g++ in a sandbox of its own, cached by content.

The sources carry `#line` marks, so that the compiler speaks of `cpp_sources[0]` and the author's own line numbers.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kernelevo_api.types import CapturedText, Diagnostic, SandboxEnding
from kernelevo_evaluator.lanes.quiet import Deadline
from kernelevo_evaluator.lanes.runners import runner_mounts, sandbox_ending
from kernelevo_sandbox import EndKind, Limits, SandboxSpec

if TYPE_CHECKING:
    from kernelevo_evaluator.lanes.quiet import Quiet
    from kernelevo_evaluator.messages.runner import BuildRequest
    from kernelevo_sandbox import Sandbox

SOURCE_FD, OBJECT_FD = 4, 5
OBJECT_BYTES = 64 << 20
"""Largest shared object that is taken out of a build."""
CACHE_BYTES = 1 << 30
_LOG_BYTES = 16 << 10
_FLAG_CHARACTERS = 4096
_FLAGS = 256
_DIAGNOSTICS = 10
_EXCERPT_COLUMNS = 200

_TORCH_HEADERS = re.compile(r"#\s*include\s*[<\"](torch|ATen|c10|pybind11|Python\.h)")
_DIAGNOSTIC = re.compile(
    r"^(?P<file>[^\s:][^:]*):(?P<line>\d{1,9}):(?:(?P<column>\d{1,9}):)? "
    r"(?P<severity>fatal error|error|warning): (?P<message>.*)$"
)


@dataclass(slots=True)
class _Running:
    """A build that is on, and how many wait for it."""

    task: asyncio.Task[BuildResult]
    waiters: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """One build: the shared object, or why there is none."""

    digest: str
    path: Path | None
    """The object in the cache; `None` where the build failed."""
    cached: bool = False
    wall_seconds: float = 0.0
    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None
    log: CapturedText | None = None
    diagnostics: tuple[Diagnostic, ...] = ()
    ending: SandboxEnding | None = None
    """Where the build did not end by itself with success or a compiler's error."""

    @property
    def log_text(self) -> str:
        """The log as the candidate's author reads it."""
        if self.log is None:
            return ""
        return self.log.head + (f"\n… {self.log.total_bytes} bytes in all …\n{self.log.tail}" if self.log.tail else "")


class CppBuilder:
    """Builds shared objects, a bounded number at a time, and keeps them under the digest of all that went into them."""

    def __init__(self, sandbox: Sandbox, quiet: Quiet, folder: Path, workers: int, cpus: frozenset[int]) -> None:
        self._sandbox = sandbox
        self._quiet = quiet
        self._folder = folder
        self._workers = asyncio.Semaphore(workers)
        self._cpus = cpus
        self._compiler = shutil.which("g++")
        self._version = ""
        self._running: dict[tuple[str, int], _Running] = {}
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def available(self) -> bool:
        """Whether there is a compiler."""
        return self._compiler is not None

    async def version(self) -> str:
        """The compiler's own words."""
        if self._compiler and not self._version:
            process = await asyncio.create_subprocess_exec(
                self._compiler, "--version", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
            )
            out, _ = await process.communicate()
            self._version = out.decode(errors="replace").splitlines()[0]
        return self._version

    async def build(self, request: BuildRequest, seconds: float, memory_bytes: int) -> BuildResult:
        """Build, or take from the cache; equal requests at once build once. The build ends with the last who waits for it.

        Raises:
            SandboxError: ours.
        """
        unsupported = _unsupported(request) or (None if self._compiler else "no g++ on this host: install it")
        if unsupported:
            return BuildResult(digest="", path=None, log=_captured(unsupported.encode()))
        source, command = _source(request), _command(self._compiler or "g++", request)
        digest = hashlib.sha256(
            msgspec.msgpack.encode([source, command, await self.version(), _torch_version(), os.uname().machine])
        ).hexdigest()
        path = self._folder / f"{digest}.so"
        with contextlib.suppress(FileNotFoundError):
            os.utime(path)
            return BuildResult(digest=digest, path=path, cached=True)
        key = (digest, memory_bytes)
        running = self._running.get(key)
        if running is None:
            task = asyncio.create_task(self._build(digest, path, source, command, seconds, memory_bytes))
            running = self._running[key] = _Running(task)
        running.waiters += 1
        try:
            return await asyncio.shield(running.task)
        finally:
            running.waiters -= 1
            if not running.waiters:
                self._running.pop(key, None)
                if not running.task.done():
                    running.task.cancel()
                    await asyncio.wait({running.task})

    async def _build(
        self, digest: str, path: Path, source: str, command: list[str], seconds: float, memory_bytes: int
    ) -> BuildResult:
        async with self._workers:
            source_fd = os.memfd_create("kernelevo-source", os.MFD_CLOEXEC)
            object_fd = os.memfd_create("kernelevo-object", os.MFD_CLOEXEC)
            try:
                os.write(source_fd, source.encode())
                os.lseek(source_fd, 0, os.SEEK_SET)
                process = await self._sandbox.start(
                    SandboxSpec(
                        argv=(
                            "/bin/sh",
                            "-c",
                            f'cat <&{SOURCE_FD} >/tmp/main.cpp && cd /tmp && "$@" && cat /tmp/object.so >&{OBJECT_FD}',
                            "build",
                            *command,
                        ),
                        env={
                            "PATH": "/usr/local/bin:/usr/bin:/bin",
                            "TMPDIR": "/tmp",
                            "LC_ALL": "C.UTF-8",
                            "HOME": "/tmp",
                        },
                        limits=Limits(
                            memory_bytes=memory_bytes,
                            processes=64,
                            file_size_bytes=OBJECT_BYTES,
                            tmpfs_bytes=4 * OBJECT_BYTES,
                            output_bytes=1 << 20,
                        ),
                        fds={SOURCE_FD: source_fd, OBJECT_FD: object_fd},
                        mounts=runner_mounts(),
                        cpus=self._cpus,
                        label="build",
                    )
                )
                try:
                    await self._quiet.add(process)
                    ending = await Deadline(self._quiet, seconds).result(asyncio.create_task(process.wait()))
                    timed_out = False
                except TimeoutError:
                    ending, timed_out = await process.kill(), True
                finally:
                    await self._quiet.remove(process, thaw=False)
                    await process.kill()
                if ending.kind is EndKind.EXITED and ending.exit_code == 0:
                    await asyncio.to_thread(self._keep, object_fd, path)
                log = (ending.stdout.text() + ending.stderr.text()).encode()
                odd = timed_out or ending.kind is not EndKind.EXITED
                return BuildResult(
                    digest=digest,
                    path=path if path.exists() else None,
                    wall_seconds=ending.wall_seconds,
                    cpu_seconds=ending.cpu_seconds,
                    peak_memory_bytes=ending.peak_memory_bytes,
                    log=_captured(log),
                    diagnostics=tuple(diagnostics(log.decode(errors="replace"), source)),
                    ending=sandbox_ending(ending) if odd else None,
                )
            finally:
                os.close(source_fd)
                os.close(object_fd)

    def _keep(self, object_fd: int, path: Path) -> None:
        """Move a finished object into the cache, whole or not at all, and drop the oldest beyond the cache's size."""
        size = os.fstat(object_fd).st_size
        partial = path.with_suffix(f".{os.getpid()}.partial")
        with partial.open("wb") as target:
            offset = 0
            while offset < size:
                piece = os.pread(object_fd, 1 << 20, offset)
                target.write(piece)
                offset += len(piece)
        partial.replace(path)
        kept = sorted(self._folder.glob("*.so"), key=lambda p: p.stat().st_mtime, reverse=True)
        total = 0
        for entry in kept:
            total += entry.stat().st_size
            if total > CACHE_BYTES:
                with contextlib.suppress(FileNotFoundError):
                    entry.unlink()


def _unsupported(request: BuildRequest) -> str | None:
    if request.cuda_sources:
        return "CUDA sources cannot be built on this host: it has no CUDA device"
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,99}", request.name):
        return f"load_inline's name must be a plain identifier, not {request.name[:100]!r}"
    flags = [*request.cflags, *request.ldflags, *request.include_paths]
    if len(flags) > _FLAGS or any(len(flag) > _FLAG_CHARACTERS or "\0" in flag for flag in flags):
        return f"at most {_FLAGS} compiler and linker flags of {_FLAG_CHARACTERS} characters are taken, without NUL"
    return None


def _source(request: BuildRequest) -> str:
    """The translation unit, as torch's `load_inline` puts it together."""
    parts = ["#include <torch/extension.h>"] if request.implicit_headers else []
    for index, text in enumerate(request.cpp_sources):
        parts += [f'#line 1 "cpp_sources[{index}]"', text]
    if request.functions is not None:
        parts += ['#line 1 "functions"', "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {"]
        for name, doc in request.functions.items():
            target = f"torch::wrap_pybind_function({name})" if request.error_handling else name
            parts.append(f'm.def("{name}", {target}, {_c_string(doc)});')
        parts.append("}")
    return "\n".join(parts) + "\n"


def _c_string(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _torch_root() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("torch is not installed: install kernelevo[evaluator]")
    return Path(spec.origin).parent


def _torch_version() -> str:
    from importlib.metadata import version

    return version("torch")


def _command(compiler: str, request: BuildRequest) -> list[str]:
    """One compiler call for compilation and link: what torch's own build uses, without ninja.

    A source that includes none of torch's headers is not linked with torch either: its libraries cost more than the rest.
    """
    root = _torch_root()
    with_torch = (
        request.implicit_headers
        or request.functions is not None
        or any(_TORCH_HEADERS.search(text) for text in request.cpp_sources)
    )
    command = [compiler, "-shared", "-fPIC", "-std=c++20", "-fdiagnostics-color=never"]
    if with_torch:
        command += [
            f"-DTORCH_EXTENSION_NAME={request.name}",
            "-DTORCH_API_INCLUDE_EXTENSION_H",
            "-isystem",
            str(root / "include"),
            "-isystem",
            str(root / "include" / "torch" / "csrc" / "api" / "include"),
            "-isystem",
            sysconfig.get_paths()["include"],
        ]
    command += [f"-I{path}" for path in request.include_paths]
    command += [*request.cflags, "/tmp/main.cpp", "-o", "/tmp/object.so", *request.ldflags]
    if with_torch:
        command += [f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch"]
        if request.python_module:
            command.append("-ltorch_python")
    return command


def diagnostics(log: str, source: str) -> list[Diagnostic]:
    """The compiler's errors and warnings (the first few), with the lines around each."""
    texts = _lines_by_file(source)
    matches = [match for line in log.split("\n") if (match := _DIAGNOSTIC.match(line))]
    matches.sort(key=lambda match: "error" not in match["severity"])
    found = []
    for match in matches[:_DIAGNOSTICS]:
        number = int(match["line"])
        own = texts.get(match["file"], [])
        excerpt = "\n".join(
            f"{n + 1:5d} {'>' if n + 1 == number else ' '} {own[n][:_EXCERPT_COLUMNS]}"
            for n in range(max(0, number - 3), min(len(own), number + 2))
        )
        found.append(
            Diagnostic(
                severity="error" if "error" in match["severity"] else match["severity"],
                message=match["message"][:500],
                file=match["file"][:_EXCERPT_COLUMNS],
                line=number,
                column=int(match["column"]) if match["column"] else None,
                excerpt=excerpt[:2000],
            )
        )
    return found


def _lines_by_file(source: str) -> dict[str, list[str]]:
    texts: dict[str, list[str]] = {}
    current: list[str] = []
    for line in source.split("\n"):
        mark = re.fullmatch(r'#line 1 "(.*)"', line)
        if mark:
            current = texts.setdefault(mark[1], [])
        else:
            current.append(line)
    return texts


def _captured(log: bytes) -> CapturedText:
    if len(log) <= _LOG_BYTES:
        return CapturedText(head=log.decode(errors="replace"), total_bytes=len(log))
    half = _LOG_BYTES // 2
    return CapturedText(
        head=log[:half].decode(errors="replace"), tail=log[-half:].decode(errors="replace"), total_bytes=len(log)
    )
