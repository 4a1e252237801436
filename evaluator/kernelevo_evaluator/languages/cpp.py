"""`load_inline` with C++ alone, as a recipe: what torch's own build does, without ninja."""

from __future__ import annotations

import platform
import re
import shlex
from typing import TYPE_CHECKING

from kernelevo_evaluator.languages import lean_headers
from kernelevo_evaluator.languages.diagnostics import marked
from kernelevo_evaluator.languages.recipes import OBJECT, Recipe, Unit, Unsupported
from kernelevo_evaluator.languages.toolkit import (
    cpp_compiler,
    cpp_compiler_version,
    torch_includes,
    torch_root,
    torch_standard,
    torch_version,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kernelevo_evaluator.languages.toolkit import CudaToolkit
    from kernelevo_evaluator.messages.runner import BuildRequest

_FLAG_CHARACTERS = 4096
_FLAGS = 256
_TORCH_HEADERS = re.compile(r"#\s*include\s*[<\"](torch|ATen|c10|pybind11|Python\.h)")


def check(request: BuildRequest) -> None:
    """What no build takes.

    Raises:
        Unsupported: the request has it.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,99}", request.name):
        raise Unsupported(f"load_inline's name must be a plain identifier, not {request.name[:100]!r}")
    flags = [*request.cflags, *request.cuda_cflags, *request.ldflags, *request.include_paths]
    if len(flags) > _FLAGS or any(len(flag) > _FLAG_CHARACTERS or "\0" in flag for flag in flags):
        raise Unsupported(
            f"at most {_FLAGS} compiler and linker flags of {_FLAG_CHARACTERS} characters are taken, without NUL"
        )


def includes_torch(texts: Iterable[str]) -> bool:
    """Whether one of these texts includes anything of torch or Python."""
    return any(_TORCH_HEADERS.search(text) for text in texts)


def with_torch(request: BuildRequest) -> bool:
    """Whether anything of torch is used. If not, its libraries are not linked either: they cost more than the rest."""
    return (
        request.implicit_headers
        or request.functions is not None
        or includes_torch((*request.cpp_sources, *request.cuda_sources))
    )


def words(flags: Iterable[str]) -> list[str]:
    """A request's flags as a compiler gets them: torch's build goes through a shell, so one text may hold several."""
    result = []
    for flag in flags:
        try:
            result += shlex.split(flag)
        except ValueError:
            result.append(flag)
    return result


def cpp_recipe(request: BuildRequest) -> Recipe:
    """The build of C++ for the host's processor.

    Raises:
        Unsupported: it cannot be built here.
    """
    check(request)
    if cpp_compiler() is None:
        raise Unsupported("no g++ on this host: install it")
    texts, unit = main_unit(request, None)
    return Recipe(
        files={"main.cpp": texts} | (lean_headers.lean_headers(torch_root()) if with_torch(request) else {}),
        units=(unit,),
        link=link_command(request, [f"{unit.name}.o"], None),
        sources=dict(cpp_texts(request)),
        versions=(cpp_compiler_version(), torch_version(), platform.machine()),
    )


def cpp_texts(request: BuildRequest) -> list[tuple[str, str]]:
    """The C++ texts by the names that messages use; last the bindings of `functions`, as torch makes them."""
    texts = [(f"cpp_sources[{index}]", text) for index, text in enumerate(request.cpp_sources)]
    if request.functions is not None:
        lines = ["PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {"]
        for name, doc in request.functions.items():
            target = f"torch::wrap_pybind_function({name})" if request.error_handling else name
            lines.append(f'm.def("{name}", {target}, {_c_string(doc)});')
        texts.append(("functions", "\n".join([*lines, "}"])))
    return texts


def main_unit(request: BuildRequest, toolkit: CudaToolkit | None) -> tuple[str, Unit]:
    """The C++ unit's text, and how it is compiled; with CUDA's headers within reach where a toolkit is given."""
    text = ("#include <torch/extension.h>\n" if request.implicit_headers else "") + marked(cpp_texts(request))
    compiler = [cpp_compiler() or "g++", "-fdiagnostics-color=never"]
    own = [f"-I{path}" for path in request.include_paths]
    includes = system_includes(
        [*(torch_includes() if with_torch(request) else []), *(toolkit.includes if toolkit else [])]
    )
    rest = ["-fPIC", f"-std={torch_standard()}", *words(request.cflags), "-c", "main.cpp", "-o", "main.o"]
    commands = [(*compiler, *own, *extension_defines(request), *includes, *rest)]
    if includes_torch([text]):
        lean = ["-isystem", lean_headers.FOLDER, *lean_headers.defines(text), "-Wfatal-errors"]
        commands.insert(0, (*compiler, *own, *extension_defines(request), *lean, *includes, *rest))
    return text, Unit("main", tuple(commands))


def extension_defines(request: BuildRequest) -> list[str]:
    """What torch defines for every unit of an extension."""
    if not with_torch(request):
        return []
    return [f"-DTORCH_EXTENSION_NAME={request.name}", "-DTORCH_API_INCLUDE_EXTENSION_H"]


def system_includes(folders: list[str]) -> list[str]:
    """Flags of the compilers."""
    return [part for folder in folders for part in ("-isystem", folder)]


def link_command(request: BuildRequest, objects: list[str], toolkit: CudaToolkit | None) -> tuple[str, ...]:
    """The link, with the libraries that torch links an extension with."""
    # A switch like -fopenmp links a library too, and one build of a single command took it for both.
    flags = [flag for flag in words(request.cflags) if flag.startswith(("-fopenmp", "-pthread", "-flto", "-fsanitize"))]
    command = [cpp_compiler() or "g++", "-shared", *objects, "-o", OBJECT, *flags, *words(request.ldflags)]
    if with_torch(request):
        command += [f"-L{torch_root() / 'lib'}", "-lc10", *(["-lc10_cuda"] if toolkit else []), "-ltorch_cpu"]
        command += [*(["-ltorch_cuda"] if toolkit else []), "-ltorch"]
        if request.python_module:
            command.append("-ltorch_python")
    if toolkit is not None:
        command += [*(f"-L{folder}" for folder in toolkit.libraries), "-lcudart"]
    return tuple(command)


def _c_string(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
