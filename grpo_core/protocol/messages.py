"""Messages between worker and platform, under /api/worker/v1 (docs/worker-protocol.md has their order).

Only shapes; no HTTP here. Records themselves travel as zstd-compressed NDJSON of `records.Envelope`.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from grpo_core.records.bounds import Count, Number, Prose, RelativePath, Seconds, Step, StorableFacts, Text
from grpo_core.records.types import ErrorClass, FileEntry, FinishReason

Id = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""Of a run, an attempt or a job."""

Desired = Literal["run", "pause", "cancel", "preempt"]
"""preempt: end here, resume on another node."""
AttemptEnd = Literal["finished", "failed", "cancelled", "paused", "preempted", "lost"]


class Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, protected_namespaces=())
    """Unknown fields are ignored here; those of configs and records are not, so both sides must be of one version."""


class NodeInfo(Message):
    """What a worker reports of its machine when it claims."""

    hostname: Text
    devices: Annotated[list[StorableFacts], Field(max_length=1000)] = Field(default_factory=list)
    """One per device: {kind: cpu|cuda, name, memory_bytes}."""
    cpus: Count
    memory_bytes: Count
    versions: Annotated[dict[Text, Text], Field(max_length=1000)] = Field(default_factory=dict)
    """Of packages; `cohort-grpo` must be the platform's own."""
    labels: Annotated[list[Text], Field(max_length=1000)] = Field(default_factory=list)
    """What the node is called in choices of where a run may go, such as a100; from COHORT_LABELS."""
    sandbox: Text = ""
    """What keeps model-written code apart here, such as `bubblewrap 0.8.0`; empty when nothing does."""
    sandbox_report: StorableFacts | None = None
    """What the worker's self-test of it found, as grpo_core.sandbox.report has it; null until it has ended."""

    runs_id: Text = ""
    """Names the folder of the run directories: workers that report the same one share it, as on a network disk."""
    refuses: Prose = ""
    """Why the worker takes no run at present, such as a disk that is nearly full; empty: it takes them."""

    @property
    def gpus(self) -> int:
        return sum(device.get("kind") == "cuda" for device in self.devices)


class ClaimRequest(Message):
    run_id: Id
    """The run that the message names: a hint. The platform answers with the run whose turn it is on this node."""
    claim_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{0,64}$")] = ""
    """Random, one for each claim: the same one again gets the same attempt, because the first answer was lost."""
    node: NodeInfo


class InputFile(Message):
    """A file the run needs in addition to its config; fetched by GET attempts/{id}/files/{sha256}."""

    path: str
    """Where it goes, relative to the run directory (`inputs/…`)."""
    sha256: str
    size: int


class RequestedCheckpoint(Message):
    """A checkpoint that a person wants on the platform, in the run directory of an attempt of this node. Each file goes
    to POST node/checkpoints/{id}/uploads/{sha256}."""

    id: int
    run_id: int
    fence: int
    path: str
    """Relative to the attempt's run directory."""
    files: dict[str, FileEntry]


class NodeReply(Message):
    """Answer to a node's heartbeat."""

    requested: list[RequestedCheckpoint] = Field(default_factory=list)
    """The oldest request first."""


class Unavailable(Message):
    """Why a requested checkpoint cannot be sent."""

    reason: Annotated[Prose, Field(max_length=2000)]
    removed: bool
    """The node has it no longer."""


class CheckpointOffer(Message):
    """A checkpoint that the attempt may resume from."""

    step: int
    fence: int
    """The attempt that wrote it; on that attempt's machine it lies in its run directory."""
    path: str
    """Relative to that run directory."""
    files: dict[str, FileEntry]
    stored: bool
    """Whether the platform has its files: GET attempts/{id}/files/{sha256}."""


class ClaimReply(Message):
    """The right to run one attempt. 409 instead when the run is not waiting or another worker has it."""

    attempt_id: int
    fence: int
    token: str
    """Bearer token of this attempt, for every call below attempts/{attempt_id}/."""
    run_id: int
    run_name: str
    config: dict[str, Any]
    """A RunConfig whose data and eval paths point to `files`."""
    files: list[InputFile]
    resume: list[CheckpointOffer] = Field(default_factory=list)
    """Newest first; the attempt resumes from the first that is whole. Empty: it begins at the first step. When there
    are some and none is available, the attempt fails with `checkpoint_missing` and never begins anew by itself."""
    heartbeat_seconds: float
    lease_seconds: float


