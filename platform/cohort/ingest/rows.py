"""From records to rows: which table takes which record, and the updates of the attempt's and the run's own rows.

Called inside the transaction of `ingest`, with run and attempt locked. What comes by the thousand goes through COPY;
what comes a few times in a run is written one by one, in order.
"""

from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg
from pydantic import TypeAdapter
from pydantic_core import to_json

from cohort.ingest.buckets import buckets_store
from cohort.ingest.commitments import require_committed
from cohort.ingest.copy import BadRecord, Table
from cohort.ingest.evaluations import require_evaluations
from cohort.ingest.run_state import PHASE_WORDS, LockedAttempt, keep_good, resume_attempt, start_phase
from cohort.review.facets import Packer, packer_of
from cohort.review.models import DatasetFile, Group, Sample, StepCommitments, TokenFile
from cohort.runs.attempts import run_moves
from cohort.runs.models import Attempt, Checkpoint, EvalItem, EvalResult, Run, RunEvent, RunKind, StepMetric
from cohort.runs.preregistration import record_first_step
from cohort.runs.run_values import evaluation_values_store
from cohort.runs.transitions import OWN_KINDS
from grpo_core.records import types as records

_FILES: TypeAdapter[dict[str, records.FileEntry]] = TypeAdapter(dict[str, records.FileEntry])
_COMPONENTS: TypeAdapter[dict[str, records.ComponentScore]] = TypeAdapter(dict[str, records.ComponentScore])
_STEPS = Table(StepMetric, "attempt", "run", "seq", "step", "at", "metrics", "seconds")
_GROUPS = Table(
    Group,
    *("id", "attempt", "run", "seq", "step", "index", "problem_id", "prompt", "answer", "reward_mean", "reward_std"),
    *("signal", "discarded", "sampled_at"),
)
_SAMPLES = Table(
    Sample,
    *("group", "run", "attempt", "step", "index", "completion", "tokens", "finish_reason", "reward", "components"),
    *("shaped_reward", "advantage", "mask_cause", "logprob_mean", "salt", "tokens_sha256"),
    *("facets", "component_values", "clipped"),
)
_COMMITMENTS = Table(StepCommitments, "attempt", "run", "seq", "step", "count", "leaves")
_ITEMS = Table(
    EvalItem,
    *("attempt", "run", "seq", "phase", "step", "suite", "problem_id", "prompt", "answer", "completion", "score"),
    *("truncated", "error", "tokens", "detail", "slice", "cluster"),
)
_EVENTS = Table(RunEvent, "run", "attempt", "seq", "at", "actor", "kind", "message", "data")
_RESULTS = Table(EvalResult, "phase", "step", "suite", "problems", "truncated", "errors")
_DATASETS = Table(DatasetFile, "content", "rows", "size", "sha256")
_CHECKPOINTS = Table(
    Checkpoint,
    *("attempt", "run", "seq", "step", "at", "path", "files", "final", "best", "pinned", "seconds"),
)
_REMOVED = """
    UPDATE runs_checkpoint SET removed_at = statement_timestamp()
    FROM unnest(%s::int[], %s::text[]) AS removed (step, path)
    WHERE run_id = %s AND attempt_id = %s AND removed_at IS NULL
      AND runs_checkpoint.step = removed.step AND runs_checkpoint.path = removed.path
"""
_STEPS_FOR_SPEED = 20
_GROUP_IDS = """
    SELECT nextval(ids.name) FROM
        (SELECT pg_get_serial_sequence('review_group', 'id')::regclass AS name) AS ids, generate_series(1, %s)
"""
_REWARD = "SELECT (config->'reward')::text FROM runs_run WHERE id = %s"
_ADVANCE = """
    UPDATE runs_attempt SET acked_seq = %s, progress_at = statement_timestamp() WHERE id = %s
"""
# The newest steps are selected by their numbers, a range of the index by run and step: "the last 20 of the attempt"
# is read as all of them sorted until the table has been analysed. One plan reads a run from its beginning: that made
# when autovacuum has just found the table empty. It is kept until autovacuum comes again, a minute after 50 steps.
_ADVANCE_STEP = f"""
    WITH moved AS ({_ADVANCE})
    UPDATE runs_run SET
        step = %s,
        first_metrics = coalesce(%s::jsonb, first_metrics),
        latest_metrics = %s::jsonb,
        seconds_per_step = coalesce((
            SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY newest.total) FROM (
                SELECT (seconds->>'total')::float AS total FROM runs_stepmetric
                WHERE run_id = %s AND step > %s AND attempt_id = %s
            ) AS newest
        ), seconds_per_step)
    WHERE id = %s
"""


