"""torch's C++ headers, lean: what a kernel's wrapper uses of them, parsed in a fraction of the time.

`torch/extension.h` and `torch/types.h` bring in every operator and the whole C++ frontend, some 240 thousand lines, which each
pass of a compiler reads again. The headers made here stand before torch's own on the include path, bear the same names, and
include of the installed torch what wrappers use: the tensor with all of its methods, the factories and the common operators,
dispatch, checks, streams, pybind11's casts. Nothing in them is declared otherwise than torch does it, and where a source names
something that only the whole header has, the lean one is that. A source that still misses something does not compile with
them: it is then compiled with torch's own, so that they decide nothing but how long it takes.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = "lean"
"""Folder of these headers in a build."""

OPERATORS = (
    *("empty", "empty_like", "empty_strided", "zeros", "zeros_like", "ones", "ones_like", "full", "full_like"),
    *("arange", "linspace", "eye", "rand", "rand_like", "randn", "randn_like", "tensor", "scalar_tensor", "from_blob"),
    *(
        "cat",
        "stack",
        "chunk",
        "split",
        "where",
        "masked_fill",
        "index_select",
        "gather",
        "scatter",
        "transpose",
        "permute",
    ),
    *("matmul", "mm", "bmm", "addmm", "baddbmm", "linear", "conv1d", "conv2d", "conv3d", "layer_norm", "batch_norm"),
    *(
        "add",
        "sub",
        "mul",
        "div",
        "neg",
        "abs",
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "pow",
        "tanh",
        "sigmoid",
        "relu",
        "gelu",
        "silu",
    ),
    *(
        "sum",
        "mean",
        "amax",
        "amin",
        "max",
        "min",
        "argmax",
        "argmin",
        "softmax",
        "log_softmax",
        "cumsum",
        "norm",
        "clamp",
    ),
    *(
        "equal",
        "allclose",
        "isnan",
        "flip",
        "sort",
        "topk",
        "reshape",
        "flatten",
        "squeeze",
        "unsqueeze",
        "empty_permuted",
    ),
)
"""Free functions that are there beside the factories; of a tensor's methods all are."""

WHOLE = {
    "KERNELEVO_WHOLE_CONTEXT": r"\bglobalContext\b|\bat::Context\b|ATen/Context\.h|Generator",
    "KERNELEVO_WHOLE_CUDA_CONTEXT": r"cublas|cusparse|cusolver|CUBLAS|CUSPARSE|CUSOLVER|CUDNN|CUDSS",
    "KERNELEVO_WHOLE_VARIABLE": r"\bautograd\b|\bGradMode\b|\bNoGradGuard\b",
    "KERNELEVO_LIBRARY": r"\bTORCH_LIBRARY|\btorch::Library\b|torch/library\.h",
    "KERNELEVO_INDEXING": r"\bindexing\b|\bindex(?:_put_?)?\s*\(\s*\{|\bSlice\b",
    "KERNELEVO_LISTS": r"\b(?:cat|concat|stack|[hvd]stack|chunk|split|TensorList)\b|ITensorListRef",
    "KERNELEVO_PYTHON": r"pybind|\bpy::|\bPY[A-Z_]|\bPy[A-Z_]|\bTHP|torch/python\.h|TORCH_EXTENSION_NAME",
}
"""What is only there where a source speaks of it: the macro, and what it is told by."""

