"""The history of a run: its attempts, their superseded work, who put it back into the queue, earlier records, the
runs it came from, and comparisons. Read once when the record is made. Writes nothing.

`cohort.runs.transitions` decides which rows count; this module counts the superseded ones.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models.fields.json import KT

from cohort.evaluations.selectors import Suite
from cohort.records.models import Record
from cohort.records.schema_types import Comparison
from cohort.review.models import Group, Sample
from cohort.runs.base_models import weight_files
from cohort.runs.models import Attempt, Checkpoint, EvalResult, Run, RunEvent, RunState, StepMetric
from cohort.runs.transitions import current_evaluations, superseded

# Origin of a run's base model, as far as this platform knows: its weights, a cold start, earlier runs that wrote it.
# Writes nothing.

DEEPEST = 50
"""Runs in a row that are followed back."""


@dataclass(frozen=True)
class Ancestor:
    """An earlier run that trained the weights which the next one began from."""

    checkpoint: Checkpoint
    """Those weights."""
    registered_as: str
    """Name of the base model that the checkpoint is; empty where the next run read the same files from a folder."""
    seal: str
    """Of its newest record; empty while it has none."""

    @property
    def run(self) -> Run:
        return self.checkpoint.run

    @property
    def step(self) -> int:
        return self.checkpoint.step

    @property
    def weights(self) -> dict[str, str]:
        """{file: sha256}"""
        files = self.checkpoint.files
        return {name: files[name]["sha256"] for name in weight_files(self.checkpoint) if name in files}


@dataclass(frozen=True)
class Lineage:
    ancestors: list[Ancestor]
    """Newest first."""
    cold_start: dict[str, Any] | None
    """provenance.json from the model folder of the base that the oldest run began from."""
    weights_known: bool
    """Whether there is a digest of what the run began from; without one no earlier run can be found."""
    followed_to_the_end: bool
    """False when there were more than `DEEPEST`."""


def lineage(run: Run, manifest: Mapping[str, Any] | None) -> Lineage:
    """`manifest`: as the run's trainer reported it; None uses the catalog's data on the base model."""
    ancestors: list[Ancestor] = []
    known = {run.pk}
    here, weights, cold_start = run, _weights(run, manifest), _provenance(run, manifest)
    known_by = bool(weights) or run.base_model.checkpoint_id is not None
    while len(ancestors) < DEEPEST:
        registered = here.base_model.checkpoint
        checkpoint = registered or _made(here, weights, known)
        if checkpoint is None:
            return Lineage(ancestors, cold_start, known_by, followed_to_the_end=True)
        known.add(checkpoint.run_id)
        name = here.base_model.name if registered is not None else ""
        here = checkpoint.run
        newest = Record.objects.filter(run=here).order_by("-end", "-version").first()
        ancestors.append(Ancestor(checkpoint, name, newest.seal if newest else ""))
        manifest = here.newest_manifest()
        weights, cold_start = _weights(here, manifest), _provenance(here, manifest)
    return Lineage(ancestors, cold_start, known_by, followed_to_the_end=False)


def origin_of(run: Run, manifest: Mapping[str, Any] | None, known: set[int]) -> Checkpoint | None:
    """What the run's base model is a registration of, or a checkpoint of the same files. Runs in `known` are skipped
    in the search."""
    return run.base_model.checkpoint or _made(run, _weights(run, manifest), known)


def _weights(run: Run, manifest: Mapping[str, Any] | None) -> dict[str, str]:
    """{file: sha256} of what the run began from."""
    if manifest is not None:
        return dict(manifest["model"]["weights"])
    return {name: entry["sha256"] for name, entry in run.base_model.weights.items()}


def _provenance(run: Run, manifest: Mapping[str, Any] | None) -> dict[str, Any] | None:
    provenance = manifest["model"].get("provenance") if manifest is not None else None
    return provenance or run.base_model.provenance


def _made(run: Run, weights: dict[str, str], known: set[int]) -> Checkpoint | None:
    """The weights that a run of the same project wrote and that this one began from: every file by its SHA-256.
    Runs in `known` are skipped: a run that learned nothing writes the weights it began from, and a node's clock may
    be behind."""
    if not weights:
        return None
    files = {name: {"sha256": digest} for name, digest in weights.items()}
    rows = Checkpoint.objects.filter(run__project=run.project, files__contains=files, at__lt=run.created_at)
    rows = rows.exclude(run__in=known).select_related("run__base_model", "run__project")
    return rows.order_by("-at", "-pk").first()


# Every suite of a run before and after, as in the record: items from the database, statistics by the same functions
# that check a card.


def comparisons(suites: Iterable[Suite]) -> list[Comparison]:
    """The held-out problems first, then the suites by name."""
    return [Comparison.model_validate(suite.compared) for suite in suites]


_STEERED = ("retried", "extended", "pause_asked")
"""Kinds of events by which a person changes the course of a run that exists; a move into or out of pause without a
worker is a state event."""


@dataclass
class Tried:
    """One attempt, as far as it reported."""

    attempt: Attempt
    first_step: int | None = None
    last_step: int | None = None
    steps: int = 0
    seconds: float = 0.0
    """Of its steps together, as the trainer measured them."""
    tokens: float | None = 0.0
    """Sampled in its steps, with prompts; None when the trainer did not report it."""
    superseded_steps: int = 0
    superseded_seconds: float = 0.0
    superseded_tokens: float | None = 0.0

    @property
    def held_seconds(self) -> float:
        """How long the attempt held its node, on the database's clock."""
        return (self.attempt.ended_at - self.attempt.claimed_at).total_seconds() if self.attempt.ended_at else 0.0

    @property
    def device_seconds(self) -> float:
        """Times the GPUs that it held; without one the node counts as one device."""
        return self.held_seconds * max(1, self.attempt.gpus)


