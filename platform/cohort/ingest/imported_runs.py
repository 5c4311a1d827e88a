"""Makes a run of completions that another trainer wrote: read-only, imported and not observed. Step by step, so that no
more than the samples of one step are in memory; in one transaction, so that a file with a fault leaves nothing."""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.db.models.functions import Now
from pydantic_core import to_json

from cohort.accounts.models import Project, User
from cohort.audit import services as audit
from cohort.evaluations.imports.bounds import BadImport
from cohort.ingest.copy import Table, server_cursor
from cohort.review.facets import FINISH, VERIFIER
from cohort.review.imports import inspect_samples, trl, verl
from cohort.review.imports.rows import (
    LARGEST,
    MAX_COMPONENTS,
    MAX_IMPORT_BYTES,
    MAX_SAMPLES,
    MAX_STEP_SAMPLES,
    Reading,
    Row,
    SourceFile,
)
from cohort.review.models import Group, RunImport, Sample
from cohort.runs.imported_reward import ImportedComponent, ImportedReward
from cohort.runs.models import Attempt, AttemptState, Run, RunOrigin, RunState
from cohort.runs.transitions import run_logged

READERS: dict[str, Callable[[SourceFile, Reading], Iterator[Row]]] = {
    RunImport.Format.TRL: trl.read,
    RunImport.Format.VERL: verl.read,
    RunImport.Format.INSPECT: inspect_samples.read,
}
STATED = ("tokens", "finish", "advantage", "reference")
"""Columns of samples that a format may leave out. No format states the rest, such as masks and clipped
shares."""
_GROUPS = Table(
    Group,
    *("id", "attempt", "run", "seq", "step", "index", "problem_id", "prompt", "answer", "reward_mean", "reward_std"),
    *("signal", "discarded", "sampled_at"),
)
_SAMPLES = Table(
    Sample,
    *("group", "run", "attempt", "step", "index", "completion", "tokens", "finish_reason", "reward", "components"),
    *("advantage", "mask_cause", "salt", "tokens_sha256", "facets", "component_values"),
)
_GROUP_IDS = """
    SELECT nextval(ids.name) FROM
        (SELECT pg_get_serial_sequence('review_group', 'id')::regclass AS name) AS ids, generate_series(1, %s)
"""


@dataclass
class RewardRule:
    """How the reward is made of a file's columns, by the importer's word or by what the format means."""

    format: str
    weights: Mapping[str, float]
    """As the importer stated them; empty: those of the format."""
    right: str
    """Column that means right; empty: what the file says in words."""
    right_from: float | None
    """Its smallest value that is right."""
    order: list[str] = field(default_factory=list)
    """Columns as they were first seen."""
    judged: str = ""
    """The first column with a verdict in some row; empty while there is none."""

    def weight(self, name: str) -> float:
        if self.weights:
            return self.weights.get(name, 0.0)
        if self.format == RunImport.Format.TRL:
            return 1.0
        first = "score" if self.format == RunImport.Format.VERL else self.order[0]
        return float(name == first)

    def components(self, row: Row) -> dict[str, dict[str, Any]]:
        for name in row.scores:
            if name not in self.order:
                self.order.append(name)
                if len(self.order) > MAX_COMPONENTS:
                    raise BadImport(
                        f"the files have more than {MAX_COMPONENTS} columns of numbers", code="too_many_columns"
                    )
        passed = {} if self.right else dict(row.passed)
        if self.right and self.right_from is not None and (value := row.scores.get(self.right)) is not None:
            passed[self.right] = value >= self.right_from
        self.judged = self.judged or next(iter(passed), "")
        return {name: {"value": value, "passed": passed.get(name)} for name, value in row.scores.items()}

    def reward(self, row: Row) -> float | None:
        """The weighted sum of what has a value; None where nothing has."""
        parts = [w * value for name, value in row.scores.items() if value is not None and (w := self.weight(name))]
        return math.fsum(parts) if parts else None

    def success(self) -> str:
        return self.right or self.judged or max(self.order, key=self.weight)

    def require_known(self) -> None:
        """Raises ValidationError for a column that the importer stated and no row has."""
        unknown = sorted(self.weights.keys() - set(self.order))
        if unknown:
            raise ValidationError({"weights": f"No row has {unknown[0]}; the files have {', '.join(self.order)}."})
        if self.right and self.right not in self.order:
            raise ValidationError({"right": f"No row has {self.right}; the files have {', '.join(self.order)}."})

    @property
    def words(self) -> str:
        parts = [f"{self.weight(name):g} × {name}" for name in self.order if self.weight(name)]
        whose = (
            "by the importer's word" if self.weights else "as the format means it unless its trainer was set otherwise"
        )
        success = self.success()
        if self.right:
            right = f"{success} from {self.right_from:g} on counts as right, by the importer's word"
        elif self.judged:
            right = f"{success} says right or wrong"
        else:
            right = "nothing states what is right"
        return f"Reward: {' + '.join(parts) or 'none'}, {whose}; {right}."


