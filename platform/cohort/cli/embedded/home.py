"""The home folder: where everything of one machine's Cohort lies, who is using it, and its secret key.

Knows no Django. One process at a time owns a home: it holds the lock, and the lock goes with the process.
"""

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from grpo_core.errors import GrpoError

DEFAULT = "~/.local/share/cohort"
_CLOSED = ("artifacts", "broker", "cards", "demo-data", "logs", "models", "runs", "scratch", "static")
"""Folders of the home that its owner alone enters. PostgreSQL closes the database's."""
SET_BY_UP = (
    "COHORT_MODE",
    "COHORT_DATABASE_URL",
    "COHORT_DATABASE_URL_FILE",
    "COHORT_BROKER_URL",
    "COHORT_BROKER_URL_FILE",
    "COHORT_SECRET_KEY",
    "COHORT_SECRET_KEY_FILE",
)
WORKER_SETTINGS = (
    "COHORT_LABELS",
    "COHORT_MIN_FREE_BYTES",
    "COHORT_SPOOL_CAP_BYTES",
    "COHORT_UPLOAD_SECONDS",
    "COHORT_LAB_DEVICE",
    "COHORT_HOSTS",
    "COHORT_REMOTE_SHELL",
)
"""Settings of the worker that a person may give to `cohort up` too."""


class HomeError(GrpoError):
    """Something about the home, or about starting Cohort in it, that the person can fix."""

    code: ClassVar[str] = "home_error"


class Home:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.database, self.logs, self.static = path / "pg", path / "logs", path / "static"
        self.cards, self.runs = path / "cards", path / "runs"
        self.node_token, self.secret_key = path / "node.token", path / "secret.key"
        self.signing_key, self._state = path / "signing-key.pem", path / "up.json"

    @classmethod
    def at(cls, given: str | None) -> "Home":
        """The folder given, else what COHORT_HOME names, else the default below the person's own folder."""
        return cls(Path(given or os.environ.get("COHORT_HOME") or DEFAULT).expanduser().absolute())

    @property
    def models(self) -> Path:
        given = os.environ.get("COHORT_MODELS_DIR")
        return Path(given).expanduser().absolute() if given else self.path / "models"

    def exists(self) -> bool:
        return (self.database / "PG_VERSION").is_file()

    def make(self) -> None:
        """Make what is missing of the folder; the secret key is made once and readable by its owner alone."""
        try:
            if not self.path.is_dir():
                self.path.mkdir(parents=True, mode=0o700)
            for folder in (self.logs, self.cards, self.runs, self.models):
                folder.mkdir(parents=True, exist_ok=True)
            for name in _CLOSED:
                if (self.path / name).is_dir():  # those of an earlier version may be open to others
                    (self.path / name).chmod(0o700)
        except OSError as error:
            raise HomeError(
                f"cannot make the folder {self.path}: {error.strerror or error}. Give another one with --home."
            ) from None
        if not self.secret_key.exists():
            write_secret(self.secret_key, secrets.token_urlsafe(64))

    # ------------------------------------------------------------------ who is using it

    @contextmanager
    def locked(self, purpose: str) -> Iterator[None]:
        """Own the home while the block runs, or raise HomeError naming the process that owns it."""
        with open(self.path / "up.lock", "a+", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                owner = lock.read().strip() or "another process"
                advice = "Stop it first, or use another folder with --home."
                raise HomeError(f"{self.path} is in use by {owner}. {advice}") from None
            lock.seek(0)
            lock.truncate()
            lock.write(f"`{purpose}` (process {os.getpid()})")
            lock.flush()
            try:
                yield
            finally:
                self._state.unlink(missing_ok=True)
                lock.truncate(0)

    def publish(self, state: dict[str, Any]) -> None:
        """Write how other commands on this machine reach what runs in this home."""
        write_secret(self._state, json.dumps(state))

    def published(self) -> dict[str, Any] | None:
        """What the running owner published; None when nobody owns the home."""
        try:
            with open(self.path / "up.lock", "a+", encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            try:
                return dict(json.loads(self._state.read_text(encoding="utf-8")))
            except FileNotFoundError:
                raise HomeError(f"{self.path} is just being started or stopped. Try again in a moment.") from None
        return None

    # ------------------------------------------------------------------ the environment of the parts

    def platform_environment(self, database_url: str, public_url: str | None = None) -> dict[str, str]:
        """COHORT_ variables of web server and platform worker; those a person may set are kept."""
        kept = {name: value for name, value in os.environ.items() if name not in SET_BY_UP}
        kept |= {
            "DJANGO_SETTINGS_MODULE": "cohort.settings",
            "COHORT_MODE": "embedded",
            "COHORT_HOME": str(self.path),
            "COHORT_DATABASE_URL": database_url,
            "COHORT_BROKER_URL": "filesystem://",
            "COHORT_SECRET_KEY_FILE": str(self.secret_key),
        }
        if public_url and not kept.get("COHORT_PUBLIC_URL"):
            kept["COHORT_PUBLIC_URL"] = public_url
        return kept

    def worker_environment(self, url: str) -> dict[str, str]:
        """Variables of the trainer's worker: no database, no secret key."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if name in WORKER_SETTINGS or not name.startswith(("COHORT_", "DJANGO_"))
        }
        # The file broker reaches no other machine, so nobody else could resume from an uploaded checkpoint.
        kept.setdefault("COHORT_UPLOAD_SECONDS", "0")
        return kept | {
            "COHORT_URL": url,
            "COHORT_NODE_TOKEN_FILE": str(self.node_token),
            "COHORT_BROKER_URL": "filesystem://",
            "COHORT_HOME": str(self.path),
            "COHORT_RUNS_DIR": str(self.runs),
            "COHORT_MODELS_DIR": str(self.models),
        }


def refuse_foreign_settings() -> None:
    """`cohort up` brings its own database, broker and key; raises HomeError when others are set."""
    given = [name for name in SET_BY_UP if os.environ.get(name)]
    if given == ["COHORT_MODE"] and os.environ["COHORT_MODE"] == "embedded":
        return
    if given:
        raise HomeError(
            f"{', '.join(given)} is set, but this command brings its own database, broker and key. "
            "Unset it, or run the parts as docs/operations.md says for production."
        )


def write_secret(path: Path, text: str) -> None:
    """Write whole or not at all, readable by the owner alone."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as handle:
        handle.write(text)
    temporary.replace(path)
