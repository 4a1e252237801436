"""Seconds from source to shared object, typical `cuda_inline` candidates: torch's own `load_inline` against our builds.

Needs nvcc, g++ and a CUDA build of torch; no device, where `--architecture` names one.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from results import ROOT, save

from kernelevo_evaluator.lanes.quiet import Quiet
from kernelevo_evaluator.languages.builder import Builder
from kernelevo_evaluator.messages.runner import BuildRequest
from kernelevo_sandbox import BubblewrapSandbox

CANDIDATES = {
    "tensors in the interface, torch/extension.h": "gpu_elementwise_chain/passes/cuda_float4.py",
    "tensors in the interface, bfloat16": "gpu_rms_norm_residual/passes/cuda_vectorised.py",
    "raw pointers through ctypes": "gpu_softmax/passes/cuda_shared_row.py",
}
"""By what they include."""
MEMORY_BYTES = 8 << 30
SECONDS = 300

STOCK = """
import json, sys, time
import torch
from torch.utils.cpp_extension import load_inline
arguments = json.load(sys.stdin)
began = time.monotonic()
load_inline(**arguments)
print(json.dumps(time.monotonic() - began))
"""


def arguments_of(candidate: Path) -> dict[str, Any]:
    """The arguments of the candidate's one call of `load_inline`, read without running it."""
    tree = ast.parse(candidate.read_text(encoding="utf-8"))
    constants = {
        statement.targets[0].id: ast.literal_eval(statement.value)
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and isinstance(statement.value, ast.Constant | ast.List)
    }
    (call,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "load_inline"
    )
    return {
        str(one.arg): constants[one.value.id] if isinstance(one.value, ast.Name) else ast.literal_eval(one.value)
        for one in call.keywords
    }


def distinct(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same as another text, so that nothing of it is built already."""
    return arguments | {"cuda_sources": f"{arguments['cuda_sources']}\n// {uuid.uuid4()}\n"}


def stock(arguments: dict[str, Any], architecture: str) -> float:
    """Seconds of torch's `load_inline` in a process of its own, in a fresh folder."""
    with tempfile.TemporaryDirectory(prefix="kernelevo-stock-") as folder:
        environment = os.environ | {"TORCH_EXTENSIONS_DIR": folder}
        if architecture:
            number = architecture.removeprefix("sm_")
            environment["TORCH_CUDA_ARCH_LIST"] = f"{number[:-1]}.{number[-1]}+PTX"
        done = subprocess.run(
            [sys.executable, "-c", STOCK],
            input=json.dumps(arguments),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env=environment,
        )
    if done.returncode:
        raise RuntimeError(f"torch's own build failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return float(json.loads(done.stdout.splitlines()[-1]))


def request(arguments: dict[str, Any]) -> BuildRequest:
    """As a runner asks for it."""
    functions = arguments.get("functions")
    return BuildRequest(
        nonce=1,
        name=arguments["name"],
        cpp_sources=(arguments["cpp_sources"],),
        cuda_sources=(arguments["cuda_sources"],),
        functions={name: name for name in functions} if functions is not None else None,
        cuda_cflags=tuple(arguments.get("extra_cuda_cflags") or ()),
        implicit_headers=not arguments.get("no_implicit_headers", False),
        python_module=arguments.get("is_python_module", True),
    )


async def ours(builder: Builder, arguments: dict[str, Any]) -> float:
    """Seconds of a build in the sandbox."""
    began = time.monotonic()
    result = await builder.build(request(arguments), SECONDS, MEMORY_BYTES)
    if result.path is None:
        raise RuntimeError(f"the build failed:\n{result.log_text}")
    print(f"    {', '.join(f'{k.kernel}: {k.registers} registers' for k in result.kernels)}", flush=True)
    return time.monotonic() - began


async def measure(architecture: str, repeats: int, stock_repeats: int) -> dict[str, Any]:
    """Seconds by candidate: lists of `ours` and `stock`."""
    raw: dict[str, Any] = {}
    sandbox = BubblewrapSandbox()
    await sandbox.probe()
    try:
        with tempfile.TemporaryDirectory(prefix="kernelevo-builds-") as folder:
            cpus = frozenset(os.sched_getaffinity(0))
            builder = Builder(sandbox, Quiet(), Path(folder), 1, cpus, architecture=architecture)
            for name, path in CANDIDATES.items():
                arguments = arguments_of(ROOT / "examples" / path)
                one: dict[str, Any] = {"ours": [], "stock": []}
                raw[name] = one
                try:
                    for _ in range(repeats):
                        one["ours"].append(await ours(builder, distinct(arguments)))
                    for _ in range(stock_repeats):
                        one["stock"].append(await asyncio.to_thread(stock, distinct(arguments), architecture))
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    one["error"] = str(error)
                    print(error, file=sys.stderr, flush=True)
                print(name, one["ours"], one["stock"], flush=True)
    finally:
        await sandbox.close()
    return raw


def device_architecture() -> str:
    """Of the first device of this host."""
    import torch

    return "sm_{}{}".format(*torch.cuda.get_device_capability(0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--architecture", help="device to build for, e.g. sm_90; default: the first device of this host"
    )
    parser.add_argument("--repeats", type=int, default=3, help="builds of ours of each candidate")
    parser.add_argument("--stock-repeats", type=int, default=1, help="builds of torch's of each candidate")
    options = parser.parse_args()
    architecture = options.architecture or device_architecture()
    raw = asyncio.run(measure(architecture, options.repeats, options.stock_repeats))
    figures: list[dict[str, Any]] = []
    for name, one in raw.items():
        if one["ours"]:
            seconds = statistics.median(one["ours"])
            figures.append({"figure": f"build of a cuda_inline candidate, {name}", "value": seconds, "unit": "s"})
        if one["ours"] and one["stock"]:
            ratio = statistics.median(one["stock"]) / statistics.median(one["ours"])
            figures.append(
                {"figure": f"torch's own build against ours, {name}", "value": ratio, "unit": "x", "bound": ">= 3"}
            )
    save(__file__, figures, raw=raw)


if __name__ == "__main__":
    main()
