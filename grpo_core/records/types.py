"""Everything a run writes down: to its directory, and over the wire to the platform.

A record is a body with a `kind`; an `Envelope` gives it its position (`seq`, gap-free from 1 in one attempt) and time.
Numbers are finite: a value that is not a number is left out or null, never written as NaN. Loads no torch.
"""

from base64 import b64decode, b64encode
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from grpo_core.advantages.base import Signal
from grpo_core.records.bounds import (
    MOST,
    Count,
    Facts,
    Moment,
    Name,
    Number,
    RelativePath,
    Score,
    Seconds,
    Sha256,
    Step,
    StepOrZero,
    Sum,
    bounded,
)
from grpo_core.records.manifest_facts import CodeFacts, DataFacts, MachineFacts, ModelFacts

MaskCause = Literal["reward_error", "truncated", "importance"]
FinishReason = Literal["eos", "stop", "length"]
Phase = Literal["before", "during", "after"]
"""Of an evaluation: before training, while training, after it."""
MAX_TOKEN_FILE_BYTES = 64 * 1024 * 1024
"""A step whose token arrays need more is not stored: the trainer records an event instead."""
Discard = Literal["all_right", "all_wrong", "all_equal", "unscored"]


class Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


class Event(Body):
    """Something that happened and is worth recording: a phase that began, a warning, a problem that was dropped."""

    kind: Literal["event"] = "event"
    type: Name
    """Stable word, such as phase, warning, data, model, reward_error."""
    message: str
    """One sentence for a person."""
    data: Facts = Field(default_factory=dict)


class PhaseStarted(Body):
    """The trainer entered a phase. `total` is how many units (steps, problems) the phase has, if known."""

    kind: Literal["phase"] = "phase"
    phase: Literal["loading", "evaluating_before", "training", "sampling", "evaluating_after", "saving"]
    total: Count | None = None


class Manifest(Body):
    """What the run is based on: code state, versions, device, seeds, hashes of model and data."""

    kind: Literal["manifest"] = "manifest"
    code: Annotated[CodeFacts, AfterValidator(bounded)]
    packages: dict[Name, Name]
    """Version of each package that decides numbers: torch, transformers, numpy …"""
    platform: Annotated[MachineFacts, AfterValidator(bounded)]
    model: Annotated[ModelFacts, AfterValidator(bounded)]
    data: Annotated[DataFacts, AfterValidator(bounded)]
    seeds: dict[Name, Count]
    config_digest: Sha256
    reward: Annotated[dict[str, dict[str, Any]], AfterValidator(bounded)] = Field(default_factory=dict)
    """Of each component that holds something open, by its name, what it is based on: source_sha256, packages, weights,
    server. Empty where every component is a rule."""
    sandbox: Facts | None = None
    """Report of the sandbox's self-test; null where no component needs one."""


class StepMetrics(Body):
    """Numbers of one step, under the field's names (TRL's where the meaning is the same), as in docs/metrics.md.

    A metric that has no meaning in this run (kl without a reference, clip ratios at μ=1) is absent, not 0.
    """

    kind: Literal["step"] = "step"
    step: Step
    metrics: Annotated[dict[Name, Number], Field(max_length=1000)]
    seconds: Annotated[dict[Name, Seconds], Field(max_length=1000)] = Field(default_factory=dict)
    """Wall time by phase (docs/metrics.md), and `total`."""


SampleFlag = Literal["no_reasoning", "format_only", "near_duplicate", "language_switch"]
"""What a reviewer should look at, as grpo_core/rewards/flags.py defines it."""


class Sample(Body):
    """One completion and all that decided about it."""

    index: Count
    completion: str
    tokens: Count
    finish_reason: FinishReason
    reward: Number | None
    """Weighted sum; null when it could not be computed."""
    components: Annotated[dict[Name, "ComponentScore"], Field(max_length=1000)]
    shaped_reward: Number | None = None
    """The reward as its group compared it, after a KL penalty on the reward; null where that is the reward itself."""
    advantage: Number
    """Where advantages differ from token to token, their mean."""
    mask_cause: MaskCause | None = None
    """Why the sample was left out of the update; null when it was used."""
    logprob_mean: Number | None = None
    """Mean log-probability per token under the policy that sampled it."""
    salt: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = None
    """Of its leaf in the step's commitments (grpo_core/records/commitments.py); null where a trainer made none."""
    flags: tuple[SampleFlag, ...] = ()
    clipped: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of its tokens whose ratio was clipped in the last pass over it; null where nothing can be clipped, and for
    a sample that was not learned from."""
    tokens_sha256: Sha256 | None = None
    """Digest of its row in the step's token arrays (grpo_core/files/token_file.py); null where none was stored."""


