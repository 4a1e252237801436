"""Building C++ in its sandbox: what the author is told, what is kept, and what a hostile source gets."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shlex
from pathlib import Path

import pytest

from kernelevo_api.types import LimitKind, SandboxEnd, Verdict
from kernelevo_evaluator.lanes.loading import build_failure
from kernelevo_evaluator.lanes.quiet import Quiet
from kernelevo_evaluator.languages.builder import Builder
from kernelevo_evaluator.languages.diagnostics import diagnostics, last_words
from kernelevo_evaluator.messages.runner import BuildRequest
from kernelevo_sandbox import BubblewrapSandbox, NoSandbox, SandboxUnavailable, owners

MEMORY = 512 << 20


class Counting(BubblewrapSandbox):
    """The real sandbox, and how many processes were started and are still held."""

    def __init__(self):
        super().__init__()
        self.processes = []

    async def start(self, spec):
        process = await super().start(spec)
        if spec.label == "build":
            self.processes.append(process)
        return process


@pytest.fixture
async def builder(tmp_path):
    sandbox = Counting()
    made = Builder(sandbox, Quiet(), tmp_path / "artefacts", 2, frozenset(os.sched_getaffinity(0)))
    if not made.available:
        pytest.skip("no g++ on this host")
    try:
        await sandbox.probe()
    except SandboxUnavailable as error:
        await sandbox.close()
        pytest.skip(f"no sandbox on this host: {error}")
    made.sandbox = sandbox
    try:
        yield made
        assert all(process.ended for process in sandbox.processes)
        assert not list((tmp_path / "artefacts").glob("*.partial"))
    finally:
        await sandbox.close()


@pytest.fixture
async def unisolated(tmp_path):
    """A builder where nothing isolates."""
    sandbox = NoSandbox()
    try:
        made = Builder(sandbox, Quiet(), tmp_path, 4, frozenset(os.sched_getaffinity(0)))
        if not made.available:
            pytest.skip("no g++ on this host")
        yield made
    finally:
        await sandbox.close()


def request(*sources, **options):
    return BuildRequest(
        **{
            "nonce": 1,
            "name": "kernel",
            "cpp_sources": sources,
            "implicit_headers": False,
            "python_module": False,
            **options,
        }
    )


ADD = 'extern "C" int add(int a, int b) { return a + b; }\n'


async def build(builder, *sources, seconds=20.0, **options):
    return await builder.build(request(*sources, **options), seconds, MEMORY)


async def test_a_build_works_and_is_kept(builder):
    first = await build(builder, ADD)
    assert ctypes.CDLL(str(first.path)).add(2, 3) == 5
    assert not first.cached
    again = await build(builder, ADD)
    assert again.cached
    assert again.path == first.path
    assert len(builder.sandbox.processes) == 1
    other = await build(builder, ADD, cflags=("-O3",))
    assert other.digest != first.digest


async def test_equal_builds_at_once_are_one(builder):
    results = await asyncio.gather(*(build(builder, ADD) for _ in range(5)))
    assert len({result.path for result in results}) == 1
    assert results[0].path is not None
    assert len(builder.sandbox.processes) == 1


async def test_one_who_gives_up_does_not_stop_the_others(builder):
    tasks = [asyncio.create_task(build(builder, ADD)) for _ in range(2)]
    while not builder.sandbox.processes:
        await asyncio.sleep(0.01)
    tasks[0].cancel()
    assert (await tasks[1]).path is not None


async def test_who_joins_has_a_limit_of_his_own(builder):
    """The first to ask gives up after a tenth of a second; the build goes on for the one who has longer."""
    slow = ADD + ", ".join(["#include <regex>\n#include <random>\nint used"]) + ";\n"
    impatient, patient = await asyncio.gather(build(builder, slow, seconds=0.1), build(builder, slow, seconds=60.0))
    assert impatient.path is None
    assert impatient.ending.kind is SandboxEnd.WALL_TIMEOUT
    assert patient.path is not None
    assert len(builder.sandbox.processes) == 1


async def test_waiting_for_a_worker_is_in_no_limit(builder):
    results = await asyncio.gather(*(build(builder, ADD + f"int unused{n};", seconds=20.0) for n in range(4)))
    assert all(result.path is not None for result in results)
    assert max(result.waited_seconds for result in results) > 0


BOMB = """
template <int N> struct Bomb { static constexpr long v = Bomb<N-1>::v + Bomb<N-2>::v * Bomb<N/2>::v; };
template <> struct Bomb<0> { static constexpr long v = 1; };
template <> struct Bomb<1> { static constexpr long v = 1; };
template <int N, int M> struct Grow {
  typedef typename Grow<N - 1, 2 * M>::t a;
  typedef typename Grow<N - 1, 2 * M + 1>::t b;
  typedef a t;
};
template <int M> struct Grow<0, M> { typedef int t; };
Grow<26, 1>::t x;
"""


async def test_a_build_ends_with_the_last_who_waits(builder):
    task = asyncio.create_task(build(builder, BOMB))
    while not builder.sandbox.processes:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(process.ended for process in builder.sandbox.processes)


async def test_processor_time_is_a_limit_of_its_own(builder):
    builder._cpu_seconds = 0.2
    result = await build(builder, ADD + "#include <regex>\n#include <random>\n")
    assert result.path is None and result.ending.kind is SandboxEnd.CPU_TIMEOUT
    failure = build_failure(result)
    assert (failure.verdict, failure.limit) == (Verdict.TIMEOUT, LimitKind.CPU_TIME)


@pytest.mark.parametrize("seconds", [1.0])
async def test_template_bomb(builder, seconds):
    result = await builder.build(request(BOMB), seconds, 256 << 20)
    assert result.path is None
    assert result.ending is None or result.ending.kind in (SandboxEnd.KILLED, SandboxEnd.OUT_OF_MEMORY)


async def test_the_author_reads_his_own_line_numbers(builder):
    result = await build(builder, ADD, "int good;\n\nint bad = undeclared;\nint more;\n")
    assert result.path is None
    first = result.diagnostics[0]
    assert (first.severity, first.file, first.line) == ("error", "cpp_sources[1]", 3)
    assert "undeclared" in first.message
    assert "> int bad = undeclared;" in first.excerpt
    assert "/tmp" not in first.file


async def test_errors_come_before_warnings(builder):
    source = '#warning "one"\n' * 30 + "int bad = undeclared;\n"
    result = await build(builder, source)
    assert result.diagnostics[0].severity == "error"
    assert result.diagnostics[0].line == 31
    assert len(result.diagnostics) == 10


@pytest.mark.parametrize("path", ["/etc/passwd", "/etc/shadow", "/proc/1/environ", "/root/.bashrc"])
async def test_files_of_the_host_do_not_reach_the_log(builder, path, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_HOST", "do-not-show-this")
    result = await build(builder, f'#include "{path}"\n')
    # The namespace's first process may be one of the build's own, whose environment is empty: nothing to include, no error.
    assert result.path is None or path == "/proc/1/environ"
    assert "do-not-show-this" not in result.log_text
    assert "root:" not in result.log_text
    assert "/bin/bash" not in result.log_text


async def test_endless_header(builder):
    result = await build(builder, '#include "/dev/zero"\n', seconds=5.0)
    assert result.path is None


@pytest.mark.parametrize(
    "options",
    [
        {"ldflags": ("-lno_such_library",)},
        {"ldflags": ("garbage.o",)},
        {"ldflags": ("-Wl,--version-script=/nowhere",)},
        {"cflags": ("--no-such-flag",)},
        {"cflags": ("@/no/such/file",)},
        {"cflags": ("nul\0byte",)},
        {"cflags": ("-DX=" + "x" * 200_000,)},
        {"cflags": ("-DX",) * 5000},
        {"include_paths": ("\0",)},
        {"name": "not a name"},
        {"name": "../../escape"},
        {"name": "x" * 200},
        {"cuda_sources": ("__global__ void k() {}",)},
        {"functions": {"no_such_function": 'a "quoted"\ndoc'}, "implicit_headers": False},
    ],
    ids=lambda options: str(options)[:40].replace("\0", "0"),
)
async def test_garbage_is_a_failed_build(builder, options):
    result = await build(builder, ADD, **options)
    assert result.path is None
    assert result.log_text


@pytest.mark.parametrize(("count", "fits"), [(1000, True), (90_000_000, False)])
async def test_a_wrapper_may_write_what_it_likes_into_its_own_result(builder, count, fits):
    """The compiler's flags can run programs: inside the sandbox, and the result is loaded by its own author alone."""
    command = f'head -c {count} /dev/zero >&5; exec "$@"'
    result = await build(builder, ADD, cflags=("-wrapper", shlex.quote(f"sh,-c,{command},sh")))
    assert (result.path is not None) is fits, result.log_text
    if result.path is not None:
        assert result.path.read_bytes().startswith(bytes(count))


