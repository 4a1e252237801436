"""Hostile builds through a whole evaluation: the verdict, where built code runs first, and what a state folder must not be."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from core_bench import HONEST, settings

from kernelevo_api.types import LimitKind, Stage, Verdict
from kernelevo_evaluator.executor import ExecutorFault
from kernelevo_evaluator.lanes.runners import runner_mounts, shown_to_runners
from kernelevo_evaluator.local_executor import LocalExecutor
from kernelevo_sandbox import BubblewrapSandbox

pytestmark = pytest.mark.asyncio(loop_scope="session")

BUILT = (
    HONEST
    + """
import ctypes, os
from torch.utils.cpp_extension import load_inline
lib = ctypes.CDLL(load_inline("built", cpp_sources=r'''{source}''', is_python_module=False, no_implicit_headers=True))
"""
)
FIRST = """
#include <cstdlib>
#include <unistd.h>
static int process, user;
__attribute__((constructor)) static void first() { process = getpid(); user = getuid(); (void)!system("echo x >DROP"); }
extern "C" int ran_in() { return process; }
extern "C" int ran_as() { return user; }
"""
CHECKS = """
assert lib.ran_in() == os.getpid(), "it ran elsewhere"
assert open("DROP").read() == "x\\n", "it did not run"
"""


async def test_built_code_runs_first_in_its_own_runner(bench):
    drop = Path(tempfile.gettempdir()) / f"kernelevo-drop-{os.getpid()}"
    candidate = (BUILT.format(source=FIRST) + CHECKS).replace("DROP", str(drop))
    evaluation = await bench.judge(candidate)
    assert evaluation.verdict is Verdict.PASSED, evaluation.message
    assert not drop.exists()


async def test_an_object_beyond_its_limit_is_the_candidate_s(bench):
    evaluation = await bench.judge(BUILT.format(source='asm(".data\\n.fill 4000000000, 1, 1");'))
    assert (evaluation.verdict, evaluation.stage) == (Verdict.COMPILE_ERROR, Stage.BUILD), evaluation.message
    assert evaluation.limit is LimitKind.FILE_SIZE
    assert "File size limit exceeded" in evaluation.message
    assert evaluation.build is not None
    assert "File size limit exceeded" in evaluation.build.log.head


async def test_a_state_folder_that_candidates_see_is_refused(tmp_path):
    shown = runner_mounts()[0].source if runner_mounts() else Path("/usr")
    assert shown_to_runners(shown / "state") is not None
    assert shown_to_runners(tmp_path) is None
    (tmp_path / "link").symlink_to(shown)
    executor = LocalExecutor(BubblewrapSandbox(), replace(settings(tmp_path), state_dir=tmp_path / "link" / "state"))
    try:
        with pytest.raises(ExecutorFault, match="every candidate sees"):
            await executor.start()
    finally:
        await executor.close()