ErrorClass = Literal[
    "verifier", "timeout", "memory", "output", "value", "sample", "parse", "refused", "budget", "infra"
]
"""verifier: its code raised. timeout: killed at its deadline. memory, output: killed for taking or printing too much.
value: what it gave is no finite number. sample: the problem lacks what it needs. parse: a judge's answer holds no
score. refused: a judge declined to judge. budget: a judge's budget is spent. infra: sandbox, worker or judge's server
failed, which is not the sample's doing."""
INFRASTRUCTURE_ERRORS: frozenset[ErrorClass] = frozenset({"budget", "infra"})
"""Errors for which a sample is never scored 0."""


class ComponentScore(Body):
    """One reward component's result for one completion."""

    value: Score | None
    """Before weighting; null on error."""
    passed: bool | None = None
    """Right or wrong, where the kind can say so."""
    detail: str = ""
    """What was extracted, or why it did not pass."""
    seconds: Seconds = 0.0
    error: str | None = None
    """Class and message of the error that kept it from being scored."""
    error_class: ErrorClass | None = None
    """What kind of error it was; with a value: how the completion ended its own scoring, for which it has 0."""
    traceback: str = ""
    """Where a verifier written by a person raised, its own lines only."""
    printed: str = ""
    """What a verifier written by a person printed while it scored this sample, cut when long."""
    tries: Annotated[int, Field(ge=1, le=MOST)] = 1
    """How often it was tried; more than once after an error that was not the sample's own."""
    steps: tuple["StepScore", ...] | None = None
    """Reward of each step of the completion, where the kind scores steps; `value` is what the kind makes of them."""


class StepScore(Body):
    """One step of a completion, for process supervision."""

    end: Annotated[int, Field(ge=1, le=MOST)]
    """Characters of the completion up to and including the step."""
    value: Score


class Group(Body):
    """G completions of one problem at one step."""

    kind: Literal["group"] = "group"
    step: Step
    index: Count
    """Index in the step's batch, from 0."""
    problem_id: str
    prompt: str
    answer: str
    reward_mean: Number | None
    reward_std: Number | None
    """As the advantage used it (population or sample, by config)."""
    signal: Signal
    """phantom is a signal only with algorithm.signal_gate: reward; all_equal and unscored never are."""
    discarded: Discard | None = None
    """Why dynamic sampling left the group out of training; null when it was trained on."""
    sampled_at: Step | None = None
    """Step whose policy sampled the group, when that is an earlier one (dynamic sampling's surplus,
    engine.one_step_off)."""
    samples: Annotated[tuple[Sample, ...], Field(min_length=1)]


class Commitments(Body):
    """A salted hash of every completion of one step, kept or not (grpo_core/records/commitments.py)."""

    kind: Literal["commitments"] = "commitments"
    step: Step
    count: Annotated[int, Field(ge=1, le=2**31 - 1)]
    """Completions."""
    leaves: Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]+={0,2}$")]
    """Base64 of count × 32 bytes. Leaf i·G + j is of sample j of the step's group i; groups that dynamic sampling
    discarded or held over follow those that were trained on."""

    @model_validator(mode="after")
    def _as_many_as_counted(self) -> Self:
        packed = b64decode(self.leaves, validate=True)
        if len(packed) != 32 * self.count or b64encode(packed).decode() != self.leaves:
            raise ValueError(f"leaves: {len(packed)} bytes are not {self.count} hashes of 32 bytes each")
        return self


class TokenArrays(Body):
    """The file of a step's token arrays (grpo_core/files/token_file.py), which lies in the run directory."""

    kind: Literal["tokens"] = "tokens"
    step: Step
    path: RelativePath
    size: Annotated[int, Field(ge=1, le=MAX_TOKEN_FILE_BYTES)]
    sha256: Sha256
    samples: Annotated[tuple[tuple[Count, Count], ...], Field(min_length=1, max_length=100_000)]
    """(group, sample) of each row, in the order of the file."""


class EvalItem(Body):
    """One held-out problem, or one item of a suite, in one evaluation: score is the mean over `samples_per_problem`
    completions. While training its texts are left out."""

    kind: Literal["eval_item"] = "eval_item"
    phase: Phase
    step: StepOrZero = 0
    """Steps that the policy was trained for."""
    suite: Name
    problem_id: str
    prompt: str
    answer: str
    completion: str
    """The first completion."""
    score: Annotated[float, Field(ge=0, le=1)]
    truncated: bool
    error: str | None = None
    tokens: Count
    detail: str = ""
    slice: str = ""
    """Part of the suite that is also reported by itself: a language, a type of prompt, `attack:<name>`."""
    cluster: str = ""
    """Items of one cluster ask the same thing in several ways, and are no independent evidence; empty: its own."""


