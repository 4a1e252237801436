"""`torch.utils.cpp_extension.load_inline`, with the build done elsewhere.

The candidate calls it as it always would. Its arguments go to the evaluator, which builds in a sandbox without this process
and answers with the shared object or the compiler's log.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.cpp_extension as cpp_extension

from kernelevo_evaluator.messages.codec import encode
from kernelevo_evaluator.messages.runner import BuildReply, BuildRequest, decode_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelevo_evaluator.channel import Channel


class BuildFailed(RuntimeError):
    """The compiler refused the source; the log is the message."""


def _strings(value: str | Sequence[str] | None) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(str(item) for item in value)


def install(channel: Channel, nonce: int) -> None:
    """Replace torch's `load_inline` for the import that answers `nonce`."""

    def load_inline(
        name: str,
        cpp_sources: str | Sequence[str],
        cuda_sources: str | Sequence[str] | None = None,
        sycl_sources: str | Sequence[str] | None = None,
        functions: str | Sequence[str] | dict[str, str] | None = None,
        extra_cflags: Sequence[str] | None = None,
        extra_cuda_cflags: Sequence[str] | None = None,
        extra_sycl_cflags: Sequence[str] | None = None,
        extra_ldflags: Sequence[str] | None = None,
        extra_include_paths: str | Sequence[str] | None = None,
        build_directory: str | None = None,
        verbose: bool = False,
        with_cuda: bool | None = None,
        with_sycl: bool | None = None,
        is_python_module: bool = True,
        with_pytorch_error_handling: bool = True,
        keep_intermediates: bool = True,
        use_pch: bool = False,
        no_implicit_headers: bool = False,
    ) -> Any:
        """As torch's own; `build_directory`, `verbose`, `keep_intermediates` and `use_pch` have no effect here."""
        if sycl_sources or with_sycl:
            raise BuildFailed("SYCL sources cannot be built by this evaluator")
        if isinstance(functions, str):
            functions = [functions]
        if functions is not None and not isinstance(functions, dict):
            functions = {function: function for function in functions}
        request = BuildRequest(
            nonce=nonce,
            name=str(name),
            cpp_sources=_strings(cpp_sources),
            cuda_sources=_strings(cuda_sources),
            functions=functions,
            cflags=_strings(extra_cflags),
            cuda_cflags=_strings(extra_cuda_cflags),
            ldflags=_strings(extra_ldflags),
            include_paths=_strings(extra_include_paths),
            with_cuda=bool(with_cuda),
            implicit_headers=not no_implicit_headers,
            python_module=bool(is_python_module),
            error_handling=bool(with_pytorch_error_handling),
        )
        channel.send(encode(request))
        data, fds = channel.receive_with_fds()
        reply = decode_command(data)
        if not isinstance(reply, BuildReply) or not reply.ok:
            raise BuildFailed(reply.log if isinstance(reply, BuildReply) else "the evaluator gave no answer")
        path = Path(tempfile.mkdtemp(prefix="kernelevo-built-")) / f"{request.name}.so"
        with os.fdopen(fds[0], "rb") as built:
            path.write_bytes(built.read())
        return _load(request.name, path, request.python_module)

    cpp_extension.load_inline = load_inline


def _load(name: str, path: Path, python_module: bool) -> Any:
    if not python_module:
        torch.ops.load_library(str(path))
        return str(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