def imported_run_create(
    *,
    project: Project,
    actor: User,
    name: str,
    format: str,
    files: Sequence[SourceFile],
    weights: Mapping[str, float] | None = None,
    right: str = "",
    right_from: float | None = None,
) -> Run:
    """The imported run with all samples of the files. Raises ValidationError by field; then nothing is stored."""
    if format not in READERS:
        raise ValidationError({"format": f"Choose one of {', '.join(READERS)}."})
    if not files:
        raise ValidationError({"upload": "Choose a file."})
    if twice := [name for name, times in Counter(file.name for file in files).items() if times > 1]:
        raise ValidationError({"upload": f"Two files are named {twice[0]}. Give each its own name."})
    if bool(right) != (right_from is not None):
        raise ValidationError({"right": "State both: the column, and the value from which on it is right."})
    if sum(file.path.stat().st_size for file in files) > MAX_IMPORT_BYTES:
        raise ValidationError({"upload": f"The files have more than {MAX_IMPORT_BYTES:,} bytes together."})
    rule = RewardRule(format, weights or {}, right, right_from)
    try:
        with transaction.atomic():
            return _imported(project, actor, name, files, rule)
    except BadImport as error:
        raise ValidationError({"upload": f"{error}."}) from None


def _imported(project: Project, actor: User, name: str, files: Sequence[SourceFile], rule: RewardRule) -> Run:
    run = Run.every.create(
        project=project,
        name=name,
        state=RunState.SUCCEEDED,
        origin=RunOrigin.IMPORTED,
        config={},
        config_digest="",
        created_by=actor,
    )
    attempt = Attempt.objects.create(run=run, fence=1, state=AttemptState.FINISHED, claimed_at=Now(), ended_at=Now())
    reading, store = Reading(), _Store(run.pk, attempt.pk, rule)
    with connection.wrap_database_errors:
        for step, rows in _steps(_rows(files, rule.format, reading)):
            store.step(step, rows)
    if not store.samples:
        raise BadImport("the files hold no completion", code="no_samples")
    rule.require_known()
    reward = ImportedReward(
        components=tuple(ImportedComponent(name=column, weight=rule.weight(column)) for column in rule.order),
        success=rule.success(),
    )
    run.config = {"reward": reward.model_dump(mode="json")}
    run.step = run.steps_total = store.newest
    run.fence = 1
    run.save(update_fields=["config", "step", "steps_total", "fence"])
    Attempt.objects.filter(pk=attempt.pk).update(acked_seq=store.groups)
    listed = [{"name": file.name, "sha256": file.digest(), "bytes": file.path.stat().st_size} for file in files]
    counts = {"steps": len(store.seen), "groups": store.groups, "samples": store.samples}
    RunImport.objects.create(
        run=run,
        format=rule.format,
        files=listed,
        facts=reading.facts,
        reward_rule=rule.words,
        not_stated=[column for column in STATED if column not in reading.states],
        left_out=dict(reading.left_out),
        by=actor,
        **counts,
    )
    run_logged(
        run=run,
        actor=audit.who(actor),
        kind="run_imported",
        after={"name": name, "format": rule.format, **counts},
        data={"files": listed[:100], "file_count": len(listed)},
    )
    return run