@dataclass
class _Rows:
    """What goes through COPY, table by table."""

    steps: list[tuple[Any, ...]] = field(default_factory=list)
    groups: list[tuple[int, records.Group]] = field(default_factory=list)
    commitments: list[tuple[Any, ...]] = field(default_factory=list)
    items: list[tuple[Any, ...]] = field(default_factory=list)
    events: list[tuple[Any, ...]] = field(default_factory=list)
    checkpoints: list[tuple[int, datetime, records.CheckpointManifest]] = field(default_factory=list)
    removed: list[records.CheckpointRemoved] = field(default_factory=list)


def store(cursor: "psycopg.Cursor[Any]", attempt: LockedAttempt, envelopes: Sequence[records.Envelope]) -> None:
    """Write the records, which follow without a gap on what the attempt holds, and advance its `acked_seq`.

    Raises BadRecord for a record that no table can hold or that contradicts what is stored.
    """
    rows, few = _sorted(attempt, envelopes)
    require_committed(attempt, envelopes)
    require_evaluations(attempt, envelopes)
    if rows.steps:
        _STEPS.write(cursor, rows.steps)
    if rows.groups:
        _store_groups(cursor, attempt, rows.groups)
    if rows.commitments:
        _store_commitments(cursor, rows.commitments)
    if rows.items:
        _store_items(cursor, rows.items)
    if rows.events:
        _EVENTS.write(cursor, rows.events)
    if rows.checkpoints:
        _store_checkpoints(cursor, attempt, rows.checkpoints)
    if rows.removed:
        # A checkpoint that another attempt wrote and this one fetched to resume from still exists there.
        removed = ([removal.step for removal in rows.removed], [removal.path for removal in rows.removed])
        cursor.execute(_REMOVED, (*removed, attempt.run_id, attempt.attempt_id), prepare=True)
    for envelope in few:
        _store_one(attempt, envelope)
    steps = [envelope.record for envelope in envelopes if isinstance(envelope.record, records.StepMetrics)]
    if steps and attempt.unbegun:
        record_first_step(run_id=attempt.run_id)
    if steps:
        buckets_store(cursor, attempt_id=attempt.attempt_id, run_id=attempt.run_id, steps=steps)
    _update_run(cursor, attempt, envelopes[-1].seq, steps)


def _sorted(attempt: LockedAttempt, envelopes: Sequence[records.Envelope]) -> tuple[_Rows, list[records.Envelope]]:
    """(what goes through COPY, what is written one by one). Every value is checked against its column."""
    rows, few, step, ended = _Rows(), [], attempt.step, attempt.ended
    for envelope in envelopes:
        record, seq = envelope.record, envelope.seq
        if ended:
            raise BadRecord.of(seq, "it comes after the attempt's outcome", "after_the_end")
        match record:
            case records.StepMetrics():
                if record.step != step + 1:
                    raise BadRecord.of(seq, f"step: {record.step} comes after step {step}", "step_not_next")
                step, parts = record.step, (to_json(record.metrics).decode(), to_json(record.seconds).decode())
                row = (attempt.attempt_id, attempt.run_id, seq, record.step, envelope.at, *parts)
                _STEPS.fit(seq, row)
                rows.steps.append(row)
            case records.Group():
                _require_step(seq, record.step, record.step == step, step)
                rows.groups.append((seq, record))
            case records.Commitments():
                _require_step(seq, record.step, record.step == step, step)
                leaves = b64decode(record.leaves)
                committed = (attempt.attempt_id, attempt.run_id, seq, record.step, record.count, leaves)
                _COMMITMENTS.fit(seq, committed)
                rows.commitments.append(committed)
            case records.TokenArrays():
                _require_step(seq, record.step, record.step == step, step)
                few.append(envelope)
            case records.EvalItem():
                _require_step(seq, record.step, record.phase != "during" or record.step == step, step)
                rows.items.append(_item(attempt, seq, record))
            case records.EvalResult():
                _require_step(seq, record.step, record.phase != "during" or record.step == step, step)
                few.append(envelope)
            case records.Event():
                if record.type in OWN_KINDS:
                    raise BadRecord.of(
                        seq,
                        f"type: {record.type!r} is of the platform's own events; a trainer names its events otherwise",
                        "own_kind",
                    )
                rows.events.append(_event(attempt, envelope, record.type, record.message, record.data))
                if record.type == "diagnosis" and isinstance(record.data.get("kept"), int):
                    few.append(envelope)
            case records.PhaseStarted():
                data = {"phase": record.phase, "total": record.total}
                rows.events.append(_event(attempt, envelope, "phase", PHASE_WORDS[record.phase].capitalize(), data))
                few.append(envelope)
            case records.Resumed():
                if step > attempt.step:
                    raise BadRecord.of(seq, "the attempt has trained a step before it was resumed", "resumed_late")
                step = record.step
                data = record.model_dump(mode="json", exclude={"kind"})
                rows.events.append(_event(attempt, envelope, "resumed", _resumed_words(record), data))
                few.append(envelope)
            case records.CheckpointManifest():
                _require_step(seq, record.step, record.step <= step, step)
                rows.checkpoints.append((seq, envelope.at, record))
            case records.CheckpointRemoved():
                rows.removed.append(record)
            case _:
                few.append(envelope)
                ended = isinstance(record, records.Outcome)
    return rows, few