_ATEN = """\
#pragma once
#ifndef AT_PER_OPERATOR_HEADERS
#define AT_PER_OPERATOR_HEADERS
#endif
#include <c10/util/Logging.h>
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/Formatting.h>
#include <ATen/DeviceGuard.h>
#include <ATen/Dispatch.h>
#include <ATen/TensorOperators.h>
#include <c10/core/Scalar.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/Exception.h>
#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>
{operators}
#ifdef KERNELEVO_INDEXING
#include <ATen/TensorIndexing.h>
#endif
"""
_TYPES = """\
#pragma once
#include <ATen/ATen.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#ifdef KERNELEVO_LIBRARY
#include <torch/library.h>
#endif
{namespace}
"""
_EXTENSION = """\
#pragma once
#include <torch/types.h>
#if !defined(__CUDACC__) || defined(KERNELEVO_PYTHON)
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#endif
"""
# What torch's factories need of the header that they include: on a tensor that was made just now, this is what it does.
_VARIABLE = """\
#pragma once
#ifdef KERNELEVO_WHOLE_VARIABLE
#include_next <torch/csrc/autograd/variable.h>
#else
#include <ATen/core/Tensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
namespace torch::autograd {
using Variable = at::Tensor;
inline at::Tensor make_variable(at::Tensor data, bool requires_grad = false, bool = true) {
  return requires_grad ? data.set_requires_grad(true) : data;
}
}
namespace torch {
using autograd::Variable;
}
#endif
"""
_CONTEXT = """\
#pragma once
#ifdef KERNELEVO_WHOLE_CONTEXT
#include_next <ATen/Context.h>
#else
#include <ATen/core/ATenGeneral.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>
#endif
"""
_DEVICE_GUARD = """\
#pragma once
#ifdef KERNELEVO_LISTS
#include_next <ATen/DeviceGuard.h>
#else
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
namespace at {{
{functions}
}}
#endif
"""
_CUDA_CONTEXT = """\
#pragma once
#ifdef KERNELEVO_WHOLE_CUDA_CONTEXT
#include_next <{name}>
#else
#include <ATen/Context.h>
#include <c10/core/Allocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Logging.h>
#include <cuda_runtime_api.h>
#ifndef KERNELEVO_CUDA_CONTEXT
#define KERNELEVO_CUDA_CONTEXT
#ifndef AT_CUDA_CHECK
#define AT_CUDA_CHECK(EXPR) C10_CUDA_CHECK(EXPR)
#endif
namespace at::cuda {{
using namespace c10::cuda;
{declarations}
}}
#endif
#endif
"""


@functools.lru_cache(maxsize=4)
def lean_headers(torch_root: Path) -> dict[str, str]:
    """The headers for this torch: text by path in a build's folder.

    Args:
        torch_root: the installed package's folder.
    """
    include = torch_root / "include"
    operators = [f"#include <ATen/ops/{n}.h>" for n in OPERATORS if (include / "ATen" / "ops" / f"{n}.h").is_file()]
    frontend = include / "torch" / "csrc" / "api" / "include" / "torch"
    types = _TYPES.format(namespace=_namespace(_text(frontend / "types.h")))
    texts = {
        "ATen/ATen.h": _ATEN.format(operators="\n".join(operators)),
        "ATen/Context.h": _CONTEXT,
        "ATen/DeviceGuard.h": _DEVICE_GUARD.format(
            functions=_tensor_functions(_text(include / "ATen" / "DeviceGuard.h"))
        ),
        "torch/types.h": types,
        "torch/extension.h": _EXTENSION,
        # The frontend's modules, optimisers and data loaders are not for kernels; who uses them gets the whole header.
        "torch/all.h": "#pragma once\n#include <torch/types.h>\n",
        "torch/torch.h": "#pragma once\n#include <torch/extension.h>\n",
        "torch/csrc/autograd/variable.h": _VARIABLE,
    }
    declarations = _declarations(_text(include / "ATen" / "cuda" / "CUDAContextLight.h"))
    for name in ("ATen/cuda/CUDAContext.h", "ATen/cuda/CUDAContextLight.h", "ATen/cuda/Exceptions.h"):
        texts[name] = _CUDA_CONTEXT.format(name=name, declarations=declarations)
    return {f"{FOLDER}/{name}": text for name, text in texts.items()}


def defines(text: str) -> list[str]:
    """The macros that a unit's text asks for, as flags of the compiler."""
    return [f"-D{macro}" for macro, pattern in WHOLE.items() if re.search(pattern, text)]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _namespace(text: str) -> str:
    """What a header declares in `torch`."""
    found = re.search(r"^namespace torch \{.*^\} // namespace torch", text, re.DOTALL | re.MULTILINE)
    return found[0] if found is not None else "namespace torch {\nusing namespace at;\n}"


def _tensor_functions(text: str) -> str:
    """Inline functions of a header that take a tensor."""
    found = re.findall(r"^inline [^{}]*\{.*?^\}", text, re.DOTALL | re.MULTILINE)
    return "\n".join(one for one in found if "List" not in one)


def _declarations(text: str) -> str:
    """Single-line declarations of functions that name no library's handle."""
    found = re.findall(r"^TORCH_CUDA_CPP_API [^;{}#]*;$", text, re.MULTILINE)
    return "\n".join(
        one for one in found if not re.search(r"cublas|cusparse|cusolver|cudss|Workspace", one, re.IGNORECASE)
    )
