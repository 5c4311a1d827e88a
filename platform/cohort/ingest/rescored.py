"""The stored samples of a run to the worker that re-scores them, and their scores into rows: page by page, each call
bound to the job's lease. A worker that dies loses a page; the next one begins after the last group that is stored.

Scores come from a machine that runs untrusted code: they are of exactly the groups whose turn it is, or are refused.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import zstandard
from django.db import connection, transaction
from django.db.models import F, QuerySet

from cohort.base.storable import Refused
from cohort.ingest.copy import Table, server_cursor
from cohort.lab import jobs
from cohort.lab.models import LabJob
from cohort.nodes import leases
from cohort.review.facets import VERIFIER
from cohort.review.models import Change, Group, Rescore, RescoredSample, Sample
from cohort.review.rescores import figures_on_commit, scored_groups
from grpo_core.lab.rescore import change_of
from grpo_core.protocol.messages import (
    GroupPage,
    GroupRescored,
    JobFinish,
    PageRequest,
    SampleRescored,
    ScoresSent,
    StoredGroup,
    StoredSample,
)

PAGE_GROUPS = 256
PAGE_SAMPLES = 2048
PAGE_CHARS = 4 * 1024 * 1024
"""Of texts; what goes beyond one of these is left for the next page, but a page has a group at least."""
_READ_AT_ONCE = 64
"""Samples; texts may be long."""
_ROWS = Table(RescoredSample, "rescore", "sample", "value", "passed", "error_class", "phantom", "change", "differs")


class BadScores(Refused, code="bad_scores"):
    """Scores that are not of the groups whose turn it is. Nothing of them is stored."""


def page_of(*, job: LabJob, request: PageRequest) -> bytes:
    """The next groups to score, a GroupPage as zstd. Raises StaleFence, and BadScores for `after` of another run."""
    leases.require_current(job, request.fence)
    rescore = _rescore(job)
    if request.after is None:
        Rescore.objects.filter(pk=rescore.pk).update(begun_with=F("done"))
    after = rescore.acked_group if request.after is None else request.after
    groups = list(_after(rescore, after)[:PAGE_GROUPS])
    page: list[StoredGroup] = []
    samples = chars = 0
    for group, stored in _stored(groups):
        samples += len(stored)
        chars += sum(len(sample.completion) for sample in stored) + len(group.prompt)
        if page and (samples > PAGE_SAMPLES or chars > PAGE_CHARS):
            break
        texts = {"problem_id": group.problem_id, "prompt": group.prompt, "answer": group.answer}
        page.append(StoredGroup(group=group.pk, samples=stored, **texts))
    return zstandard.compress(GroupPage(groups=page, done=rescore.done).model_dump_json().encode())


def _rescore(job: LabJob) -> Rescore:
    rescore = Rescore.objects.select_related("run").filter(job=job).first()
    if rescore is None:
        raise BadScores(f"job {job.pk} re-scores no run", code="no_rescore")
    return rescore


def _after(rescore: Rescore, group_id: int | None) -> QuerySet[Group]:
    """The groups of the re-score after this one, in order. Raises BadScores where it is of another run."""
    groups = scored_groups(rescore)
    if group_id is None:
        return groups
    last = Group.objects.filter(pk=group_id, run=rescore.run_id).first()
    if last is None:
        raise BadScores(f"group {group_id} is not of the run that is scored again", code="other_group")
    return groups.filter(step__gte=last.step).exclude(step=last.step, index__lte=last.index)


def _stored(groups: Sequence[Group]) -> Iterator[tuple[Group, list[StoredSample]]]:
    """Each group with its samples, without those whose text was deleted."""
    samples = Sample.objects.filter(group__in=groups, redacted_at=None).order_by("step", "group__index", "index")
    rows = samples.values_list("group", "pk", "completion", "tokens").iterator(chunk_size=_READ_AT_ONCE)
    ahead = next(rows, None)
    for group in groups:
        stored = []
        while ahead is not None and ahead[0] == group.pk:
            stored.append(StoredSample(sample=ahead[1], completion=ahead[2], tokens=ahead[3]))
            ahead = next(rows, None)
        yield group, stored


# ---------------------------------------------------------------------- scores


@transaction.atomic
def scores_store(*, job: LabJob, sent: ScoresSent) -> int:
    """Store the scores of the groups whose turn it is; groups that have theirs are passed over. Returns how many
    samples have scores by now. Raises StaleFence, and BadScores: then nothing is stored."""
    leases.lock(job, sent.fence, "node")
    rescore = _rescore(job)
    fresh = _fresh(rescore, sent.groups)
    if not fresh:
        return rescore.done
    rows: list[tuple[Any, ...]] = []
    errors = dict(rescore.errors)
    samples = _by_group([group.group for group in fresh])
    for group in fresh:
        stored = samples.get(group.group, {})
        _require_all(group, stored)
        for score in group.samples:
            rows.append(_row(rescore, group, score, *stored[score.sample][:2]))
            if score.value is None:
                name = score.error_class or "verifier"
                known = errors.get(name, {"count": 0, "example": score.error})
                errors[name] = {**known, "count": known["count"] + 1}
    with connection.wrap_database_errors:
        _ROWS.write(server_cursor(), rows)
    done, last = rescore.done + len(rows), fresh[-1].group
    Rescore.objects.filter(pk=rescore.pk).update(done=done, acked_group=last, errors=errors)
    # A worker that was lost before no longer counts: the job has moved since.
    LabJob.objects.filter(pk=job.pk).exclude(error_code="").update(error_code="", error="")
    return done


def _fresh(rescore: Rescore, given: Sequence[GroupRescored]) -> list[GroupRescored]:
    """Those of the groups that have no scores yet. Raises BadScores unless they are the next ones."""
    ids = [group.group for group in given]
    if rescore.acked_group in ids:
        given = given[ids.index(rescore.acked_group) + 1 :]
    following = list(_after(rescore, rescore.acked_group).values_list("pk", flat=True)[: len(given)])
    if following == [group.group for group in given]:
        return list(given)
    # What was stored before, sent once more after further groups were.
    held = RescoredSample.objects.filter(rescore=rescore, sample__group__in=ids).values("sample__group").distinct()
    if held.count() == len(given):
        return []
    raise BadScores("the scores are not of the groups that come next", code="other_group")


def _by_group(ids: Sequence[int]) -> dict[int, dict[int, tuple[float | None, str, bool]]]:
    """Group → sample → (reward, right or wrong by the run's own reward, whether its text was deleted)."""
    rows = Sample.objects.filter(group__in=ids).values_list("group", "pk", "reward", "facets", "redacted_at")
    samples: dict[int, dict[int, tuple[float | None, str, bool]]] = {}
    for group, pk, reward, facets, redacted_at in rows:
        samples.setdefault(group, {})[pk] = reward, VERIFIER.read(facets), redacted_at is not None
    return samples


def _require_all(group: GroupRescored, stored: dict[int, tuple[float | None, str, bool]]) -> None:
    """Each sample once, but for those whose texts are gone. Raises BadScores."""
    given = [score.sample for score in group.samples]
    missing = [pk for pk, (_, _, redacted) in stored.items() if not redacted and pk not in given]
    if missing or len(set(given)) < len(given) or not set(given) <= stored.keys():
        raise BadScores(f"the scores of group {group.group} are not of its samples", code="other_samples")


def _row(
    rescore: Rescore, group: GroupRescored, score: SampleRescored, reward: float | None, verdict: str
) -> tuple[Any, ...]:
    change = Change[change_of(reward, score.value).upper()]
    differs = bool(verdict) and score.passed is not None and (verdict == "right") != score.passed
    error = (score.error_class or "verifier") if score.value is None else ""
    return (rescore.pk, score.sample, score.value, score.passed, error, group.phantom, int(change), differs)


# ---------------------------------------------------------------------- the end


@transaction.atomic
def rescore_finish(*, job: LabJob, finish: JobFinish) -> None:
    """As `job_finish`, of a re-score: it is done once every group has its scores. Its figures are worked out
    afterwards. Raises BadResult, StaleFence."""
    rescore = _rescore(job)
    if finish.end == "done" and _after(rescore, rescore.acked_group).exists():
        raise jobs.BadResult("there are groups without scores", code="scores_missing")
    jobs.job_finish(job=job, finish=finish)
    if finish.end == "done":
        figures_on_commit(rescore)
