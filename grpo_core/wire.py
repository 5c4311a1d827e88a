"""What worker and platform say to each other, under /api/worker/v1 (docs/worker-protocol.md tells the order).

Only shapes; no HTTP here. Records themselves travel as zstd-compressed NDJSON of `records.Envelope`.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Desired = Literal["run", "pause", "cancel"]
AttemptEnd = Literal["finished", "failed", "cancelled", "paused", "preempted", "lost"]


class Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, protected_namespaces=())
    """Unknown fields are ignored here; those of configs and records are not, so both sides must be of one version."""


class NodeInfo(Message):
    """What a worker says of its machine when it claims."""

    hostname: str
    devices: list[dict[str, Any]] = Field(default_factory=list)
    """One per device: {kind: cpu|cuda, name, memory_bytes}."""
    cpus: int
    memory_bytes: int
    versions: dict[str, str] = Field(default_factory=dict)
    labels: list[str] = Field(default_factory=list)


class ClaimRequest(Message):
    run_id: int
    node: NodeInfo


class InputFile(Message):
    """A file the run needs beside its config; fetched by GET attempts/{id}/files/{sha256}."""

    path: str
    """Where it goes, relative to the run directory (`inputs/…`)."""
    sha256: str
    size: int


class ClaimReply(Message):
    """The right to run one attempt. 409 instead when the run is not waiting or somebody else has it."""

    attempt_id: int
    fence: int
    token: str
    """Bearer token of this attempt, for every call below attempts/{attempt_id}/."""
    run_id: int
    run_name: str
    config: dict[str, Any]
    """A RunConfig whose data and eval paths point to `files`."""
    files: list[InputFile]
    heartbeat_seconds: float
    lease_seconds: float


class Beat(Message):
    """Sign of life, every `heartbeat_seconds`."""

    fence: int
    shipped_seq: int = 0
    spooled_bytes: int = 0


class BeatReply(Message):
    desired: Desired
    lease_seconds: float


class IngestReply(Message):
    acked_seq: int
    """The platform holds every record of the attempt up to and including this seq."""


class Finish(Message):
    """Last word of an attempt, sent when every record has been acknowledged or the worker gave up on the rest."""

    fence: int
    end: AttemptEnd
    code: str
    """`ok`, a GrpoError code, or one of the worker's own: trainer_died, not_answered …"""
    message: str
    exit_status: int | None = None
    signal: int | None = None
    log_tail: Annotated[str, Field(max_length=65536)] = ""
    last_seq: int
    """How many records the attempt wrote; the platform refuses the finish (409) while it holds fewer. From a worker
    that gave up: how many were acknowledged."""


class Refusal(Message):
    """Body of every 4xx answer."""

    code: str
    """not_waiting, stale_fence, unknown_token, file_missing, bad_record, records_missing …"""
    message: str
