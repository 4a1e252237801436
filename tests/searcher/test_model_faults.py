"""A search against a model server that fails in every way: no paid reply is lost, nothing is overspent, the ledger is exact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest
from tests.searcher import faulty_model

from kernelevo_searcher import model_calls

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_the_account_of_a_search_in_a_storm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: Literal["chat", "responses"], stream: bool
) -> None:
    monkeypatch.setattr(model_calls, "_FIRST_BACKOFF_S", 0.01)
    account = await faulty_model.search(tmp_path, 3, api=api, stream=stream, budget=90_000)
    assert not account.wrong
    assert account.faults > 10 and account.spent > account.budget / 4


async def test_the_ledger_is_exact_where_every_reply_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_calls, "_FIRST_BACKOFF_S", 0.01)
    account = await faulty_model.search(tmp_path, 4, api="responses", stream=False, certain=True, budget=90_000)
    assert not account.wrong and not account.uncertain and account.spent == account.charged
