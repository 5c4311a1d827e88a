"""Reviewers' judgements of samples and of answers: who judged what, and how a judgement is stored."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, Self

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet

from cohort.accounts.models import User
from cohort.audit import services as audit
from cohort.base.storable import storable
from cohort.lab.models import ChatAnswer
from cohort.review.labels import labels_of
from cohort.review.models import Annotation, AnswerJudgement, Group, ReviewQueue, Sample, Verdict
from cohort.runs.models import Run
from cohort.runs.transitions import current_rows, run_logged

Success = Callable[[Collection[str]], str]
"""Of a row's components the one that decides right or wrong."""


def right(sample: Sample, success: Success) -> bool | None:
    """By the component that decides; None when the sample was masked or the component cannot say."""
    if sample.mask_cause or not sample.components:
        return None
    passed = sample.components[success(sample.components)].get("passed")
    return None if passed is None else bool(passed)


def current_groups(run: Run) -> QuerySet[Group]:
    """Groups in order, without superseded ones."""
    return current_rows(Group.objects.filter(run=run)).order_by("step", "index")


MOST_CHARACTERS = 2000
"""Of a note."""


@dataclass(frozen=True)
class Opinion:
    """What a person thinks of a text; empty before they said anything."""

    verdict: str = ""
    labels: tuple[str, ...] = ()
    note: str = ""

    @classmethod
    def of(cls, row: Annotation | None) -> Self:
        return cls() if row is None else cls(row.verdict, tuple(row.labels), row.note)

    @property
    def logged(self) -> dict[str, Any]:
        return {"verdict": self.verdict} | ({"labels": [*self.labels]} if self.labels else {})


@dataclass(frozen=True)
class InQueue:
    """How an opinion is given in a queue."""

    queue: ReviewQueue
    seconds: float | None
    unblinded: bool


@transaction.atomic
def sample_judge(
    *,
    sample: Sample,
    actor: User,
    verdict: str | None = None,
    toggle: str | None = None,
    note: str | None = None,
    given: InQueue | None = None,
) -> Annotation | None:
    """Change what the reviewer thinks of a sample: the verdict, a label that is set or taken off, the note. What is
    None stays as it was; where nothing changes, nothing is added. A queue begins with nothing, whatever was thought
    before. Returns the newest row, None where there is none.

    Raises ValidationError keyed by `verdict`, `toggle` or `note`.
    """
    before = _newest(sample, actor, given)
    opinion = Opinion.of(before)
    if verdict is not None:
        opinion = replace(opinion, verdict=_checked_verdict(verdict))
    if note is not None:
        opinion = replace(opinion, note=_checked_note(note))
    if toggle is not None:
        if toggle not in opinion.labels and toggle not in {label.key for label in labels_of(sample.group.run.project)}:
            raise ValidationError({"toggle": f"There is no label {toggle!r}."})
        opinion = replace(opinion, labels=tuple(sorted({*opinion.labels} ^ {toggle})))
    return _opinion_add(sample, actor, opinion, before, given)


@transaction.atomic
def sample_undo(*, sample: Sample, actor: User, given: InQueue | None = None) -> Annotation | None:
    """Add what the reviewer thought before their newest change; to undo again brings that change back. The history
    stays. Returns the newest row, None where there was nothing to undo.

    Raises ValidationError keyed by `verdict`.
    """
    newest = _newest(sample, actor, given)
    if newest is None:
        return None
    earlier = _rows(sample, actor, given).filter(pk__lt=newest.pk).first()
    return _opinion_add(sample, actor, Opinion.of(earlier), newest, given)


def _newest(sample: Sample, actor: User, given: InQueue | None) -> Annotation | None:
    """The person's, until the transaction ends: two changes at once are made one after the other."""
    Sample.objects.select_for_update(no_key=True).get(pk=sample.pk)
    return _rows(sample, actor, given).first()


def _rows(sample: Sample, actor: User, given: InQueue | None) -> QuerySet[Annotation]:
    rows = Annotation.objects.filter(sample=sample, by=actor).order_by("-pk")
    return rows.filter(queue=given.queue) if given else rows


def _opinion_add(
    sample: Sample, actor: User, opinion: Opinion, before: Annotation | None, given: InQueue | None
) -> Annotation | None:
    if sample.redacted_at is not None:
        raise ValidationError({"verdict": "The text of this sample was deleted, so it cannot be judged any more."})
    if opinion == Opinion.of(before):
        return before
    group = sample.group
    made = Annotation.objects.create(
        sample=sample,
        by=actor,
        verdict=opinion.verdict,
        labels=[*opinion.labels],
        note=opinion.note,
        queue=given.queue if given else None,
        seconds=given.seconds if given else None,
        unblinded=given is not None and given.unblinded,
    )
    run_logged(
        run=group.run,
        actor=audit.who(actor),
        kind="sample_judged",
        before=Opinion.of(before).logged if before else None,
        after=opinion.logged,
        data={"step": group.step, "group": group.index, "sample": sample.index}
        | ({"queue": given.queue.pk} if given else {})
        | ({"unblinded": True} if made.unblinded else {}),
    )
    return made


def _checked_verdict(verdict: str) -> str:
    if verdict not in Verdict.values:
        raise ValidationError({"verdict": f"{verdict!r} is not a judgement; there are {', '.join(Verdict.values)}."})
    return verdict


def _checked_note(note: str) -> str:
    """As it is stored."""
    note = storable(note.strip())
    if len(note) > MOST_CHARACTERS:
        raise ValidationError(
            {"note": f"The note has {len(note):,} characters; at most {MOST_CHARACTERS:,} can be kept."}
        )
    return note


@transaction.atomic
def answer_judge(
    *, answer: ChatAnswer, actor: User, verdict: str | None = None, note: str | None = None
) -> AnswerJudgement | None:
    """As `sample_judge`, of an answer in a chat."""
    message = answer.message
    before = AnswerJudgement.objects.filter(answer=answer, by=actor).order_by("-pk").first()
    old = ("", "") if before is None else (before.verdict, before.note)
    verdict = old[0] if verdict is None else _checked_verdict(verdict)
    note = old[1] if note is None else _checked_note(note)
    if message.redacted_at is not None or answer.error:
        raise ValidationError({"verdict": "There is no answer to judge: it failed, or its text was deleted."})
    if (verdict, note) == old:
        return before
    made = AnswerJudgement.objects.create(answer=answer, by=actor, verdict=verdict, note=note)
    audit.log(
        actor=audit.who(actor),
        kind="chat_answer_judged",
        subject=f"conversation:{message.conversation_id}",
        project=message.conversation.project,
        before={"verdict": before.verdict} if before else None,
        after={"verdict": verdict},
        data={"message": message.number, "side": answer.side},
    )
    return made


def newest_by_person(annotations: Iterable[Annotation]) -> dict[int, Annotation]:
    """User id → their newest annotation; it may have no verdict."""
    return {annotation.by_id: annotation for annotation in sorted(annotations, key=lambda annotation: annotation.pk)}


def judges(annotations: Iterable[Annotation]) -> dict[int, Annotation]:
    """User id → their newest annotation, of those whose newest one has a verdict."""
    return {by: newest for by, newest in newest_by_person(annotations).items() if newest.verdict}
