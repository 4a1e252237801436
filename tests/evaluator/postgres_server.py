"""A PostgreSQL server of the tests' own, from the distribution's package: on a private socket, in a folder that goes with it."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path


class NoPostgres(Exception):
    """There is none here; the message says why."""


class PostgresServer:
    """Made, started, stopped and removed. Nothing of it is made to last: no write is flushed to disk."""

    def __init__(self) -> None:
        self._programs = _programs()
        self._as_user: list[str] = []
        self.folder = Path(tempfile.mkdtemp(prefix="kepg"))
        if os.getuid() == 0:  # which PostgreSQL refuses to run as
            try:
                pwd.getpwnam("postgres")
            except KeyError:
                raise NoPostgres("root cannot run PostgreSQL, and there is no user postgres") from None
            self._as_user = ["runuser", "-u", "postgres", "--"]
            shutil.chown(self.folder, "postgres")
        data = self.folder / "data"
        try:
            self._run("initdb", "-D", data, "-U", "tests", "-A", "trust", "--no-sync", "--no-locale", "-E", "UTF8")
            options = f"-c listen_addresses= -k {self.folder} -c fsync=off -c max_connections=60"
            self._run("pg_ctl", "-D", data, "-w", "-t", "120", "-l", self.folder / "log", "-o", options, "start")
        except subprocess.CalledProcessError as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise NoPostgres(f"PostgreSQL does not start: {error.stdout}") from error

    def new_database(self) -> str:
        """The address of an empty database."""
        name = f"t{uuid.uuid4().hex}"
        self._run("psql", "-h", self.folder, "-U", "tests", "-q", "-c", f"CREATE DATABASE {name}", "postgres")
        return f"postgresql://tests@/{name}?host={self.folder}"

    def stop(self) -> None:
        """End it and remove what it kept."""
        self._run("pg_ctl", "-D", self.folder / "data", "-w", "-m", "immediate", "stop")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: object) -> None:
        subprocess.run(
            [*self._as_user, self._programs / program, *map(str, arguments)],
            cwd="/",
            check=True,
            text=True,
            stdout=subprocess.DEVNULL if program == "pg_ctl" else subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )


def _programs() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    elsewhere = shutil.which("initdb")
    if elsewhere is None:
        raise NoPostgres("PostgreSQL's server is not installed; on Debian or Ubuntu: apt-get install postgresql")
    return Path(elsewhere).resolve().parent