async def test_one_build_under_two_limits_at_once(builder):
    """They are two builds of one digest, and may end in the same moment."""
    limits = [(384 + 16 * n) << 20 for n in range(4)]
    results = await asyncio.gather(*(builder.build(request(ADD), 60.0, memory) for memory in limits))
    assert len({result.path for result in results}) == 1
    assert ctypes.CDLL(str(results[0].path)).add(2, 3) == 5
    assert len(builder.sandbox.processes) == 4


async def test_builds_where_nothing_isolates_do_not_share_a_folder(unisolated):
    sources = [f'extern "C" int answer() {{ return {n}; }}\n' for n in range(4)]
    results = await asyncio.gather(*(build(unisolated, source, seconds=60.0) for source in sources))
    assert [ctypes.CDLL(str(result.path)).answer() for result in results] == [0, 1, 2, 3]


async def test_a_build_that_nothing_isolates_leaves_nothing_when_it_is_ended(unisolated):
    bomb = "template <int N, int M> struct G { typedef typename G<N-1, 2*M>::t a; typedef typename G<N-1, 2*M+1>::t b; };\n"
    bomb += "template <int M> struct G<0, M> { typedef int t; }; G<26, 1>::a x;\n"
    result = await build(unisolated, bomb, seconds=1.0)
    assert result.path is None and result.ending.kind is SandboxEnd.KILLED
    assert not list(Path("/tmp").glob(f"kernelevo-none-{owners.mark()}-*"))