class OldCheckpoint(Message):
    """A checkpoint that an earlier attempt left on a node."""

    fence: Step
    path: RelativePath
    """Relative to that attempt's run directory."""


class Progress(Message):
    """How far the trainer is inside its phase, as last written to progress.json."""

    phase: Text
    done: Count
    total: Count | None = None


class Beat(Message):
    """Sign of life, every `heartbeat_seconds`."""

    fence: Step
    shipped_seq: Count = 0
    spooled_bytes: Count = 0
    free_bytes: Count | None = None
    """Left on the disk of the run directory."""
    progress: Progress | None = None
    removed: Annotated[list[OldCheckpoint], Field(max_length=10_000)] = Field(default_factory=list)
    """Of those that the platform reported as no longer needed: removed by now."""


class BeatReply(Message):
    desired: Desired
    lease_seconds: float
    pinned: list[int] = Field(default_factory=list)
    """Steps whose checkpoints are to stay."""
    needless: list[OldCheckpoint] = Field(default_factory=list)
    """Checkpoints of earlier attempts on this node that this attempt's own have replaced."""


class IngestReply(Message):
    acked_seq: int
    """The platform holds every record of the attempt up to and including this seq."""


class UploadReply(Message):
    """Answer to a part of a checkpoint's file."""

    received: int
    """Bytes held without a gap; the next part begins there."""
    done: bool
    """The file is whole and its SHA-256 is right."""


class LogReply(Message):
    """Answer to a part of the attempt's log."""

    received: int
    """Bytes held without a gap; the next part begins there."""
    full: bool
    """The platform stores no more of this log; the rest stays in the worker's `log.txt`."""


class LostAttempt(Message):
    attempt_id: Id
    fence: Step


class LostAttempts(Message):
    """Attempts whose processes this node found dead, or ended, when its worker started."""

    attempts: Annotated[list[LostAttempt], Field(max_length=10_000)]


class Finish(Message):
    """Last message of an attempt, sent when every record has been acknowledged or the worker gave up on the rest."""

    fence: Step
    end: AttemptEnd
    code: Prose
    """`ok`, a GrpoError code, or one of the worker's own: trainer_died, not_answered …"""
    message: Prose
    exit_status: Count | None = None
    signal: Count | None = None
    log_tail: Annotated[Prose, Field(max_length=65536)] = ""
    last_seq: Count
    """How many records the attempt wrote; the platform refuses the finish (409) while it holds fewer. From a worker
    that gave up: how many were acknowledged."""


class Refusal(Message):
    """Body of every 4xx answer."""

    code: str
    """not_waiting, stale_fence, unknown_token, file_missing, bad_record, records_missing …"""
    message: str


# ---------------------------------------------------------------------- jobs of the reward lab


class JobClaim(Message):
    job_id: Id
    """The job that the message names: a hint, as with runs."""
    claim_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{0,64}$")] = ""
    """Random, one for each claim: the same one again gets the same job, because the first answer was lost."""
    node: NodeInfo


class JobGiven(Message):
    """The right to do one job. 409 instead when none is available on this node."""

    job_id: int
    fence: int
    token: str
    """Bearer token of this job at this fence, for every call below jobs/{job_id}/."""
    job: dict[str, Any]
    """A grpo_core.lab.job.Job whose data path points to `files`; device and threads are set by the worker."""
    files: list[InputFile]
    """Fetched by GET jobs/{job_id}/files/{sha256}."""
    heartbeat_seconds: float
    lease_seconds: float
    deadline_seconds: float
    """The worker ends what takes longer, and the job fails with `deadline`."""


Side = Literal["model", "reference"]
"""Who answers in a chat: the model that it is about, or the one next to it."""


class ChatText(Message):
    """One message of a conversation as one model saw it."""

    role: Literal["user", "assistant"]
    text: str


