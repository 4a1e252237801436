"""What the Docker backend tells an engine, and what it refuses. No engine is needed."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelevo_sandbox import (
    DockerOptions,
    DockerSandbox,
    GpuAccess,
    Mount,
    SandboxUnavailable,
    seccomp,
)
from kernelevo_sandbox.conformance import Kit
from kernelevo_sandbox.docker.configuration import Shape, configuration
from kernelevo_sandbox.docker.engine import IMAGE_LABEL, engine_refusal, image_refusal
from kernelevo_sandbox.docker.gpus import gpu_request, toolkit_refusal
from kernelevo_sandbox.mounts import needed

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="the docker backend runs as root")

SHAPE = Shape(memory_bytes=1 << 28, processes=8, tmpfs_bytes=1 << 20, mounts=(), devices=(), cpus=frozenset({0, 1}))


def body(shape: Shape = SHAPE, **changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "image": "sha256:0",
        "uid": 4242,
        "box": Path("/private/box"),
        "etc": {"passwd": Path("/private/etc/passwd")},
        "labels": {"a": "b"},
        "runtime": None,
        "gpus": {},
    }
    return configuration(shape, **{**given, **changes})


def test_a_container_is_given_nothing_that_it_does_not_need() -> None:
    told = body()
    host = told["HostConfig"]
    assert (told["User"], told["NetworkDisabled"], host["NetworkMode"]) == ("4242:4242", True, "none")
    assert host["ReadonlyRootfs"] and not host["Privileged"]
    assert host["CapDrop"] == ["ALL"] and "CapAdd" not in host
    assert host["Memory"] == host["MemorySwap"] == 1 << 28
    assert host["PidsLimit"] == 9
    assert host["CpusetCpus"] == "0,1"
    assert host["ShmSize"] == 1 << 20 and "size=1048576" in host["Tmpfs"]["/tmp"]
    assert (host["IpcMode"], host["CgroupnsMode"]) == ("private", "private")
    assert "no-new-privileges:true" in host["SecurityOpt"]
    (profile,) = [option.removeprefix("seccomp=") for option in host["SecurityOpt"] if option.startswith("seccomp=")]
    assert json.loads(profile) == seccomp.profile()
    assert all(mount["ReadOnly"] and mount["BindOptions"]["NonRecursive"] for mount in host["Mounts"])
    assert not any("docker.sock" in mount["Source"] for mount in host["Mounts"])
    assert not any(told[stream] for stream in ("Tty", "OpenStdin", "AttachStdin", "AttachStdout", "AttachStderr"))
    assert "Runtime" not in host and body(runtime="runsc")["HostConfig"]["Runtime"] == "runsc"
    assert "CpusetCpus" not in body(replace(SHAPE, cpus=None))["HostConfig"]


def test_sysfs_is_closed_unless_a_device_needs_it() -> None:
    assert "/sys" in body()["HostConfig"]["Tmpfs"]
    assert "/sys" not in body(replace(SHAPE, devices=(Path("/dev/tty"),)))["HostConfig"]["Tmpfs"]


def test_mounts_that_show_already_are_not_mounted_again() -> None:
    outer, inner = Mount(source=Path("/a"), target="/x"), Mount(source=Path("/a/b"), target="/x/b")
    other = Mount(source=Path("/c"), target="/x/c")
    assert needed((inner, other, outer, outer), {}) == [outer, other]
    assert needed((Mount(source=Path("/usr/lib"), target="/usr/lib"),), {"/usr": Path("/usr")}) == []


def _driver(folder: Path) -> Path:
    for bus, minor, uuid in (("0000:01:00.0", 1, "GPU-one"), ("0000:02:00.0", 0, "GPU-zero")):
        (folder / bus).mkdir(parents=True)
        (folder / bus / "information").write_text(f"Model: \t H200\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n")
    return folder


def test_gpus(tmp_path: Path) -> None:
    driver = _driver(tmp_path)
    nodes = tuple(Path("/dev") / name for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"))
    plain = {"PathOnHost": "/dev/tty", "PathInContainer": "/dev/tty", "CgroupPermissions": "rw"}
    assert gpu_request((Path("/dev/tty"), *nodes), GpuAccess.CDI, driver) == {
        "Devices": [plain],
        "DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=GPU-zero"]}],
    }
    assert gpu_request(nodes, GpuAccess.TOOLKIT, driver) == {
        "Devices": [],
        "DeviceRequests": [
            {"Driver": "nvidia", "DeviceIDs": ["GPU-zero"], "Capabilities": [["gpu", "compute", "utility"]]}
        ],
    }
    bare = gpu_request(nodes, GpuAccess.NODES, driver)
    assert [device["PathOnHost"] for device in bare["Devices"]] == [str(node) for node in nodes]
    assert "DeviceRequests" not in bare
    with pytest.raises(SandboxUnavailable, match="nvidia7"):
        gpu_request((Path("/dev/nvidia7"),), GpuAccess.CDI, driver)
    part = (*nodes, Path("/dev/nvidia-caps/nvidia-cap3"))
    assert len(gpu_request(part, GpuAccess.NODES, driver)["Devices"]) == 5
    for access in (GpuAccess.CDI, GpuAccess.TOOLKIT):  # which would bring the whole GPU
        with pytest.raises(SandboxUnavailable, match="docker_gpu = nodes"):
            gpu_request(part, access, driver)
    # An image that asks for all GPUs gets none, unless some are given.
    assert "NVIDIA_VISIBLE_DEVICES=void" in body()["Env"]
    assert not any("NVIDIA" in entry for entry in body(gpus=gpu_request(nodes, GpuAccess.TOOLKIT, driver))["Env"])


@pytest.mark.parametrize(
    ("says", "refused"),
    [
        ("NVIDIA Container Toolkit CLI version 1.17.7\n", "1.17.7"),
        ("NVIDIA Container Toolkit CLI version 1.17.8\ncommit: x\n", None),
        ("NVIDIA Container Toolkit CLI version 1.18.0-rc.2\n", None),
        ("something else\n", "no known version"),
    ],
)
def test_old_toolkits_are_refused(says: str, refused: str | None, tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-ctk"
    tool.write_text(f"#!/bin/sh\nprintf '%s' '{says}'\n")
    tool.chmod(0o755)
    found = toolkit_refusal(str(tool))
    assert found is None if refused is None else found is not None and refused in found
    missing = toolkit_refusal(str(tmp_path / "nothing"))
    assert missing is not None and "missing" in missing


FIT = {"OSType": "linux", "SecurityOptions": ["name=seccomp,profile=default"], "Runtimes": {"runc": {}}}


@pytest.mark.parametrize(
    ("info", "api", "runtime", "said"),
    [
        (FIT, "1.41", None, None),
        (FIT, "1.41", "runc", None),
        (FIT, "1.9", None, "1.41"),
        (FIT, "1.41", "runsc", "no runtime runsc: it has runc"),
        (FIT | {"OSType": "windows"}, "1.47", None, "windows"),
        (FIT | {"SecurityOptions": []}, "1.47", None, "no seccomp"),
        (FIT | {"SecurityOptions": ["name=seccomp", "name=rootless"]}, "1.47", None, "rootless"),
    ],
)
def test_engines_that_do_not_isolate_are_refused(info: Any, api: str, runtime: str | None, said: str | None) -> None:
    refusal = engine_refusal(info, api, runtime)
    assert refusal is None if said is None else refusal is not None and said in refusal


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"Labels": {IMAGE_LABEL: "1"}, "Env": ["PATH=/usr/bin", "LD_LIBRARY_PATH=/x"]}, None),
        ({"Labels": None}, "no sandbox image"),
        ({"Labels": {IMAGE_LABEL: "1"}, "Volumes": {"/data": {}}}, "volumes"),
        ({"Labels": {IMAGE_LABEL: "1"}, "Env": ["LD_PRELOAD=/x.so"]}, "LD_PRELOAD"),
    ],
)
def test_images_of_others_are_refused(config: Any, said: str | None) -> None:
    refusal = image_refusal("some", config)
    assert refusal is None if said is None else refusal is not None and said in refusal


@needs_root
async def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="on this host"):
        DockerSandbox(DockerOptions(host="tcp://elsewhere:2375"))
    sandbox = DockerSandbox(DockerOptions(host=f"unix://{tmp_path}/nothing"))
    try:
        with pytest.raises(SandboxUnavailable, match="no Docker engine answers"):
            await sandbox.start(Kit(sandbox=sandbox).spec(""))
    finally:
        await sandbox.close()


@needs_root
async def test_a_silent_engine_holds_nobody_up() -> None:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/s")
        server.listen()
        sandbox = DockerSandbox(DockerOptions(host=f"unix://{folder}/s", call_seconds=0.3))
        began = time.monotonic()
        try:
            with pytest.raises(SandboxUnavailable):
                await sandbox.start(Kit(sandbox=sandbox).spec(""))
        finally:
            await sandbox.close()
        assert time.monotonic() - began < 3.0