def _require_step(seq: int, step: int, fits: bool, newest: int) -> None:
    """Raises BadRecord."""
    if not fits:
        raise BadRecord.of(seq, f"step: {step}, and the newest step is {newest}", "other_step")


def _item(attempt: LockedAttempt, seq: int, item: records.EvalItem) -> tuple[Any, ...]:
    problem = (item.phase, item.step, item.suite, item.problem_id, item.prompt, item.answer, item.completion)
    judged = (item.score, item.truncated, item.error or "", item.tokens, item.detail)
    row = (attempt.attempt_id, attempt.run_id, seq, *problem, *judged, item.slice, item.cluster)
    _ITEMS.fit(seq, row)
    return row


def _event(
    attempt: LockedAttempt, envelope: records.Envelope, kind: str, message: str, data: dict[str, Any]
) -> tuple[Any, ...]:
    text = to_json(data).decode()
    row = (attempt.run_id, attempt.attempt_id, envelope.seq, envelope.at, "trainer", kind, message, text)
    _EVENTS.fit(envelope.seq, row)
    return row


def _resumed_words(record: records.Resumed) -> str:
    origin = f"step {record.step}" if record.step else "the evaluation before training"
    skipped = "".join(f"; {entry.path} was passed over: {entry.reason}" for entry in record.skipped)
    return f"Resumes from the checkpoint of {origin}{skipped}"


def _store_groups(
    cursor: "psycopg.Cursor[Any]", attempt: LockedAttempt, groups: list[tuple[int, records.Group]]
) -> None:
    """Ids are allocated first, so that samples need no query for those of their groups."""
    ids = [row[0] for row in cursor.execute(_GROUP_IDS, (len(groups),), prepare=True)]
    [(reward,)] = cursor.execute(_REWARD, (attempt.run_id,), prepare=True)
    packer = packer_of(reward)
    made, samples = [], []
    for group_id, (seq, group) in zip(ids, groups, strict=True):
        where = (attempt.run_id, attempt.attempt_id, group.step)
        problem = (group.step, group.index, group.problem_id, group.prompt, group.answer)
        rest = (group.reward_mean, group.reward_std, group.signal, group.discarded or "", group.sampled_at)
        row = (group_id, attempt.attempt_id, attempt.run_id, seq, *problem, *rest)
        _GROUPS.fit(seq, row)
        made.append(row)
        indexes = set()
        for drawn in group.samples:
            indexes.add(drawn.index)
            sample = _sample(packer, (group_id, *where), drawn, group)
            _SAMPLES.fit(seq, sample)
            samples.append(sample)
        if len(indexes) < len(group.samples):
            raise BadRecord.of(seq, "samples: two of them have the same index", "same_index")
    _GROUPS.write(cursor, made)
    _SAMPLES.write(cursor, samples)


def _store_commitments(cursor: "psycopg.Cursor[Any]", rows: list[tuple[Any, ...]]) -> None:
    try:
        _COMMITMENTS.write(cursor, rows)
    except psycopg.errors.UniqueViolation:
        _, _, seq, step, *_ = rows[-1]
        raise BadRecord.of(seq, f"step: the attempt has committed to step {step} before", "committed_before") from None


def _store_items(cursor: "psycopg.Cursor[Any]", rows: list[tuple[Any, ...]]) -> None:
    try:
        _ITEMS.write(cursor, rows)
    except psycopg.errors.UniqueViolation:
        _, _, seq, phase, _, suite, *_ = rows[0]
        raise BadRecord(
            f"record {seq} is not valid, or one after it: problem_id: the attempt has answered it {phase} training in "
            f"{suite} already",
            code="answered_before",
        ) from None


