"""The example that has openevolve search and the evaluator judge: the real program, against a scripted model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from tests.searcher.openai_server import Asked, Reply, serve

from kernelevo_api.client import EvaluatorClient, problem_digest
from kernelevo_api.types import Verdict

if TYPE_CHECKING:
    from conftest import ServedEvaluator

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "openevolve"
SOFTMAX = ROOT / "examples" / "softmax"
OPENEVOLVE = Path(sys.executable).parent / "openevolve-run"
WRONG = (SOFTMAX / "fails" / "wrong_dimension.py").read_text(encoding="utf-8")
FASTER = (EXAMPLE / "initial_program.py").read_text(encoding="utf-8")
# A hundred times the work: no noise of a busy host turns this order around.
SLOW = """\
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        for _ in range(100):
            found = torch.softmax(x, dim=-1)
        return found
"""

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(sys.platform != "linux", reason="the evaluator runs on Linux"),
]


def configuration(folder: Path, address: str) -> Path:
    """The example's own, for this evaluator and one program at a time, so that the script's order is the search's."""
    settings: dict[str, Any] = yaml.safe_load((EXAMPLE / "config.yaml").read_text(encoding="utf-8"))
    settings["evaluator"]["evaluator_args"]["address"] = address
    settings["evaluator"]["parallel_evaluations"] = 1
    settings["checkpoint_interval"] = 1
    settings["database"] |= {"num_islands": 1, "exploitation_ratio": 1.0, "exploration_ratio": 0.0}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


def test_openevolve_finds_the_faster_program_by_our_verdicts(served_evaluator: ServedEvaluator, tmp_path: Path) -> None:
    def program(source: str) -> Reply:
        return Reply(content=f"Here it is.\n```python\n{source}```\n")

    slow = tmp_path / "slow.py"
    slow.write_text(SLOW, encoding="utf-8")
    command = [OPENEVOLVE, slow, EXAMPLE / "evaluator.py"]
    command += ["--config", configuration(tmp_path, served_evaluator.address), "--output", tmp_path / "out"]
    with serve(program(WRONG), program(FASTER), api_key="a-key") as model:
        command += ["--iterations", "2", "--api-base", model.base_url, "--primary-model", "scripted"]
        done = subprocess.run(
            [str(one) for one in command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=380,
            env=os.environ | {"OPENAI_API_KEY": "a-key", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
        )
        asked = list(model.asked)
    told = f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    assert done.returncode == 0, told
    assert len(asked) == 2, told
    programs = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in tmp_path.glob("out/checkpoints/checkpoint_2/programs/*")
    ]
    scores = {one["code"].strip(): one["metrics"]["combined_score"] for one in programs}
    wrong, slow_score, faster = (scores[one.strip()] for one in (WRONG, SLOW, FASTER))
    assert wrong == 0 < slow_score < faster, told
    assert (tmp_path / "out/best/best_program.py").read_text(encoding="utf-8").strip() == FASTER.strip(), told
    # The scores are the evaluator's own, and the model was told its verdict.
    with EvaluatorClient(served_evaluator.address) as client:
        found = list(client.list_evaluations(problem_digest((SOFTMAX / "problem.py").read_text(encoding="utf-8"))))
    lows = {one.timing.speedup.low for one in found if one.timing is not None and one.timing.speedup is not None}
    assert {slow_score, faster} <= lows
    assert Verdict.OUTPUT_MISMATCH in {one.verdict for one in found}
    assert "### verdict\n```\npassed\n```" in prompt(asked[0])


def prompt(asked: Asked) -> str:
    """All that the model was told."""
    return "\n".join(message["content"] for message in asked.body["messages"])
