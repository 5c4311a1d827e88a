"""The worker's settings, from environment variables (COHORT_…) that docs/operations.md lists."""

from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from grpo_core.protocol.queues import LABEL, LABEL_RULE


class MissingSetting(Exception):
    """A setting that the worker cannot work without, or with; the message names the variable."""


class Environment(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="COHORT_", extra="ignore", use_attribute_docstrings=True)

    url: str = "http://127.0.0.1:8400"
    """Address of the platform's web server."""
    node_token: SecretStr = SecretStr("")
    """The node's token, as `cohort node NAME` printed it."""
    node_token_file: Path | None = None
    """File that holds it instead."""
    broker_url: str = "filesystem://"
    """amqp://… or redis://…, the platform's broker, on RabbitMQ as the node's own user; filesystem:// uses the folder
    broker/ under home."""
    broker_url_file: Path | None = None
    """File that holds it instead, because it has a password in it."""
    home: Path = Path("~/.local/share/cohort")
    """Where the folders below lie when they are not given."""
    runs_dir: Path | None = None
    """Folder of the run directories; empty means runs/ under home."""
    models_dir: Path | None = None
    """Folder of the base models; empty means models/ under home."""
    labels: str = ""
    """What the node is called where a run says which nodes it may use, with commas between them, such as a100,lab."""
    min_free_bytes: int | None = None
    """Least room on the disk of the runs; below it no run is taken and one that trains is paused. Empty means 2 GiB,
    or 5 % of the disk where that is less."""
    spool_cap_bytes: int = 4 * 1024**3
    """Most bytes of records that may wait for the platform; above it samples are left out, metrics never."""
    upload_seconds: float = 300.0
    """How often the newest checkpoint goes to the platform, so that another node can resume from it; 0: never."""
    lab_device: Literal["auto", "cpu", "cuda"] = "cpu"
    """Where jobs of the reward lab run models. On a GPU they share its memory with the run that trains there."""
    vllm_python: Path | None = None
    """Python of a separate environment that has vLLM, for runs that sample with a vLLM server; empty: the worker's
    own, where that has it."""
    hosts: str = ""
    """Hosts of one run over several machines, with commas between them, this one first."""
    remote_shell: str = ""
    """How a program is started on them; empty means ssh."""

    @field_validator("labels")
    @classmethod
    def _labels_can_name_queues(cls, given: str) -> str:
        for label in _parts(given):
            if not LABEL.fullmatch(label):
                raise ValueError(f"{label!r} can be no label: one takes {LABEL_RULE}")
        return given

    @property
    def label_list(self) -> list[str]:
        return _parts(self.labels)

    @property
    def home_folder(self) -> Path:
        return self.home.expanduser().absolute()

    @property
    def broker_folder(self) -> Path:
        return self.home_folder / "broker"

    @property
    def runs_folder(self) -> Path:
        return self.runs_dir.expanduser().absolute() if self.runs_dir else self.home_folder / "runs"

    @property
    def models_folder(self) -> Path:
        return self.models_dir.expanduser().absolute() if self.models_dir else self.home_folder / "models"

    def resolved_broker_url(self) -> str:
        """Raises MissingSetting when the file is not there."""
        return self.broker_url if self.broker_url_file is None else _content("broker_url_file", self.broker_url_file)

    def resolved_node_token(self) -> str:
        """Raises MissingSetting when there is none."""
        token = self.node_token.get_secret_value()
        if self.node_token_file is not None:
            token = _content("node_token_file", self.node_token_file)
        if not token:
            raise MissingSetting("set COHORT_NODE_TOKEN or COHORT_NODE_TOKEN_FILE to the token of this node")
        return token


def _content(setting: str, file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise MissingSetting(f"cannot read COHORT_{setting.upper()} {file}: {error}") from None


def _parts(listed: str) -> list[str]:
    return [part for word in listed.split(",") if (part := word.strip())]


@cache
def environment() -> Environment:
    """Raises MissingSetting when a variable cannot mean anything."""
    try:
        return Environment()
    except ValidationError as error:
        faults = "; ".join(f"COHORT_{str(fault['loc'][0]).upper()}: {fault['msg']}" for fault in error.errors())
        raise MissingSetting(faults) from None
