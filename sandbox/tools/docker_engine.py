"""A Docker engine of one's own for tests and trials, and the sandbox image in it, without a registry.

    sudo python sandbox/tools/docker_engine.py start FOLDER     # prints the DOCKER_HOST to use
    sudo python sandbox/tools/docker_engine.py halt FOLDER      # ends it; start goes on with what it keeps
    sudo python sandbox/tools/docker_engine.py stop FOLDER      # ends it and removes FOLDER
    sudo python sandbox/tools/docker_engine.py image            # only the image, into the engine at DOCKER_HOST

Needs root, Debian's or Ubuntu's packages docker.io and mmdebstrap, and the Python package docker. The engine makes no bridge
and touches no firewall, so it runs in most virtual machines and in privileged containers.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

DOCKERFILE = Path(__file__).resolve().parents[2] / "Dockerfile.gpu"
IMAGE = "kernelevo-sandbox"
BASE = "kernelevo-base"
PACKAGES = ("g++", "libpython3-dev", "python3")
"""The same as Dockerfile.gpu's, so that its build needs no network."""
SETTINGS = {"iptables": False, "ip6tables": False, "bridge": "none", "ip-masq": False, "storage-driver": "overlay2"}
START_SECONDS = 30.0
STOP_SECONDS = 30.0
BASE_SECONDS = 240.0
CALL_SECONDS = 180


class Failure(Exception):
    """Says why there is no engine or no image."""


def socket_of(folder: Path) -> str:
    """Where the engine of that folder listens, as DOCKER_HOST."""
    return f"unix://{folder.resolve() / 'docker.sock'}"


def start(folder: Path) -> None:
    """Start an engine that keeps everything in `folder`, and build the image there unless it is there.

    Raises:
        Failure: that is not possible here.
    """
    engine = shutil.which("dockerd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if os.geteuid() != 0:
        raise Failure("an engine needs root")
    if engine is None:
        raise Failure("there is no dockerd: install docker.io")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "daemon.json").write_text(json.dumps(SETTINGS))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                engine,
                *("--config-file", str(folder / "daemon.json"), "--data-root", str(folder / "data")),
                *("--exec-root", str(folder / "exec"), "--pidfile", str(folder / "pid"), "--host", socket_of(folder)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        client = _connected(folder, process)
        if not client.images(IMAGE):
            build(client)
    except BaseException:
        # It may not have written its number yet, which `stop` goes by.
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        stop(folder)
        raise


def _connected(folder: Path, process: subprocess.Popen[bytes]) -> Any:
    import docker

    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return docker.APIClient(base_url=socket_of(folder), version="auto", timeout=CALL_SECONDS)
        except docker.errors.DockerException as failure:
            if process.poll() is not None or time.monotonic() > deadline:
                said = (folder / "log").read_text(errors="replace").strip().splitlines()[-5:]
                raise Failure("the engine did not come up: " + "\n".join(said)) from failure
        time.sleep(0.1)


def build(client: Any) -> None:
    """Build the image: a base from the distribution's packages, and Dockerfile.gpu on top of it.

    Raises:
        Failure: it could not be built.
    """
    tool = shutil.which("mmdebstrap")
    if tool is None:
        raise Failure("there is no mmdebstrap, which makes the image's base: install it")
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)[
        "VERSION_CODENAME"
    ].strip('"')
    with tempfile.TemporaryDirectory(prefix="kernelevo-base-") as folder:
        archive = Path(folder) / "base.tar"
        command = [tool, "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}", release, str(archive)]
        try:
            # The host's own release, so that the host's interpreter finds the C library that it was made for.
            subprocess.run(command, check=True, timeout=BASE_SECONDS, capture_output=True, text=True, cwd="/")
        except subprocess.CalledProcessError as failure:
            raise Failure(f"mmdebstrap failed: {failure.stderr.strip()[-1000:]}") from failure
        except subprocess.TimeoutExpired as failure:
            raise Failure(f"mmdebstrap did not end within {BASE_SECONDS:g} s") from failure
        client.import_image_from_file(str(archive), repository=BASE, tag="latest")
    for step in client.build(
        fileobj=_context(),
        custom_context=True,
        tag=IMAGE,
        buildargs={"BASE": BASE, "PACKAGES": " ".join(PACKAGES)},
        network_mode="none",
        rm=True,
        forcerm=True,
        decode=True,
    ):
        if "error" in step:
            raise Failure(f"Dockerfile.gpu: {step['error']}")


def _context() -> io.BytesIO:
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        archive.add(DOCKERFILE, "Dockerfile")
    context.seek(0)
    return context


def halt(folder: Path) -> None:
    """End the engine of that folder, with whatever runs in it; `start` goes on with what it keeps. Idempotent."""
    with contextlib.suppress(FileNotFoundError, ValueError, ProcessLookupError):
        process = os.pidfd_open(int((folder / "pid").read_text()))
        try:
            signal.pidfd_send_signal(process, signal.SIGTERM)
            deadline = time.monotonic() + STOP_SECONDS
            while (folder / "pid").exists() and time.monotonic() < deadline:
                time.sleep(0.1)
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)


def stop(folder: Path) -> None:
    """End the engine of that folder, and remove the folder. Idempotent."""
    halt(folder)
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if (place := line.split()[4]).startswith(f"{folder.resolve()}/"):
            subprocess.run(["umount", "--lazy", place], check=False, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("start", "halt", "stop"):
        commands.add_parser(name).add_argument("folder", type=Path)
    commands.add_parser("image")
    arguments = parser.parse_args()
    try:
        if arguments.command == "start":
            start(arguments.folder)
            print(socket_of(arguments.folder))  # noqa: T201
        elif arguments.command == "halt":
            halt(arguments.folder)
        elif arguments.command == "stop":
            stop(arguments.folder)
        else:
            import docker

            build(docker.APIClient(base_url=os.environ.get("DOCKER_HOST"), version="auto", timeout=CALL_SECONDS))
    except Failure as failure:
        print(failure, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
