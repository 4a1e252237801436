"""Dockerfile.gpu on a base as NVIDIA's: every instruction of it runs, with a package that the base lacks.

The base is made up on top of the one that `sandbox/tools/docker_engine.py` makes: the environment, the entrypoint and the links
of NVIDIA's images, in nvcc's place a script, and for `apt-get` a repository of one package, so that no network is needed.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kernelevo_sandbox import DockerOptions, DockerSandbox, EndKind, Limits, SandboxSpec
from kernelevo_sandbox.docker.engine import DEFAULT_HOST, image_refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PLAIN_BASE = "kernelevo-base"
LACKING = "kernelevo-tool"
SECONDS = 120
BASE = f"""
FROM {PLAIN_BASE}
COPY . /made-up
RUN cp -r /made-up/cuda /usr/local/cuda-13.0 && chmod -R 755 /usr/local/cuda-13.0 \\
 && ln -s /usr/local/cuda-13.0 /etc/alternatives/cuda && ln -s /etc/alternatives/cuda /usr/local/cuda \\
 && mkdir -p /opt/nvidia && install -m 755 /made-up/cuda/bin/nvcc /opt/nvidia/nvidia_entrypoint.sh \\
 && install -m 4755 /bin/true /usr/bin/gains && install -m 2755 /bin/true /usr/local/cuda-13.0/bin/gains \\
 && mkdir /opt/repository && cp /made-up/*.deb /made-up/Packages /opt/repository/ \\
 && rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/* \\
 && echo 'deb [trusted=yes] file:/opt/repository ./' >/etc/apt/sources.list \\
 && echo secret >/root/secret && rm -rf /made-up
ENV PATH=/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ENV LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility NVIDIA_REQUIRE_CUDA=cuda>=13.0 CUDA_VERSION=13.0.1
LABEL maintainer="somebody"
ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh"]
CMD ["/bin/bash"]
"""
NVCC = "#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n"
SEEN = """
import os, subprocess
print(subprocess.run(['/usr/local/cuda/bin/nvcc', '--version'], capture_output=True, text=True).stdout.strip())
print(subprocess.run(['kernelevo-tool'], capture_output=True, text=True).stdout.strip())
print(subprocess.run(['g++', '-xc++', '-', '-o', '/tmp/a'], input='int main() {}', text=True).returncode)
gains = subprocess.run(['find', '/', '-xdev', '-type', 'f', '-perm', '/6000'], capture_output=True, text=True).stdout.split()
print(*gains)
print(*(place for place in ('/root', '/var', '/home', '/etc/shadow', '/etc/apt', '/usr/share/doc') if os.path.exists(place)))
print(oct(os.stat('/tmp').st_mode), os.getuid() > 0, os.getppid())
"""


@pytest.fixture(scope="module")
def made(docker_engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, str]]:
    """A client, and the name of an image that Dockerfile.gpu made of such a base."""
    import docker

    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb is not installed: there is no package to make")
    client = docker.APIClient(base_url=os.environ.get("DOCKER_HOST", DEFAULT_HOST), version="auto", timeout=SECONDS)
    base, image = f"made-up-cuda-{os.getpid()}", f"made-up-sandbox-{os.getpid()}"
    try:
        if not client.images(PLAIN_BASE):
            pytest.skip(f"the engine has no image {PLAIN_BASE}: sandbox/tools/docker_engine.py makes it")
        folder = tmp_path_factory.mktemp("base")
        (folder / "Dockerfile").write_text(BASE)
        (folder / "cuda" / "bin").mkdir(parents=True)
        (folder / "cuda" / "bin" / "nvcc").write_text(NVCC)
        _package(folder)
        _build(client, folder, base, {})
        recipe = tmp_path_factory.mktemp("recipe")
        shutil.copy(ROOT / "Dockerfile.gpu", recipe / "Dockerfile")
        _build(client, recipe, image, {"BASE": base, "PACKAGES": f"g++ libpython3-dev python3 {LACKING}"})
        yield client, image
    finally:
        for name in (image, base):
            if client.images(name):
                client.remove_image(name, force=True)
        client.close()


def _package(folder: Path) -> None:
    """A package of one program, and the index of a repository that has it alone."""
    tree = folder / "package"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "usr" / "bin").mkdir(parents=True)
    control = f"Package: {LACKING}\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@localhost>\nDescription: a tool\n"
    (tree / "DEBIAN" / "control").write_text(control)
    program = tree / "usr" / "bin" / LACKING
    program.write_text("#!/bin/sh\necho installed\n")
    program.chmod(0o755)
    archive = folder / f"{LACKING}_1_all.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", tree, archive], check=True, capture_output=True)
    shutil.rmtree(tree)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    index = f"{control}Filename: ./{archive.name}\nSize: {archive.stat().st_size}\nSHA256: {digest}\n\n"
    (folder / "Packages").write_text(index)


def _build(client: Any, folder: Path, tag: str, arguments: dict[str, str]) -> None:
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        archive.add(folder, ".")
    context.seek(0)
    said = []
    for step in client.build(
        fileobj=context,
        custom_context=True,
        tag=tag,
        buildargs=arguments,
        network_mode="none",
        nocache=True,
        rm=True,
        forcerm=True,
        decode=True,
    ):
        said.append(str(step.get("stream", "")))
        assert "error" not in step, f"{step['error']}\n{''.join(said)[-3000:]}"


def test_what_the_base_would_start_and_ask_for_is_not_the_sandbox_images(made: tuple[Any, str]) -> None:
    client, image = made
    config = client.inspect_image(image)["Config"]
    assert (config["User"], config["WorkingDir"], config["Cmd"]) == ("65534:65534", "/tmp", ["/bin/false"])
    assert not config["Entrypoint"]
    assert image_refusal(image, config) is None
    # It is ours by its label, whatever its base is.
    assert image_refusal(image, {**config, "Labels": {"maintainer": "somebody"}})
    assert "NVIDIA_VISIBLE_DEVICES=all" in config["Env"], "what a container is told takes this back"


async def test_what_a_program_finds_in_it(made: tuple[Any, str]) -> None:
    sandbox = DockerSandbox(DockerOptions(image=made[1]))
    try:
        limits = Limits(memory_bytes=1 << 29, processes=64, tmpfs_bytes=1 << 24)
        process = await sandbox.start(
            SandboxSpec(argv=("/usr/bin/python3", "-c", SEEN), env={"PATH": "/usr/bin:/bin"}, limits=limits)
        )
        ending = await asyncio.wait_for(process.wait(), SECONDS)
    finally:
        await sandbox.close()
    assert ending.kind is EndKind.EXITED and ending.exit_code == 0, ending
    compiler, tool, built, gains, left, place = ending.stdout.text().split("\n")[:6]
    assert "release 13.0" in compiler
    assert (tool, built) == ("installed", "0"), "what the base lacked was installed, and its compiler works"
    assert (gains, left) == ("", "")
    assert place.split() == ["0o41777", "True", "1"]
