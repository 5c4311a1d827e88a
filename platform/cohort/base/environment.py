"""The platform's settings from environment variables (COHORT_…), read once and checked.

Knows no Django, so that `cohort` can read it before Django starts. docs/operations.md lists the variables.
"""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from grpo_core.errors import ConfigError

Mode = Literal["production", "embedded", "test"]


_MAIL: dict[str, tuple[Literal["", "starttls", "tls"], int]] = {
    "smtp": ("", 25),
    "smtp+starttls": ("starttls", 587),
    "smtps": ("tls", 465),
}
"""By scheme of COHORT_EMAIL_URL: how the connection is encrypted, and the usual port."""


@dataclass(frozen=True)
class MailRelay:
    host: str
    port: int
    user: str
    password: str = field(repr=False)
    tls: Literal["", "starttls", "tls"]


class Environment(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="COHORT_", extra="ignore", use_attribute_docstrings=True)

    mode: Mode = "production"
    """production refuses weak settings; embedded is what `cohort up` sets for one machine; test is for the tests."""
    home: Path = Path("~/.local/share/cohort")
    """Folder of everything kept on disk: artifacts, models, and in embedded mode database, broker, runs and keys."""
    database_url: str = ""
    """postgresql://… of the only database."""
    database_url_file: Path | None = None
    """File that holds it instead, because it has a password in it."""
    broker_url: str = "filesystem://"
    """amqp://… or redis://…; filesystem:// uses the folder broker/ under home."""
    broker_url_file: Path | None = None
    """File that holds it instead."""
    artifacts: str = ""
    """fsspec address of uploaded files and cards; empty means the folder artifacts/ under home."""
    models_dir: Path | None = None
    """Folder that base models are registered from; empty means models/ under home."""
    public_url: str = "http://127.0.0.1:8400"
    """Address that people reach the web server under."""
    allowed_hosts: str = ""
    """More host names that the web server answers to, with commas between them, such as the one that workers use
    inside a private network."""
    listen: str = "127.0.0.1:8400"
    """Address and port that `gunicorn --config python:cohort.server.gunicorn` listens on."""
    serves: Literal["all", "pages", "workers"] = "all"
    """What a web server answers: all, the pages alone, or the calls of workers alone. In two processes, one for pages
    and one for workers, each can have its own role in the database (docs/operations.md)."""
    web_workers: int = Field(default=2, ge=1)
    """Its processes; each has 8 threads for pages, 4 for calls of workers and 4 for their checkpoints. About one per
    core."""
    pulse_url: str = ""
    """Address that the web server calls itself under, as its sign of life. Empty: the one that it listens on. Set it to
    the address that workers use when they come through a proxy, so that a proxy that fails ends no run."""
    secret_key: SecretStr = SecretStr("")
    """Django's signing key."""
    secret_key_file: Path | None = None
    """File that holds it instead."""
    signing_key_file: Path | None = None
    """File with the private key that signs the audit log and the cards (docs/audit.md); empty means signing-key.pem
    under home. For the platform's workers alone: the web server needs only public keys."""
    log_origin: str = ""
    """Name of the audit log, given to its first key and kept for ever; empty means the host of COHORT_PUBLIC_URL and
    /log."""
    status_days: int = Field(default=30, ge=1, le=90)
    """Days that the signed status of a record is valid: after them, a card checked without a network has an unknown
    one. It is renewed when half of them are over and somebody downloads the card or requests the status."""
    log_git: str = ""
    """Git repository, as `git push` takes it, that the log's checkpoints are pushed to."""
    log_witness: str = ""
    """Address of a C2SP witness that is asked to cosign the log's checkpoints."""
    log_witness_key: str = ""
    """The witness's public key, as name+hash+base64."""
    email_url: SecretStr = SecretStr("")
    """Mail relay that alerts are sent by: smtps://user:password@host (TLS, port 465), smtp+starttls://… (587), or
    smtp://… (25, not encrypted). A character such as @ or / in the password is written as %40 or %2F. Empty: no
    e-mail."""
    email_url_file: Path | None = None
    """File that holds it instead."""
    email_from: str = ""
    """Sender of e-mail, as Cohort <cohort@example.org>; empty means cohort@ and the host of COHORT_PUBLIC_URL."""
    debug: bool = False
    """Show tracebacks in the browser. Refused in production."""
    trusted_proxy: bool = False
    """Trust X-Forwarded-Proto and the last address of X-Forwarded-For: set it when your proxy terminates TLS, and let
    nothing but the proxy reach the web server. Without it both headers are dropped."""
    min_free_bytes: int | None = Field(default=None, ge=0)
    """Least room on the disk of the artifacts, where that is a folder; below it uploads are refused, and pages and
    /readyz say so. Empty means 2 GiB, or 5 % of the disk where that is less."""
    max_dataset_bytes: int = Field(default=512 * 1024 * 1024, ge=1)
    """Largest dataset that may be uploaded, in bytes."""
    max_dataset_problems: int = Field(default=1_000_000, ge=1)
    """Most problems of a dataset. The web server holds their ids while it reads the file: about 150 MB for a
    million."""
    max_projects: int = Field(default=20, ge=1)
    """Projects that one person may open."""
    max_members: int = Field(default=200, ge=1)
    """Members and open invitations of a project. Of this and the next three, whoever manages the server may set another
    number for a project, on its page Limits."""
    max_upload_bytes: int = Field(default=50 * 1024**3, ge=1)
    """Bytes of a project's datasets and suites together."""
    max_waiting_runs: int = Field(default=500, ge=1)
    """Runs of a project that wait in the queue."""
    max_open_jobs: int = Field(default=20, ge=1)
    """Jobs of the reward lab that wait or run in a project."""
    max_person_waiting_runs: int = Field(default=200, ge=1)
    """Runs in the queue, of all projects, that were made by one person."""
    lease_seconds: float = Field(default=60, gt=0)
    """A worker without a heartbeat for so long counts as lost, by the database's clock. For tests and slow
    networks."""
    heartbeat_seconds: float = Field(default=10, gt=0)
    """Longest time between a worker's heartbeats; well below half the lease. For tests and slow networks."""
    log_level: str = Field(default="INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$")
    """Lowest level that is logged."""

    @property
    def home_folder(self) -> Path:
        return self.home.expanduser().absolute()

    @property
    def models_folder(self) -> Path:
        return (self.models_dir.expanduser().absolute()) if self.models_dir else self.home_folder / "models"

    @property
    def broker_folder(self) -> Path:
        return self.home_folder / "broker"

    @property
    def artifacts_url(self) -> str:
        return self.artifacts or f"file://{self.home_folder / 'artifacts'}"

    @property
    def signing_key_path(self) -> Path:
        given = self.signing_key_file
        return given.expanduser().absolute() if given else self.home_folder / "signing-key.pem"

    @property
    def log_name(self) -> str:
        """What a new log is called."""
        return self.log_origin or f"{urlsplit(self.public_url).hostname or 'localhost'}/log"

    def resolved_secret_key(self) -> str:
        return _given("SECRET_KEY", self.secret_key.get_secret_value(), self.secret_key_file)

    def resolved_database_url(self) -> str:
        return _given("DATABASE_URL", self.database_url, self.database_url_file)

    def resolved_broker_url(self) -> str:
        return _given("BROKER_URL", self.broker_url, self.broker_url_file)

    def mail_relay(self) -> "MailRelay | None":
        """None where no e-mail is sent. Raises ConfigError for an address that is none of a mail relay; the message
        does not quote it."""
        address = _given("EMAIL_URL", self.email_url.get_secret_value(), self.email_url_file)
        if not address:
            return None
        try:
            parts = urlsplit(address)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"COHORT_EMAIL_URL is no address of a mail relay: {error}") from None
        if parts.scheme not in _MAIL or not parts.hostname:
            raise ConfigError(
                "COHORT_EMAIL_URL is no address of a mail relay: write smtps://user:password@host, "
                "smtp+starttls://user:password@host or smtp://host"
            )
        tls, usual = _MAIL[parts.scheme]
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        return MailRelay(parts.hostname, port or usual, user, password, tls)


def _given(name: str, value: str, file: Path | None) -> str:
    """The file's content when a file is named, else the variable's. Raises ConfigError for a file that is not there."""
    if file is None:
        return value
    try:
        return file.expanduser().read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"cannot read {file}, named by COHORT_{name}_FILE: {error.strerror}") from None


@cache
def environment() -> Environment:
    """Raises ConfigError that names each variable with an invalid value."""
    try:
        return Environment()
    except ValidationError as error:
        faults = [
            f"  COHORT_{str(fault['loc'][0]).upper()}: {fault['msg']}; given {fault['input']!r}"
            for fault in error.errors()
        ]
        raise ConfigError("the environment is not valid:\n" + "\n".join(faults)) from None
