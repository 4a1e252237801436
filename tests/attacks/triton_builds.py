"""Attacks by Triton's compiler, which runs where its candidate does: programs, as others are."""

from __future__ import annotations

import importlib.util
from typing import Any

from attack import Attack

from kernelevo_sandbox import EndKind

_KERNEL = """
import triton
import triton.language as tl
@triton.jit
def unrolled(x, N: tl.constexpr):
    for i in tl.static_range(N):
        tl.store(x + i, i)
"""


def _attack(name: str, times: str, before: str, after: str, **fields: Any) -> Attack:
    """What runs before the compiler is loaded, and after it has unrolled the kernel so many times, for a GPU that need not be."""
    source = f"""
sys.path.insert(0, given['packages'])
os.environ['TRITON_CACHE_DIR'] = '/tmp/triton-' + str(os.getpid())
{before}
try: import triton
except ImportError as e: refused(e)
from triton.backends.compiler import GPUTarget
import importlib.util, tempfile
place = tempfile.mkdtemp() + '/kernel.py'
open(place, 'w').write({_KERNEL!r})
spec = importlib.util.spec_from_file_location('kernel', place)
kernel = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernel)
asked = triton.compiler.ASTSource(kernel.unrolled, {{'x': '*fp32', 'N': 'constexpr'}}, {{(1,): {times}}})
try: triton.compile(asked, target=GPUTarget('cuda', 90, 32))
except Exception as e: print(e)
{after}
"""
    return Attack(name=name, kind="build", source=source, **fields)


TRITON_BUILDS: list[Attack] = [
    _attack(
        "a kernel in Triton that unrolls without end",
        times="1 << 30",
        before="",
        after="got('compiled')",
        limits={"wall_seconds": 5.0},
        ends=frozenset({EndKind.WALL_TIMEOUT, EndKind.OUT_OF_MEMORY}),
        control=False,
    ),
    _attack(
        "a program in ptxas's place, run by Triton",
        times="4",
        before="""
tool = '/tmp/tool-' + str(os.getpid())
taken = tool + '-taken'
open(tool, 'w').write(f"#!/bin/sh\\ncat {given['secret']} >{taken} 2>&1\\necho release 13.0, V13.0\\nexit 1\\n")
os.chmod(tool, 0o755)
os.environ['TRITON_PTXAS_PATH'] = tool
""",
        after="""
said = open(taken).read() if os.path.exists(taken) else 'it did not run'
for name in (tool, taken):
    if os.path.exists(name): os.unlink(name)
got(said) if said.startswith('host-secret') else refused(said)
""",
        limits={"memory_bytes": 1 << 30},
        control=importlib.util.find_spec("triton") is not None,
    ),
]
