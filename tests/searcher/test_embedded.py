"""An evaluator that a searcher starts for itself, and what it is not told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernelevo_searcher import embedded
from kernelevo_searcher.embedded import EmbeddedEvaluator, evaluator_environment

SECRETS = {
    "OPENAI_API_KEY": "sk-1",
    "MY_KEY": "sk-2",
    "HF_TOKEN": "hf-3",
    "AWS_SECRET_ACCESS_KEY": "aws-4",
    "TORCH_API_KEY": "5",
}
NEEDED = {
    "PATH": "/usr/bin",
    "CUDA_VISIBLE_DEVICES": "1",
    "KERNELEVO_EVALUATOR_DEVICE": "cpu",
    "PYTHONPATH": "/code",
    "LC_ALL": "C",
}


def test_it_is_given_what_it_needs_and_no_secret() -> None:
    assert evaluator_environment(SECRETS | NEEDED) == NEEDED


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads the environment of a process from /proc")
def test_its_process_has_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As everybody sees it who may look at the process, its sandboxes' escapes among them."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    waits = tmp_path / "waits"
    waits.write_text("#!/bin/sh\nexec sleep 60\n")
    waits.chmod(0o755)
    monkeypatch.setattr(embedded, "_NEEDED", ())
    monkeypatch.setattr(embedded.sys, "executable", str(waits))
    with EmbeddedEvaluator(tmp_path / "evaluator") as started:
        process = started._process
        assert process is not None
        known = dict(
            entry.partition("=")[::2] for entry in Path(f"/proc/{process.pid}/environ").read_text().split("\0") if entry
        )
    assert known["PATH"] == os.environ["PATH"]
    assert not set(known) & set(SECRETS) and not any(value in known.values() for value in SECRETS.values())
