"""Every attack on every backend: contained or limited where a backend isolates, and successful where none does."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

sys.path.insert(0, str(Path(__file__).parent))

from attack import Attack, BuildAttack, Outcome, Result
from attacking import NotHere, run
from attacks import ATTACKS

from kernelevo_sandbox import Sandbox, open_sandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=["bubblewrap", "docker"])
async def isolating(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    if request.param == "docker":
        request.getfixturevalue("docker_engine")
    sandbox = open_sandbox(request.param)
    yield sandbox
    await sandbox.close()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def nothing() -> AsyncIterator[Sandbox]:
    sandbox = open_sandbox("none")
    yield sandbox
    await sandbox.close()


async def outcome_of(sandbox: Sandbox, attack: Attack | BuildAttack) -> Outcome:
    try:
        return await run(sandbox, attack)
    except NotHere as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name.replace(" ", "-"))
async def test_contained(isolating: Sandbox, attack: Attack | BuildAttack) -> None:
    outcome = await outcome_of(isolating, attack)
    assert outcome.result is not Result.NOT_CONTAINED, outcome.evidence


@pytest.mark.skipif(os.geteuid() != 0, reason="what an attack gets without isolation is root's here")
@pytest.mark.parametrize(
    "attack", [attack for attack in ATTACKS if attack.control], ids=lambda attack: attack.name.replace(" ", "-")
)
async def test_it_succeeds_without_isolation(nothing: Sandbox, attack: Attack | BuildAttack) -> None:
    """A positive control: a broken attack cannot pass for a contained one."""
    outcome = await outcome_of(nothing, attack)
    assert outcome.taken, outcome.evidence


async def test_there_are_many() -> None:
    assert len(ATTACKS) >= 40 and len({attack.name for attack in ATTACKS}) == len(ATTACKS)
    kinds = Counter(attack.kind for attack in ATTACKS)
    assert all(count >= 2 for count in kinds.values()), kinds
    written = (Path(__file__).parents[2] / "docs" / "attacks.md").read_text()
    assert all(f"| {attack.name} |" in written for attack in ATTACKS), "make the table anew"
