"""`load_inline` with `cuda_sources`, as a recipe: nvcc for one device alone, and g++ beside it."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from kernelevo_evaluator.languages import lean_headers
from kernelevo_evaluator.languages.cpp import (
    check,
    cpp_texts,
    extension_defines,
    includes_torch,
    link_command,
    main_unit,
    system_includes,
    with_torch,
    words,
)
from kernelevo_evaluator.languages.diagnostics import marked
from kernelevo_evaluator.languages.recipes import Recipe, Unit, Unsupported
from kernelevo_evaluator.languages.toolkit import (
    cpp_compiler,
    cpp_compiler_version,
    cuda_toolkit,
    real_architecture,
    torch_includes,
    torch_root,
    torch_standard,
    torch_version,
)

if TYPE_CHECKING:
    from kernelevo_evaluator.languages.toolkit import CudaToolkit
    from kernelevo_evaluator.messages.runner import BuildRequest

TORCH_FLAGS = (
    "-D__CUDA_NO_HALF_OPERATORS__",
    "-D__CUDA_NO_HALF_CONVERSIONS__",
    "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-D__CUDA_NO_HALF2_OPERATORS__",
    "--expt-relaxed-constexpr",
)
"""What torch gives nvcc for every extension."""
_TARGETS = ("-arch", "-code", "-gencode", "--gpu-architecture", "--gpu-code", "--generate-code")


def cuda_recipe(request: BuildRequest, architecture: str) -> Recipe:
    """The build of C++ and CUDA for one device.

    Args:
        architecture: of the device, e.g. "sm_90".

    Raises:
        Unsupported: it cannot be built here.
    """
    check(request)
    toolkit = cuda_toolkit()
    if toolkit is None:
        raise Unsupported("no CUDA compiler on this host: install CUDA's toolkit, or set CUDA_HOME")
    if cpp_compiler() is None:
        raise Unsupported("no g++ on this host: install it")
    main_text, main = main_unit(request, toolkit)
    files, units = {"main.cpp": main_text}, [main]
    if request.cuda_sources:
        cuda_text, cuda = _cuda_unit(request, toolkit, architecture)
        files["cuda.cu"] = cuda_text
        units.append(cuda)
    return Recipe(
        files=files | (lean_headers.lean_headers(torch_root()) if with_torch(request) else {}),
        units=tuple(units),
        link=link_command(request, [f"{unit.name}.o" for unit in units], toolkit),
        sources=dict(cpp_texts(request) + _cuda_texts(request)),
        versions=(cpp_compiler_version(), toolkit.version, torch_version(), platform.machine()),
        environment={"PATH": f"{toolkit.root / 'bin'}:/usr/local/bin:/usr/bin:/bin"},
        mounts=(toolkit.root,),
    )


def _cuda_texts(request: BuildRequest) -> list[tuple[str, str]]:
    return [(f"cuda_sources[{index}]", text) for index, text in enumerate(request.cuda_sources)]


def _cuda_unit(request: BuildRequest, toolkit: CudaToolkit, architecture: str) -> tuple[str, Unit]:
    implicit = "#include <torch/types.h>\n#include <cuda.h>\n#include <cuda_runtime.h>\n"
    text = (implicit if request.implicit_headers else "") + marked(_cuda_texts(request))
    target = real_architecture(architecture)
    flags = without_targets(words(request.cuda_cflags))
    compiler = [toolkit.nvcc, "-gencode", f"arch=compute_{target},code=sm_{target}", "-Xptxas", "-v"]
    own = [f"-I{path}" for path in request.include_paths]
    # The toolkit's own headers nvcc finds itself.
    includes = system_includes([*(torch_includes() if with_torch(request) else []), *toolkit.includes[1:]])
    rest = [*TORCH_FLAGS, "--compiler-options", "-fPIC", *flags]
    if not any(flag.startswith("-std=") for flag in flags):
        rest.append(f"-std={torch_standard()}")
    rest += ["-c", "cuda.cu", "-o", "cuda.o"]
    commands = [(*compiler, *own, *extension_defines(request), *includes, *rest)]
    if includes_torch([text]):
        lean = ["-isystem", lean_headers.FOLDER, *lean_headers.defines(text), "-Xcudafe", "--error_limit=1"]
        commands.insert(0, (*compiler, *own, *extension_defines(request), *lean, *includes, *rest))
    return text, Unit("cuda", tuple(commands))


def without_targets(flags: list[str]) -> list[str]:
    """Flags without those that choose a device: the object is for the one that it will run on, and for no other."""
    kept: list[str] = []
    words_left = iter(flags)
    for flag in words_left:
        name, sign, _ = flag.partition("=")
        if name not in _TARGETS:
            kept.append(flag)
        elif not sign:
            next(words_left, None)
    return kept
