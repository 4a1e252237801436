"""Joining two kernels of different structure: who is joined with whom, and what becomes of it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from tests.searcher.scripted_evaluator import KERNEL, ScriptedEvaluator
from tests.searcher.scripted_proposer import ScriptedProposer
from tests.searcher.test_engine import run
from tests.searcher.test_policy import candidate, state_of

from kernelevo_searcher.events import CandidateProposed, ModelCallStarted, RunSettings
from kernelevo_searcher.models import ModelRole
from kernelevo_searcher.policy import ModelResource, Propose
from kernelevo_searcher.policy.merging import or_merge, structure
from kernelevo_searcher.proposers import ActionKind
from kernelevo_searcher.store import read_records

if TYPE_CHECKING:
    from pathlib import Path

    from kernelevo_searcher.events import Event
    from kernelevo_searcher.state import RunState

ALL = frozenset(ActionKind) - {ActionKind.SEED, ActionKind.TUNE}
MODELS = [
    ModelResource(label="small", actions=ALL, role=ModelRole.CHEAP),
    ModelResource(label="big", actions=ALL, role=ModelRole.STRONG),
]
REFINE = Propose(ActionKind.REFINE, "c3", "small")


def two_structures() -> list[Event]:
    return [
        *candidate(1, 1.0, action=ActionKind.SEED),
        *candidate(2, 1.2, parent="c1", action=ActionKind.REFINE, call="m1"),
        *candidate(3, 1.4, parent="c2"),
        *candidate(4, 1.1, action=ActionKind.REWRITE, call="m2"),
        *candidate(5, 1.3, parent="c4", action=ActionKind.REFINE, call="m3"),
        *candidate(6, 0.3, action=ActionKind.RESTART, call="m4"),
    ]


def decided(state: RunState, proposal: Propose = REFINE) -> set[Propose]:
    return {or_merge(proposal, state, MODELS, random.Random(seed)) for seed in range(20)}


def test_the_best_of_another_structure_is_the_second_parent_and_a_strong_model_is_asked() -> None:
    state = state_of(two_structures(), RunSettings(merge_share=1.0))
    assert [structure(state, each) for each in state.candidates.values()] == ["c1", "c1", "c1", "c4", "c4", "c6"]
    # Not c4, which c5 is better than, and not c6, which is too slow.
    assert decided(state) == {Propose(ActionKind.MERGE, "c3", "big", "c5")}
    for action in (ActionKind.FIX, ActionKind.REWRITE, ActionKind.RESTART):
        assert decided(state, Propose(action, "c3", "big")) == {Propose(action, "c3", "big")}


def test_it_is_off_unless_asked_for_and_then_has_its_share() -> None:
    state = state_of(two_structures())
    rng = random.Random(0)
    before = rng.getstate()
    assert or_merge(REFINE, state, MODELS, rng) == REFINE and rng.getstate() == before
    state = state_of(two_structures(), RunSettings(merge_share=0.3))
    merges = sum(or_merge(REFINE, state, MODELS, random.Random(seed)) != REFINE for seed in range(400))
    assert 80 < merges < 160


def test_a_pair_is_joined_once() -> None:
    joined = [
        ModelCallStarted(
            call_id="m5", action=ActionKind.MERGE, model="big", reserved_tokens=1, parent_id="c5", other_id="c3"
        )
    ]
    assert decided(state_of([*two_structures(), *joined], RunSettings(merge_share=1.0))) == {REFINE}
    made = CandidateProposed(
        candidate_id="c7",
        source_digest="s7",
        normal_digest="n7",
        action=ActionKind.MERGE,
        parent_id="c3",
        other_id="c5",
    )
    assert decided(state_of([*two_structures(), made], RunSettings(merge_share=1.0))) == {REFINE}


def test_alone_a_structure_is_refined() -> None:
    assert decided(state_of(two_structures()[:9], RunSettings(merge_share=1.0))) == {REFINE}


@pytest.mark.parametrize("share", [0.0, 1.0])
async def test_a_search_joins_kernels_where_it_is_asked_to(tmp_path: Path, share: float) -> None:
    proposer = ScriptedProposer(breaks=0.0)
    other = KERNEL.replace("GROUP_ROWS = 8", "GROUP_ROWS = 16").replace('"-O2"', '"-O3"')
    await run(
        tmp_path, ScriptedEvaluator(), start=(KERNEL, other), proposer=proposer, evaluations=20, merge_share=share
    )
    merges = [request for request in proposer.requests if request.action is ActionKind.MERGE]
    assert bool(merges) == bool(share)
    for request in merges:
        assert request.parent is not None and request.other is not None and not request.examples
        assert request.parent.id != request.other.id
    made = [
        event
        for record in read_records(tmp_path)
        if isinstance(event := record.event, CandidateProposed) and event.action is ActionKind.MERGE
    ]
    assert bool(made) == bool(share) and all(event.other_id is not None for event in made)
