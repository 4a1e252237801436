"""Evaluations are written the same whether their parts were written before or not."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime, timedelta

import pytest

from kernelevo_api.json import from_json, to_json
from kernelevo_api.types import (
    Build,
    Diagnostic,
    Evaluation,
    Finding,
    Profile,
    Ratio,
    Stage,
    StageTime,
    Timeline,
    Timing,
    Verdict,
)
from kernelevo_api.wire import to_message
from kernelevo_evaluator import written
from kernelevo_evaluator.written import Written

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def cached(number: int) -> Evaluation:
    return Evaluation(
        evaluation_id=f"e{number}",
        verdict=Verdict.PASSED,
        message='"\u2028\x00',
        build=Build(diagnostics=(Diagnostic(severity="warning", message=f"{number}"),)),
        timing=Timing(speedup=Ratio(value=1.5 + number, low=1.25, high=2.0), remarks=("r",)),
        timeline=Timeline(stages=(StageTime(stage=Stage.TIME, start=NOW, end=NOW + timedelta(seconds=number)),)),
        findings=(Finding(code="c", message="m", line=number),),
        from_cache=True,
        created_at=NOW,
    )


def test_the_parts_are_all_that_have_fields() -> None:
    assert {"build", "correctness", "timing", "environment", "timeline", "error", "output", "profile"} < set(
        written._PARTS
    )
    assert not {"findings", "message", "created_at"} & set(written._PARTS)
    empty = Evaluation(verdict=Verdict.PASSED, **dict.fromkeys(written._PARTS))
    assert empty == Evaluation(verdict=Verdict.PASSED), "each of them may be missing"


@pytest.mark.parametrize("kept", [1, 4, 512])
def test_what_is_written_says_the_same(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written, "PARTS_KEPT", kept)
    writes = Written()
    originals = [cached(number) for number in range(4)]
    originals.append(Evaluation(verdict=Verdict.COMPILE_ERROR, from_cache=True, profile=Profile()))
    originals.append(dataclasses.replace(originals[0], from_cache=False))
    for turn in range(3):
        for original in originals:
            one = dataclasses.replace(original, evaluation_id=f"{turn}", created_at=NOW + timedelta(seconds=turn))
            assert writes.message(one) == to_message(one)
            assert json.loads(writes.text(one)) == to_json(one)
            assert from_json(json.loads(writes.text(one)), Evaluation) == one
    assert len(writes._texts._made) <= kept


def test_a_part_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    writes = Written()
    make = writes._messages._make
    monkeypatch.setattr(writes._messages, "_make", lambda part: made.append(part) or make(part))
    one = cached(1)
    for number in range(5):
        message = writes.message(dataclasses.replace(one, evaluation_id=str(number)))
        message.timing.remarks.append("changed by who got it")
    assert made == [one.build, one.timing, one.timeline] or len(made) == 3
    assert writes.message(one).timing.remarks == ["r"]
