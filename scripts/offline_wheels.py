"""Makes a folder of wheels from which KernelEvo is installed on a host without a network, for another Python version too.

    python scripts/offline_wheels.py wheels --python 3.12
    # copy the folder, then on the other host
    sh wheels/install.sh python3.12

What the host keeps of its own (torch with its CUDA build, for one) is left out: `--leave-out` names it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GLIBC = (17, 24, 27, 28, 31, 34)
"""Minor versions of glibc 2 whose wheels are taken: those that a Linux of recent years can use."""

INSTALL = """\
#!/bin/sh
# Installs KernelEvo from this folder alone: sh install.sh [python3.12]
set -eu
folder=$(cd "$(dirname "$0")" && pwd)
python=${1:-python3}
exec "$python" -m pip install --no-index --no-deps --upgrade "$folder"/*.whl
"""


def name_of(requirement: str) -> str:
    """The package that a requirement is about, as indexes spell it."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def requirements(extras: list[str], left_out: set[str]) -> list[str]:
    """What the project and these extras of it need, without what the host has.

    Raises:
        KeyError: there is no such extra.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(one for extra in extras for one in project["optional-dependencies"][extra])]
    return [one for one in wanted if name_of(one) not in left_out]


def constraints(left_out: set[str]) -> list[str]:
    """The project's pins."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line.split("#")[0].strip() for line in lines]
    return [pin for pin in pins if pin and name_of(pin) not in left_out]


def download(folder: Path, version: str, machine: str, wanted: list[str], pins: list[str]) -> None:
    """Fetch the wheels for that Python.

    Raises:
        subprocess.CalledProcessError: pip did not find one.
    """
    listed = folder / "constraints.txt"
    listed.write_text("\n".join(pins) + "\n", encoding="utf-8")
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in reversed(GLIBC)] + [f"manylinux2014_{machine}"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--dest", str(folder)]
    command += ["--python-version", version, "--implementation", "cp", "--constraint", str(listed)]
    command += [part for platform in platforms for part in ("--platform", platform)]
    subprocess.run([*command, *wanted], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="is made where it is not there")
    parser.add_argument("--python", default="3.12", help="version of the other host's Python")
    parser.add_argument("--machine", default="x86_64", choices=["x86_64", "aarch64"], help="the other host's processor")
    parser.add_argument("--extras", default="evaluator,searcher", help="of the project, with commas between them")
    parser.add_argument(
        "--leave-out", default="torch,triton,numpy,pycuda", help="packages that the other host has, with commas between"
    )
    options = parser.parse_args()
    left_out = {name_of(name) for name in options.leave_out.split(",") if name}
    options.folder.mkdir(parents=True, exist_ok=True)
    wanted = requirements([extra for extra in options.extras.split(",") if extra], left_out)
    download(options.folder, options.python, options.machine, wanted, constraints(left_out))
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(options.folder),
        str(ROOT),
    ]
    subprocess.run(build, check=True)
    (options.folder / "install.sh").write_text(INSTALL, encoding="utf-8")
    wheels = sorted(options.folder.glob("*.whl"))
    megabytes = sum(wheel.stat().st_size for wheel in wheels) / 1e6
    print(
        f"{len(wheels)} wheels, {megabytes:.0f} MB, in {options.folder}; left out: {', '.join(sorted(left_out)) or 'none'}"
    )


if __name__ == "__main__":
    main()
