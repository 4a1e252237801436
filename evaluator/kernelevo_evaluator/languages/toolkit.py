"""The tools and headers that builds use: compilers, CUDA's toolkit, the installed torch. Found without importing torch."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

_TOOL_SECONDS = 30
_ARCHITECTURE_SPECIFIC = 90
"""From this compute capability on a device has instructions that only its own `a` target offers (Hopper's wgmma, for one)."""


@functools.cache
def torch_root() -> Path:
    """Folder of the installed torch.

    Raises:
        FileNotFoundError: there is none.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("torch is not installed: install kernelevo[evaluator]")
    return Path(spec.origin).parent


def torch_version() -> str:
    """As its package says, e.g. "2.11.0+cu130"."""
    return version("torch")


@functools.cache
def torch_standard() -> str:
    """The C++ standard that the installed torch builds extensions with, e.g. "c++17"."""
    text = (torch_root() / "utils" / "cpp_extension.py").read_text(encoding="utf-8")
    found = re.search(r"'-fPIC', '-std=(c\+\+\d\d)'", text)
    return found[1] if found else "c++20"


def torch_includes() -> list[str]:
    """Folders of headers for an extension: torch's own and Python's."""
    include = torch_root() / "include"
    return [str(include), str(include / "torch" / "csrc" / "api" / "include"), sysconfig.get_paths()["include"]]


def first_line(command: list[str]) -> str:
    """The first line that a tool prints; empty where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.splitlines()[0] if done.returncode == 0 and done.stdout else ""


@functools.cache
def cpp_compiler() -> str | None:
    """Path of g++; `None` without one."""
    return shutil.which("g++")


@functools.cache
def cpp_compiler_version() -> str:
    """The compiler's own words; empty without one."""
    compiler = cpp_compiler()
    return first_line([compiler, "--version"]) if compiler is not None else ""


@dataclass(frozen=True, slots=True)
class CudaToolkit:
    """CUDA's compiler, headers and libraries."""

    root: Path
    version: str
    """Of the compiler, e.g. "13.0"."""

    @property
    def nvcc(self) -> str:
        """Path of the compiler."""
        return str(self.root / "bin" / "nvcc")

    @property
    def includes(self) -> list[str]:
        """Folders of headers: the toolkit's, then those of the math libraries that torch's CUDA packages bring."""
        packaged = sorted(torch_root().parent.glob("nvidia/*/include/cublas_v2.h"))
        return [str(self.root / "include"), *(str(header.parent) for header in packaged)]

    @property
    def libraries(self) -> list[str]:
        """Folders of libraries; last that of the driver's stand-in, since a build sandbox has no driver."""
        folders = [self.root / name for name in ("lib64", "lib", "targets/x86_64-linux/lib", "lib64/stubs")]
        return [str(folder) for folder in folders if folder.is_dir()]


def cuda_root() -> Path | None:
    """Where CUDA's toolkit is installed: $CUDA_HOME, or around the nvcc on PATH, or /usr/local/cuda, or the newest beside it."""
    places = [Path(os.environ["CUDA_HOME"])] if os.environ.get("CUDA_HOME") else []
    found = shutil.which("nvcc")
    if found is not None:
        places.append(Path(found).resolve().parent.parent)
    places.append(Path("/usr/local/cuda"))
    places += sorted(Path("/usr/local").glob("cuda-*"), reverse=True)
    # A wrapper on PATH has no headers beside it.
    return next(
        (
            p.resolve()
            for p in places
            if (p / "bin" / "nvcc").is_file() and (p / "include" / "cuda_runtime.h").is_file()
        ),
        None,
    )


@functools.cache
def cuda_toolkit() -> CudaToolkit | None:
    """The toolkit of this host; `None` without one."""
    root = cuda_root()
    if root is None:
        return None
    done = subprocess.run([root / "bin" / "nvcc", "--version"], capture_output=True, text=True, timeout=_TOOL_SECONDS)
    release = re.search(r"release ([0-9.]+)", done.stdout)
    return CudaToolkit(root=root, version=release[1]) if release else None


def real_architecture(architecture: str) -> str:
    """The compiler's target for a device, with all of the device's instructions: "sm_90" gives "90a", "sm_86" gives "86"."""
    number = architecture.removeprefix("sm_")
    return number + "a" if number.isdigit() and int(number) >= _ARCHITECTURE_SPECIFIC else number