async def test_a_flood_in_the_log(builder):
    """It is cut, and the build goes on: an honest template's errors may fill as much."""
    source = "\n".join(f'#warning "{"y" * 200} {n}"' for n in range(20_000))
    result = await build(builder, ADD + source)
    assert result.path is not None
    assert result.log.total_bytes > 60_000
    assert len(result.log_text) < 40_000


async def test_the_folder_stays_within_its_size(builder, monkeypatch):
    monkeypatch.setattr("kernelevo_evaluator.languages.artefacts.CACHE_BYTES", 40_000)
    paths = [(await build(builder, ADD + f"int unused{n};\n")).path for n in range(4)]
    kept = [path for path in paths if path.exists()]
    assert 1 <= len(kept) < 4
    assert paths[-1] in kept


def test_a_log_that_lies_about_lines():
    """The log is the author's to write: whatever stands there, reading it neither fails nor takes long."""
    log = "\n".join(
        [
            "a:99999999999999999999999: error: x",
            "b:" + "1" * 6000 + ": error: y",
            "c:12:" + "9" * 50 + ": error: z",
            "cpp_sources[0]:7: error: real",
            "x" * 100_000 + ":1: error: long",
        ]
    )
    found = diagnostics(log, {"cpp_sources[0]": "a\n" * 9})
    assert all(d.line < 2**31 and len(d.file) <= 200 for d in found)
    assert any(d.message == "real" and "7 > a" in d.excerpt for d in found)
    wide = {"cpp_sources[0]": "w" * 5_000_000}
    many = "".join(f"cpp_sources[0]:1: warning: w{n}\n" for n in range(20_000))
    assert sum(len(d.excerpt) for d in diagnostics(many, wide)) < 10_000


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("g++: internal compiler error: File size limit exceeded signal terminated program as", "File size limit"),
        ("cc1plus: fatal error: plugin ./p.so is not licensed", "plugin ./p.so"),
        ("nvcc fatal   : Unknown option '--no-such'", "Unknown option"),
        ("/tmp/ccX.s:4: Error: file not found: /etc/shadow", "file not found: /etc/shadow"),
    ],
)
def test_what_drivers_and_assemblers_say(line, message):
    [found] = diagnostics(f"{line}\ncompilation terminated.\n", {})
    assert found.severity == "error"
    assert found.message.startswith(message)
    assert (found.file, found.line) == ("", None)


def test_the_last_words_are_not_that_the_linker_failed():
    log = "/usr/bin/ld: cannot open map file /x: No such file\ncollect2: error: ld returned 1 exit status\n\n"
    assert last_words(log) == "/usr/bin/ld: cannot open map file /x: No such file"
    assert last_words("collect2: error: ld returned 1 exit status\n") == ""


def test_other_line_breaks_do_not_shift_the_numbers():
    source = {"cpp_sources[0]": "// form\x0cfeed\u2028here\nint bad;\n"}
    assert "> int bad;" in diagnostics("cpp_sources[0]:2:1: error: e", source)[0].excerpt