def _rows(files: Sequence[SourceFile], format: str, reading: Reading) -> Iterator[Row]:
    for file in files:
        yield from READERS[format](file, reading)


def _steps(rows: Iterator[Row]) -> Iterator[tuple[int, list[Row]]]:
    """The rows of each step; they must follow on each other. Raises BadImport."""
    seen: set[int] = set()
    current: list[Row] = []
    for row in islice(rows, MAX_SAMPLES + 1):
        if current and current[0].step != row.step:
            seen.add(current[0].step)
            yield current[0].step, current
            current = []
        if row.step in seen:
            raise BadImport(
                f"step {row.step} comes again after another step. Send each step once, and the rows of a step together",
                code="step_twice",
            )
        current.append(row)
        if len(current) > MAX_STEP_SAMPLES:
            raise BadImport(f"step {row.step} has more than {MAX_STEP_SAMPLES:,} samples", code="step_too_large")
    if current:
        yield current[0].step, current


class _Store:
    def __init__(self, run_id: int, attempt_id: int, rule: RewardRule) -> None:
        self._run_id, self._attempt_id, self._rule = run_id, attempt_id, rule
        self._cursor = server_cursor()
        self.groups = self.samples = self.newest = 0
        self.seen: list[int] = []

    def step(self, step: int, rows: Sequence[Row]) -> None:
        """Groups are the rows of the step with the same problem and prompt, in the order of their first."""
        by_prompt: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            by_prompt.setdefault((row.problem_id, row.prompt), []).append(row)
        self.samples += len(rows)
        if self.samples > MAX_SAMPLES:
            raise BadImport(f"the files hold more than {MAX_SAMPLES:,} completions", code="too_many_samples")
        ids = [pk for (pk,) in self._cursor.execute(_GROUP_IDS, (len(by_prompt),))]
        groups, samples = [], []
        for index, (group_id, own) in enumerate(zip(ids, by_prompt.values(), strict=True)):
            components = [self._rule.components(row) for row in own]
            rewards = [self._rule.reward(row) for row in own]
            groups.append(self._group(group_id, step, index, own[0], rewards))
            samples += [
                self._sample((group_id, self._run_id, self._attempt_id, step, at), *each)
                for at, each in enumerate(zip(own, components, rewards, strict=True))
            ]
        _GROUPS.write(self._cursor, groups)
        _SAMPLES.write(self._cursor, samples)
        self.seen.append(step)
        self.newest = max(self.newest, step)

    def _group(self, pk: int, step: int, index: int, row: Row, rewards: Sequence[float | None]) -> tuple[Any, ...]:
        self.groups += 1
        scored = [reward for reward in rewards if reward is not None]
        mean = math.fsum(scored) / len(scored) if scored else None
        std = None
        if mean is not None:
            std = math.sqrt(math.fsum((reward - mean) ** 2 for reward in scored) / len(scored))
        signal = "unscored" if not scored else "mixed" if min(scored) != max(scored) else "all_equal"
        named = row.problem_id or f"prompt-{hashlib.sha256(row.prompt.encode()).hexdigest()[:12]}"
        where = (pk, self._attempt_id, self._run_id, self.groups, step, index)
        return (*where, named, row.prompt, row.answer, mean, std, signal, "", None)

    def _sample(
        self, where: tuple[int, ...], row: Row, components: dict[str, dict[str, Any]], reward: float | None
    ) -> tuple[Any, ...]:
        if reward is not None and abs(reward) > LARGEST:
            raise BadImport(f"step {row.step}: a reward is {reward:g}, beyond 1e9", code="not_finite")
        passed = components.get(self._rule.judged, {}).get("passed")
        verdict = {True: "right", False: "wrong", None: ""}[passed]
        facets = FINISH.packed(row.finish_reason) | VERIFIER.packed(verdict)
        values = ["NULL" if row.scores.get(name) is None else repr(row.scores[name]) for name in self._rule.order]
        scored = (row.completion, row.tokens, row.finish_reason, reward, to_json(components).decode(), row.advantage)
        return (*where, *scored, "", "", "", facets, f"{{{','.join(values)}}}")
