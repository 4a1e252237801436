"""What docs/clients.md shows runs as it stands there."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from scripted_executor import PROBLEM, candidate

from kernelevo_api.types import Verdict

PAGE = Path(__file__).resolve().parents[2] / "docs" / "clients.md"
ADDRESS = "unix:/tmp/kernelevo.sock"


def shown(heading: str, address: str) -> str:
    """The Python below a heading, for this address."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert code is not None and ADDRESS in code[1]
    return code[1].replace(ADDRESS, address)


async def test_the_client_of_threads(host: Any, capsys: Any) -> None:
    await host.start()
    names = {"problem_text": PROBLEM, "kernel_text": candidate("crashed")}
    await asyncio.to_thread(exec, shown("From ordinary threads", host.address), names)
    assert "Stage.BUILD" in (printed := capsys.readouterr().out)
    assert "Verdict.CRASHED" in printed


async def test_the_client_of_asyncio(host: Any) -> None:
    await host.start()
    names: dict[str, Any] = {"problem_text": PROBLEM}
    exec(shown("From asyncio", host.address), names)
    found = await names["judge"]([candidate("passed"), candidate("crashed")])
    assert [one.verdict for one in found] == [Verdict.PASSED, Verdict.CRASHED]