class ChatTurn(Message):
    """What a chat's job is to answer next."""

    turn: Id
    """Of the person's message on the platform."""
    histories: dict[Side, list[ChatText]]
    """Of each model that is to answer: the conversation so far, the person's newest message last."""
    temperature: float
    top_p: float
    max_tokens: int
    seed: int


class ChatAnswer(Message):
    """One model's answer to a turn."""

    turn: Id
    side: Side
    text: Annotated[Prose, Field(max_length=100_000)]
    tokens: Count
    """Of the answer, its end included."""
    prompt_tokens: Count
    """Of all that the model was given."""
    finish: FinishReason | None
    """Null where there is an error."""
    template: Literal["chat", "plain"]
    """chat: through the model's chat template. plain: it has none, and continued the text."""
    seconds: Seconds
    error: Annotated[Prose, Field(max_length=20_000)] = ""
    """Why there is no answer."""


class StoredSample(Message):
    sample: Id
    completion: str
    tokens: int
    """Of the completion, its end included."""


class StoredGroup(Message):
    """The samples of one group whose texts are still stored."""

    group: Id
    problem_id: str
    prompt: str
    answer: str
    samples: list[StoredSample]


class PageRequest(Message):
    fence: Step
    after: Id | None = None
    """The last group of the page before; null: whatever has no scores yet."""


MAX_PAGE_BYTES = 64 * 1024 * 1024
"""Of a page of stored groups, uncompressed: several times the largest group."""


class GroupPage(Message):
    """Stored groups of the run that a job re-scores; sent zstd-compressed."""

    groups: list[StoredGroup]
    """Whole ones, in order; none: there are no more."""
    done: int
    """Samples of the run that have scores by now."""


RescoreError = ErrorClass | Literal["no_problem"]
"""no_problem: the run's dataset has no problem with the group's id, so what the reward reads of it is not known."""


class SampleRescored(Message):
    """What a re-score made of one sample."""

    sample: Id
    value: Number | None
    """The reward; null where it could not be computed."""
    passed: bool | None
    """By the component that means right."""
    error_class: RescoreError | None = None
    """Of the first component that failed."""
    error: Annotated[Prose, Field(max_length=300)] = ""


class GroupRescored(Message):
    group: Id
    phantom: bool
    """Only shaping varies in the group (grpo_core.rewards.signal)."""
    samples: Annotated[list[SampleRescored], Field(max_length=100_000)]


class ScoresSent(Message):
    """Scores of whole groups, in the order in which the platform gave them."""

    fence: Step
    groups: Annotated[list[GroupRescored], Field(max_length=10_000)]


class ScoresReply(Message):
    done: int
    """Samples of the run that have scores by now."""


class JobBeat(Message):
    """Sign of life, every `heartbeat_seconds`."""

    fence: Step
    progress: Progress | None = None
    answers: Annotated[list[ChatAnswer], Field(max_length=100)] = Field(default_factory=list)
    """Of a chat: those that no reply to a beat has confirmed yet."""


class JobBeatReply(Message):
    desired: Literal["run", "cancel"]
    lease_seconds: float
    turns: list[ChatTurn] = Field(default_factory=list)
    """Of a chat: every turn that lacks an answer, oldest first; the same ones again until they have it."""
    close: bool = False
    """Of a chat: nothing more will come, and the job is to end by itself."""


class JobFinish(Message):
    """Last message on a job. released: the worker was shut down, and another worker may take the job."""

    fence: Step
    end: Literal["done", "failed", "cancelled", "released"]
    result: dict[str, Any] | None = None
    """With done: a grpo_core.lab.result.LabResult, or of a probe a grpo_core.probe.report.ProbeReport, of an
    estimate a grpo_core.records.estimate.Estimate, of an evaluation a grpo_core.lab.evaluation.ModelEvaluation, of a
    re-score a grpo_core.lab.rescore.RescoreEnded, of at most 8 MiB of JSON."""
    code: Prose = "ok"
    """`ok`, a GrpoError code, or one of the worker's own: deadline, result_too_large, job_died …"""
    message: Annotated[Prose, Field(max_length=20_000)] = ""
    log_tail: Annotated[Prose, Field(max_length=65536)] = ""
    seconds: Seconds = 0.0
