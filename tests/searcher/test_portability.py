"""The searcher on systems without POSIX: it imports and works there, and says plainly where the evaluator runs."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (ROOT / "searcher" / "kernelevo_searcher", ROOT / "searcher" / "kernelevo", ROOT / "proto" / "kernelevo_api")
POSIX_MODULES = frozenset(
    {"fcntl", "grp", "posix", "pty", "pwd", "resource", "spwd", "syslog", "termios", "tty", "crypt", "nis"}
)
POSIX_FUNCTIONS = frozenset(
    {
        "fork",
        "forkpty",
        "getuid",
        "geteuid",
        "getgid",
        "setsid",
        "killpg",
        "getpgid",
        "setuid",
        "mkfifo",
        "chown",
        "nice",
    }
    | {"sched_getaffinity", "sched_setaffinity", "memfd_create", "pidfd_open", "getloadavg", "wait3", "wait4", "uname"}
)
POSIX_SIGNALS = frozenset({"SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGALRM", "SIGQUIT", "SIGPIPE"})
SOURCES = sorted(path for package in PACKAGES for path in package.rglob("*.py") if "_pb2" not in path.name)


def findings(source: str) -> list[str]:
    """Uses of what only POSIX has, outside of a branch that asked `sys.platform`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [f"import {alias.name}" for alias in node.names if alias.name.split(".")[0] in POSIX_MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in POSIX_MODULES:
            found.append(f"from {node.module} import …")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "os" and node.attr in POSIX_FUNCTIONS:
                found.append(f"os.{node.attr}")
            if node.value.id == "signal" and node.attr in POSIX_SIGNALS:
                found.append(f"signal.{node.attr}")
            if node.attr in {"add_signal_handler", "remove_signal_handler"}:
                found.append(node.attr)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.startswith(("/proc/", "/tmp/", "/dev/"))
        ):
            found.append(node.value)
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nothing_of_posix_is_used(path: Path) -> None:
    assert not findings(path.read_text(encoding="utf-8"))


def test_the_check_sees_what_it_is_for() -> None:
    source = "import fcntl, os, signal\nos.fork()\nsignal.SIGKILL\nloop.add_signal_handler\nx = '/proc/self'\n"
    assert len(findings(source)) == 5


WITHOUT_POSIX = """
import builtins, importlib.abc, os, signal, sys, asyncio

BLOCKED = set({modules!r})
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            caller = sys._getframe(1)
            while caller and "importlib" in caller.f_code.co_filename:
                caller = caller.f_back
            # Python's own library, and others', may look for them and go on without.
            if caller and "kernelevo" in caller.f_code.co_filename:
                raise ImportError("not on this system: " + name)
        return None
sys.meta_path.insert(0, Finder())
import rich.console, typer, sqlalchemy, grpc, pydantic, pydantic_settings, libcst, jinja2, subprocess, tempfile, shutil
for name in {functions!r}:
    if hasattr(os, name):
        delattr(os, name)
for name in {signals!r}:
    if hasattr(signal, name):
        delattr(signal, name)
sys.platform = {platform!r}
"""


def on(platform: str, program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    prelude = WITHOUT_POSIX.format(
        modules=sorted(POSIX_MODULES),
        functions=sorted(POSIX_FUNCTIONS - {"uname"}),
        signals=sorted(POSIX_SIGNALS),
        platform=platform,
    )
    return subprocess.run(
        [sys.executable, "-c", prelude + program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_a_whole_search_runs_there_and_an_evaluator_does_not(platform: str, tmp_path: Path) -> None:
    program = """
import pkgutil, kernelevo, kernelevo_searcher
for module in pkgutil.walk_packages(kernelevo_searcher.__path__, "kernelevo_searcher."):
    if not module.name.endswith("__main__"):
        __import__(module.name)
from pathlib import Path
from tests.searcher.test_cli import make_run
asyncio.run(make_run(Path("run")))
from typer.testing import CliRunner
from kernelevo_searcher.cli import app
best = CliRunner().invoke(app, ["best", "run", "-o", "out.py"])
assert best.exit_code == 0, best.output
report = CliRunner().invoke(app, ["report", "run"])
assert report.exit_code == 0, report.output
Path("p.py").write_text("class Model: pass\\n")
Path("c.py").write_text("class ModelNew: pass\\n")
alone = CliRunner().invoke(app, ["evaluate", "p.py", "c.py"])
assert alone.exit_code == 3, alone.output
print(alone.stderr)
"""
    done = on(platform, program, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"the evaluator runs on Linux, not on {platform}" in done.stdout
    assert "--evaluator HOST:PORT" in done.stdout