class EvalResult(Body):
    """One suite, before, while or after training. Wrong, truncated and failed answers are counted apart."""

    kind: Literal["eval_result"] = "eval_result"
    phase: Phase
    step: StepOrZero = 0
    """Steps that the policy was trained for."""
    suite: Name
    problems: Annotated[int, Field(ge=1, le=MOST)]
    correct: Sum
    """Sum of scores."""
    truncated: Count
    errors: Count
    mean_tokens: Sum
    seconds: Seconds
    protocol: Facts
    """Template, decoding, seed, scorer and data digests; equal before and after, or nothing may be compared."""


class CheckpointManifest(Body):
    """Weights on the worker's disk: every file with size and SHA-256."""

    kind: Literal["checkpoint"] = "checkpoint"
    step: StepOrZero
    path: RelativePath
    """Relative to the run directory."""
    files: Annotated[dict[RelativePath, "FileEntry"], Field(min_length=1, max_length=10_000)]
    final: bool = False
    """Plain weights that transformers and vLLM load. The others hold all that training needs to continue."""
    best: bool = False
    """The best so far, by `checkpoints.best_by`."""
    seconds: Seconds = 0.0
    """What writing it took."""


class CheckpointRemoved(Body):
    """A checkpoint that was removed to make room for newer ones."""

    kind: Literal["checkpoint_removed"] = "checkpoint_removed"
    step: StepOrZero
    path: RelativePath
    """As its manifest had it."""


class Resumed(Body):
    """The attempt resumes from a checkpoint; what an earlier attempt recorded beyond its step is superseded."""

    kind: Literal["resumed"] = "resumed"
    step: StepOrZero
    """Newest step that the checkpoint holds; 0 is the one written before the first step."""
    checkpoint: str
    """Its folder, relative to the run directory that it lies in."""
    best: StepOrZero | None = None
    """Step of the best checkpoint as it was known then; null while there was none."""
    skipped: tuple["SkippedCheckpoint", ...] = ()
    """Newer checkpoints that could not be used."""


class SkippedCheckpoint(Body):
    path: str
    reason: str


class SampledDataset(Body):
    """The rows that a run of kind `sample` wrote (grpo_core/files/dataset.py), which lie in the run directory."""

    kind: Literal["dataset"] = "dataset"
    path: RelativePath
    """Of the rows, relative to the run directory."""
    content: Literal["conversations", "preferences"]
    rows: Annotated[int, Field(ge=1, le=MOST)]
    size: Annotated[int, Field(ge=1, le=MOST)]
    """Bytes."""
    sha256: Sha256
    counts: Annotated[dict[Name, Count], Field(max_length=1000)]
    """Completions, by what became of them: `kept`, or the first filter that dropped them. They sum to all that were
    sampled."""


class FileEntry(Body):
    size: Count
    sha256: Sha256


class Outcome(Body):
    """How the attempt ended. Written last; also as outcome.json."""

    kind: Literal["outcome"] = "outcome"
    status: Literal["finished", "failed", "stopped"]
    """stopped: asked to, by a signal. Whether that was a pause, a cancel or a shutdown only the worker knows."""
    code: Name = "ok"
    """`ok`, or the error class's code."""
    message: str
    """What a person should know, in a sentence or two."""
    steps_done: StepOrZero
    steps_planned: StepOrZero
    totals: Annotated[dict[Name, Sum], Field(max_length=1000)] = Field(default_factory=dict)
    """Sums over the run: samples, tokens, groups, groups_mixed, groups_all_equal, masked, seconds … Empty where the
    attempt ended before its trainer began, or before it had taken over a checkpoint's."""
    final_checkpoint: str | None = None

    @model_validator(mode="after")
    def _whole_totals(self) -> Self:
        if self.totals and (missing := _TOTALS - set(self.totals)):
            raise ValueError(f"totals: {', '.join(sorted(missing))} are needed where there are any")
        return self


_TOTALS = {"samples", "tokens", "groups", "groups_mixed", "groups_phantom", "groups_all_equal"} | {
    *("groups_unscored", "masked", "truncated", "reward_errors")
}
"""What the record reads of a run's totals."""


Record = Annotated[
    Event
    | PhaseStarted
    | Manifest
    | Resumed
    | StepMetrics
    | Commitments
    | Group
    | TokenArrays
    | EvalItem
    | EvalResult
    | CheckpointManifest
    | CheckpointRemoved
    | SampledDataset
    | Outcome,
    Field(discriminator="kind"),
]


class Envelope(Body):
    """A record with its position and time. `seq` counts from 1 without gaps inside one attempt."""

    seq: Annotated[int, Field(ge=1, le=MOST)]
    at: Moment
    record: Record


ENVELOPE: TypeAdapter[Envelope] = TypeAdapter(Envelope)
