"""Where evaluators are found: addresses, names with several addresses, files."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from kernelevo_api.pool import EvaluatorPool, NoEvaluator, describe, parse_requirement, sources_of
from kernelevo_api.pool.discovery import ListUnreadable
from kernelevo_api.types import DeviceKind, DeviceRequirement

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What the name service says; it stands at the process boundary."""
    known: dict[str, list[str]] = {}

    def resolve(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        family = {True: socket.AF_INET6, False: socket.AF_INET}
        return [
            (family[":" in number], socket.SOCK_STREAM, 6, "", (number, port, *((0, 0) if ":" in number else ())))
            for number in known[host]
        ]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return known


async def places(*addresses: str) -> list[tuple[str, str, str]]:
    found = [await source.places() for source in sources_of(addresses)]
    return [(place.name, place.target, place.server_name) for group in found for place in group]


async def test_plain_addresses_stand_for_themselves() -> None:
    assert await places("unix:/run/e.sock", "10.0.0.1:50051", "[::1]:50051", "10.0.0.1:50051") == [
        ("unix:/run/e.sock", "unix:/run/e.sock", ""),
        ("10.0.0.1:50051", "10.0.0.1:50051", ""),
        ("[::1]:50051", "[::1]:50051", ""),
    ]


async def test_a_name_of_one_address_stays_a_name(names: dict[str, list[str]]) -> None:
    # Of a host with two families too: it is one evaluator.
    names["gpu1"] = ["10.0.0.1", "fd00::1"]
    assert await places("gpu1:50051") == [("gpu1:50051", "gpu1:50051", "")]


async def test_a_name_of_several_addresses_is_several_evaluators(names: dict[str, list[str]]) -> None:
    names["pods"] = ["10.0.0.2", "10.0.0.1", "10.0.0.2"]
    assert await places("pods:50051") == [
        ("10.0.0.1:50051 (pods:50051)", "10.0.0.1:50051", "pods"),
        ("10.0.0.2:50051 (pods:50051)", "10.0.0.2:50051", "pods"),
    ]
    names["pods"] = ["fd00::2", "fd00::1"]
    assert [target for _, target, _ in await places("pods:50051")] == ["[fd00::1]:50051", "[fd00::2]:50051"]


async def test_a_name_that_does_not_resolve_is_an_error_that_names_it(names: dict[str, list[str]]) -> None:
    with pytest.raises(ListUnreadable, match="nowhere does not resolve"):
        await places("nowhere:1")
    with pytest.raises(NoEvaluator, match="nowhere does not resolve"):
        await EvaluatorPool.of(["nowhere:1"]).connect()


async def test_a_file_holds_one_address_a_line(tmp_path: Path, names: dict[str, list[str]]) -> None:
    names["pods"] = ["10.0.0.1", "10.0.0.2"]
    path = tmp_path / "hosts"
    path.write_text("# ours\n10.0.0.9:1  # the old one\n\npods:2\n")
    assert [target for _, target, _ in await places(f"file:{path}")] == ["10.0.0.9:1", "10.0.0.1:2", "10.0.0.2:2"]


@pytest.mark.parametrize("text", [None, "", "# nothing\n", "no address\n", "file:other\n"])
async def test_a_file_that_cannot_be_used_is_an_error_that_names_it(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "hosts"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ListUnreadable, match="hosts"):
        await places(f"file:{path}")


@pytest.mark.parametrize("address", ["", "gpu1", "gpu1:port", "file:", "unix:"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"address|path|list"):
        EvaluatorPool.of([address])


def test_a_token_never_crosses_a_network_in_plain_text() -> None:
    with pytest.raises(ValueError, match="plain text"):
        EvaluatorPool.of(["gpu1:50051"], token="0123456789abcdef")
    EvaluatorPool.of(["127.0.0.1:50051", "unix:/run/e.sock"], token="0123456789abcdef")


def test_device_requirements_are_read() -> None:
    assert parse_requirement("kind=cuda, memory=80GiB,architecture=sm_90,name=NVIDIA H200") == DeviceRequirement(
        kind=DeviceKind.CUDA, name="NVIDIA H200", architecture="sm_90", minimum_memory_bytes=80 << 30
    )
    assert parse_requirement("memory=1024").minimum_memory_bytes == 1024
    assert parse_requirement("memory=1.5g").minimum_memory_bytes == 3 << 29
    assert describe(parse_requirement("kind=cuda,memory=80GiB")) == "cuda with 80 GiB"


@pytest.mark.parametrize("text", ["", "cuda", "kind=gpu", "memory=much", "memory=-1", "cores=4", "name="])
def test_what_is_no_device_requirement_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write|is no kind|is no size"):
        parse_requirement(text)