def _store_checkpoints(
    cursor: "psycopg.Cursor[Any]",
    attempt: LockedAttempt,
    manifests: list[tuple[int, datetime, records.CheckpointManifest]],
) -> None:
    """A run has one best checkpoint: the last one marked best."""
    best = max((seq for seq, _, manifest in manifests if manifest.best), default=None)
    if best is not None:
        Checkpoint.objects.filter(run=attempt.run_id, best=True).update(best=False)
    made = []
    for seq, at, manifest in manifests:
        files = _FILES.dump_json(manifest.files).decode()
        rest = (manifest.step, at, manifest.path, files, manifest.final, seq == best, False, manifest.seconds)
        row = (attempt.attempt_id, attempt.run_id, seq, *rest)
        _CHECKPOINTS.fit(seq, row)
        made.append(row)
    _CHECKPOINTS.write(cursor, made)


def _sample(packer: Packer, where: tuple[int, ...], sample: records.Sample, group: records.Group) -> tuple[Any, ...]:
    components = _COMPONENTS.dump_json(sample.components).decode()
    written = (sample.completion, sample.tokens, sample.finish_reason, sample.reward, components, sample.shaped_reward)
    rest = (sample.advantage, sample.mask_cause or "", sample.logprob_mean, sample.salt or "")
    values = ",".join(["NULL" if value is None else repr(value) for value in packer.values(sample.components)])
    searched = (packer.facets(sample, group.discarded or ""), f"{{{values}}}", sample.clipped)
    return (*where, sample.index, *written, *rest, sample.tokens_sha256 or "", *searched)


# ---------------------------------------------------------------------- a few in a run


def _store_one(attempt: LockedAttempt, envelope: records.Envelope) -> None:
    seq, record = envelope.seq, envelope.record
    attempts = Attempt.objects.filter(pk=attempt.attempt_id)
    match record:
        case records.Manifest():
            attempts.update(manifest=record.model_dump(mode="json"))
        case records.Outcome():
            attempts.update(outcome=record.model_dump(mode="json"))
        case records.EvalResult():
            _RESULTS.fit(
                seq, (record.phase, record.step, record.suite, record.problems, record.truncated, record.errors)
            )
            columns = {"attempt_id": attempt.attempt_id, "run_id": attempt.run_id, "seq": seq, "at": envelope.at}
            EvalResult.objects.create(**columns, **record.model_dump(exclude={"kind"}))
            evaluation_values_store(run_id=attempt.run_id)
        case records.TokenArrays():
            announced = {"attempt_id": attempt.attempt_id, "step": record.step}
            if TokenFile.objects.filter(**announced).exists():
                raise BadRecord.of(seq, f"step: the attempt has named a file of step {record.step}", "tokens_before")
            file = {"size": record.size, "sha256": record.sha256, "samples": [list(key) for key in record.samples]}
            TokenFile.objects.create(run_id=attempt.run_id, seq=seq, **announced, **file)
        case records.SampledDataset():
            _store_dataset(attempt, seq, record)
        case records.PhaseStarted():
            start_phase(attempt, seq, record)
        case records.Resumed():
            resume_attempt(attempt, seq, record)
        case records.Event():
            keep_good(attempt, record.data["kept"])


def _store_dataset(attempt: LockedAttempt, seq: int, record: records.SampledDataset) -> None:
    """Raises BadRecord for a second one, and in a run that samples none."""
    if not Run.objects.filter(pk=attempt.run_id, kind=RunKind.SAMPLE).exists():
        raise BadRecord.of(seq, "kind: only a run of kind sample writes a dataset", "no_sampling_run")
    if DatasetFile.objects.filter(attempt=attempt.attempt_id).exists():
        raise BadRecord.of(seq, "kind: the attempt has named its dataset before", "dataset_before")
    _DATASETS.fit(seq, (record.content, record.rows, record.size, record.sha256))
    fields = record.model_dump(exclude={"kind", "path"})
    DatasetFile.objects.create(attempt_id=attempt.attempt_id, run_id=attempt.run_id, seq=seq, **fields)


def _update_run(
    cursor: "psycopg.Cursor[Any]", attempt: LockedAttempt, seq: int, steps: Sequence[records.StepMetrics]
) -> None:
    """Count the records as held, and bring the run's row up to date: step, first and newest metrics, speed."""
    if attempt.stalled:
        run_moves(run=Run.objects.get(pk=attempt.run_id))
    if steps:
        # The run's first metrics are those of step 1; an attempt that begins anew replaces the earlier ones' too.
        first = to_json(steps[0].metrics).decode() if attempt.unbegun or steps[0].step == 1 else None
        last = steps[-1]
        now = (last.step, first, to_json(last.metrics).decode())
        newest = (attempt.run_id, last.step - _STEPS_FOR_SPEED, attempt.attempt_id)
        cursor.execute(_ADVANCE_STEP, (seq, attempt.attempt_id, *now, *newest, attempt.run_id), prepare=True)
        return
    cursor.execute(_ADVANCE, (seq, attempt.attempt_id), prepare=True)
