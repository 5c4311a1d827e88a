"""Writes to what people say of samples."""

from django.core.exceptions import ValidationError
from django.db import transaction

from cohort.accounts.models import User
from cohort.audit import services as audit
from cohort.base.storable import storable
from cohort.review.models import Annotation, Sample, Verdict

MOST_CHARACTERS = 2000
"""Of a note."""


@transaction.atomic
def sample_judge(*, sample: Sample, actor: User, verdict: str, note: str = "") -> Annotation:
    """Add the reviewer's judgement; it takes the place of the one they gave before. The same one again adds nothing.

    Raises ValidationError keyed by `verdict` or `note`.
    """
    if verdict not in Verdict.values:
        raise ValidationError({"verdict": f"{verdict!r} is not a judgement; there are {', '.join(Verdict.values)}."})
    note = storable(note.strip())
    if len(note) > MOST_CHARACTERS:
        raise ValidationError(
            {"note": f"The note has {len(note):,} characters; at most {MOST_CHARACTERS:,} can be kept."}
        )
    if sample.redacted_at is not None:
        raise ValidationError({"verdict": "The text of this sample was deleted, so it cannot be judged any more."})
    before = Annotation.objects.filter(sample=sample, by=actor).order_by("-pk").first()
    if before is not None and (before.verdict, before.note) == (verdict, note):
        return before
    made = Annotation.objects.create(sample=sample, by=actor, verdict=verdict, note=note)
    group = sample.group
    audit.log(
        actor=f"user:{actor.username}",
        kind="sample_judged",
        subject=f"run:{group.run_id}",
        project=group.run.project,
        before={"verdict": before.verdict} if before else None,
        after={"verdict": verdict},
        data={"step": group.step, "group": group.index, "sample": sample.index},
    )
    return made
