"""CUDA in the build sandbox: built for one device without any, its kernels' resources read, its author told of his own lines."""

from __future__ import annotations

import ctypes
import os
import subprocess

import pytest

from kernelevo_evaluator.lanes.quiet import Quiet
from kernelevo_evaluator.languages.builder import Builder
from kernelevo_evaluator.languages.cuda import cuda_recipe, without_targets
from kernelevo_evaluator.languages.diagnostics import diagnostics, kernel_resources, without_assembler_talk
from kernelevo_evaluator.languages.recipes import Unsupported
from kernelevo_evaluator.languages.toolkit import cuda_toolkit, real_architecture
from kernelevo_evaluator.messages.runner import BuildRequest
from kernelevo_sandbox import BubblewrapSandbox, SandboxUnavailable

MEMORY = 2 << 30
KERNEL = """
#include <cuda_runtime.h>
__global__ void scale(const float* x, float* y, float factor) {
  __shared__ float kept[300];
  kept[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = factor * kept[299 - threadIdx.x];
}
extern "C" int answer() { return 42; }
extern "C" void launch(const float* x, float* y) { scale<<<1, 300>>>(x, y, 2.0f); }
"""
needs_nvcc = pytest.mark.skipif(cuda_toolkit() is None, reason="no CUDA compiler on this host")


@pytest.fixture
async def builder(tmp_path):
    sandbox = BubblewrapSandbox()
    try:
        await sandbox.probe()
    except SandboxUnavailable as error:
        await sandbox.close()
        pytest.skip(f"no sandbox on this host: {error}")
    try:
        cpus = frozenset(os.sched_getaffinity(0))
        yield Builder(sandbox, Quiet(), tmp_path / "artefacts", 2, cpus, architecture="sm_90")
    finally:
        await sandbox.close()


def request(cuda, **options):
    plain = {"nonce": 1, "name": "kernel", "cpp_sources": ("",), "cuda_sources": (cuda,)}
    return BuildRequest(**{**plain, "implicit_headers": False, "python_module": False, **options})


@needs_nvcc
async def test_a_kernel_is_built_for_its_device_alone(builder):
    result = await builder.build(request(KERNEL, cuda_cflags=("-O3 -arch=sm_80",)), 120, MEMORY)
    assert result.path is not None, result.log_text
    assert ctypes.CDLL(str(result.path)).answer() == 42
    (kernel,) = result.kernels
    assert kernel.kernel == "scale"
    assert kernel.registers
    assert kernel.shared_memory_bytes == 1200
    assert kernel.spill_bytes == 0
    assert "ptxas info" not in result.log_text
    names = subprocess.run(["strings", "-n", "4", result.path], capture_output=True, text=True).stdout
    assert "sm_80" not in names
    again = await builder.build(request(KERNEL, cuda_cflags=("-O3 -arch=sm_80",)), 120, MEMORY)
    assert again.cached
    assert again.kernels == result.kernels


@needs_nvcc
async def test_the_author_reads_his_own_lines(builder):
    result = await builder.build(
        request("int good;\n__global__ void k(float* x) {\n  *x = undeclared;\n}\n"), 120, MEMORY
    )
    assert result.path is None
    first = result.diagnostics[0]
    assert (first.severity, first.file, first.line) == ("error", "cuda_sources[0]", 3)
    assert "undeclared" in first.message
    assert ">   *x = undeclared;" in first.excerpt


@needs_nvcc
async def test_too_much_shared_memory_is_an_error_of_the_assembler(builder):
    result = await builder.build(request(KERNEL.replace("kept[300]", "kept[300000]")), 120, MEMORY)
    assert result.path is None
    assert "too much shared data" in result.diagnostics[0].message


async def test_a_host_without_a_device_says_so(tmp_path):
    with pytest.raises(Unsupported, match="no CUDA device"):
        Builder(None, Quiet(), tmp_path, 1, frozenset()).recipe(request(KERNEL))


@needs_nvcc
def test_torch_comes_in_lean_first_and_whole_after():
    recipe = cuda_recipe(
        request("#include <torch/extension.h>\n", implicit_headers=True, functions={"f": "f"}), "sm_90"
    )
    assert [unit.name for unit in recipe.units] == ["main", "cuda"]
    for unit in recipe.units:
        lean, whole = unit.commands
        assert "lean" in lean
        assert "lean" not in whole
        assert [flag for flag in whole if flag not in lean] == []
    assert "arch=compute_90a,code=sm_90a" in recipe.units[1].commands[0]
    assert "-ltorch_cuda" in recipe.link
    (alone,) = cuda_recipe(request(KERNEL), "sm_90").units[1].commands
    assert not any("torch" in part for part in alone)


def test_targets_are_dropped_and_nothing_else():
    flags = ["-O3", "-arch=sm_80", "-gencode", "arch=compute_70,code=sm_70", "--generate-code=arch=x", "-lineinfo"]
    assert without_targets(flags) == ["-O3", "-lineinfo"]


def test_targets_of_devices():
    assert [real_architecture(one) for one in ("sm_80", "sm_89", "sm_90", "sm_100")] == ["80", "89", "90a", "100a"]


LOG = """\
cuda_sources[0](5): error: no instance of overloaded function "f" matches the argument list
            argument types are: (const char [2], int)
    f("x", 3);
    ^

cuda_sources[0](5): error: no instance of overloaded function "f" matches the argument list
            argument types are: (const char [2], int)
cuda_sources[0](2): warning #177-D: variable "q" was declared but never referenced
ptxas error   : Entry function '_Z1kPf' uses too much shared data (0x40000 bytes, 0x38c00 max)
ptxas info    : Compiling entry function 'void soft<float4>(float const*, float*, int)' for 'sm_90a'
ptxas info    : Function properties for void soft<float4>(float const*, float*, int)
    24 bytes stack frame, 16 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 24 bytes cumulative stack size, 64 bytes smem, 380 bytes cmem[0]
/usr/bin/ld: main.o: in function `g': main.cpp:(.text+0x5): undefined reference to `h(int)'
"""


def test_what_cuda_s_tools_say():
    found = diagnostics(LOG, {"cuda_sources[0]": "a\nb\nc\nd\ne\n"})
    assert [one.severity for one in found] == ["error", "error", "error", "warning"]
    assert found[0].message.endswith("; argument types are: (const char [2], int)")
    assert found[0].line == 5
    assert any("undefined reference to `h(int)'" in one.message for one in found)
    (kernel,) = kernel_resources(LOG)
    assert (kernel.kernel, kernel.registers, kernel.shared_memory_bytes, kernel.spill_bytes) == (
        "void soft<float4>",
        255,
        64,
        16,
    )
    assert "ptxas info" not in without_assembler_talk(LOG)
    assert "ptxas error" in without_assembler_talk(LOG)