@dataclass(frozen=True)
class Steered:
    """What a person did to the run after it was launched."""

    at: datetime
    actor: str
    what: str
    words: str
    data: dict[str, Any]


@dataclass(frozen=True)
class History:
    tries: list[Tried]
    superseded_groups: int
    """Of those that were kept."""
    superseded_samples: int
    superseded_evaluations: int
    steered: list[Steered]
    earlier: list[tuple[Record, str]]
    """Records of the same run, sealed at ends before this one, or earlier versions of it; and how the run had ended."""

    @property
    def steps(self) -> int:
        """Of all attempts, superseded ones too."""
        return sum(tried.steps for tried in self.tries)

    @property
    def superseded_steps(self) -> int:
        return sum(tried.superseded_steps for tried in self.tries)

    @property
    def superseded_tokens(self) -> float | None:
        """None when a superseded step did not report them."""
        tokens = [tried.superseded_tokens for tried in self.tries]
        return None if None in tokens else sum(filter(None, tokens))

    @property
    def held_seconds(self) -> float:
        return sum(tried.held_seconds for tried in self.tries)

    @property
    def device_seconds(self) -> float:
        return sum(tried.device_seconds for tried in self.tries)


def history(run: Run) -> History:
    attempts = list(run.attempts.select_related("node").order_by("fence"))
    groups = superseded(Group.objects.filter(run=run))
    evaluations = EvalResult.objects.filter(run=run)
    earlier = Record.objects.filter(run=run).order_by("end", "version")  # the one being made is not stored yet
    return History(
        tries=_tries(run, attempts),
        superseded_groups=groups.count(),
        superseded_samples=Sample.objects.filter(group__in=groups.values("pk")).count(),
        superseded_evaluations=evaluations.count() - current_evaluations(evaluations).count(),
        steered=_steered(run),
        earlier=[(record, _state(record)) for record in earlier],
    )


def _tries(run: Run, attempts: list[Attempt]) -> list[Tried]:
    """`num_tokens` of a step counts from the run's first one on, in the line of attempts that the step belongs to. So
    what a step cost is its count less that of the step before it, by the newest attempt up to its own that has it."""
    tries = {attempt.pk: Tried(attempt) for attempt in attempts}
    counted: dict[int, float | None] = {0: 0.0}
    rows = StepMetric.objects.filter(run=run).order_by("attempt__fence", "step")
    step_values = rows.values_list("attempt_id", "step", KT("metrics__num_tokens"), KT("seconds__total"))
    for attempt_id, step, tokens, seconds in step_values.iterator(chunk_size=5000):
        tried = tries[attempt_id]
        before, counted[step] = counted.get(step - 1), None if tokens is None else float(tokens)
        total = counted[step]
        cost = None if total is None or before is None else total - before
        took = float(seconds or 0.0)
        tried.first_step = tried.first_step or step
        tried.last_step, tried.steps, tried.seconds = step, tried.steps + 1, tried.seconds + took
        tried.tokens = _plus(tried.tokens, cost)
        if tried.attempt.valid_through is not None and step > tried.attempt.valid_through:
            tried.superseded_steps += 1
            tried.superseded_seconds += took
            tried.superseded_tokens = _plus(tried.superseded_tokens, cost)
    return list(tries.values())


def _plus(sum_: float | None, more: float | None) -> float | None:
    return None if sum_ is None or more is None else sum_ + more


def _steered(run: Run) -> list[Steered]:
    """Retries, extensions, pauses and their ends by people, in order. What the platform or a worker did is in the
    attempts."""
    steered: list[Steered] = []
    people = RunEvent.objects.filter(run=run, kind__in=[*_STEERED, "state"], actor__startswith="user:")
    for event in people.order_by("pk"):
        kind = event.kind
        if kind == "state":
            way = (event.data.get("from"), event.data.get("to"))
            if RunState.PAUSED not in way:
                continue
            kind = {RunState.PAUSED: "paused", RunState.QUEUED: "resumed"}.get(way[1], "cancelled")
            if kind == "resumed" and steered and steered[-1].what == "extended":
                continue  # to extend a paused run is to resume it
        steered.append(Steered(event.at, event.actor.removeprefix("user:"), kind, event.message, event.data))
    return steered


def _state(record: Record) -> str:
    """How the run had ended; records of the first schema have it under another key."""
    document = json.loads(record.document)
    return str(document["head" if "head" in document else "record"]["state"])
