"""Answers that people judged, kept with a verifier: every probe of it holds the verifier to them."""

import json
from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from cohort.accounts.models import User
from cohort.audit import services as audit
from cohort.catalog.models import ProbeCase, Verifier
from cohort.evidence.canonical import sha256
from cohort.evidence.plain_text import counted
from grpo_core.data.problem import Problem
from grpo_core.lab.job import MAX_GIVEN_CHARS, MAX_TEXT_CHARS, MAX_TEXTS, JudgedText, characters


@transaction.atomic
def probe_case_add(
    *, verifier: Verifier, actor: User, problem: Problem, completion: str, right: bool, source: Mapping[str, int]
) -> ProbeCase:
    """Keep the answer with the verifier; `source` as of ProbeCase. Raises ValidationError keyed by `verifier` where it
    is a case already, or where the verifier has as many as a probe takes."""
    Verifier.objects.select_for_update().get(pk=verifier.pk)
    if len(completion) > MAX_TEXT_CHARS:
        raise ValidationError(
            {"verifier": f"The completion has {len(completion):,} characters; a case takes {MAX_TEXT_CHARS:,} at most."}
        )
    answer = JudgedText(
        prompt=problem.prompt,
        answer=problem.answer,
        meta=problem.meta,
        other_answers=problem.other_answers,
        completion=completion,
        right=right,
    )
    stored = answer.model_dump(mode="json")
    digest = sha256(json.dumps({**stored, "right": None}, sort_keys=True).encode())
    if ProbeCase.objects.filter(verifier=verifier, digest=digest).exists():
        raise ValidationError({"verifier": f"This answer is a probe case of {verifier.name} already."})
    others = judged_texts(verifier)
    if len(others) >= MAX_TEXTS or characters([*others, answer]) > MAX_GIVEN_CHARS:
        raise ValidationError(
            {
                "verifier": f"{verifier.name} has {counted(len(others), 'probe case')}; a probe takes {MAX_TEXTS:,} "
                f"and {MAX_GIVEN_CHARS:,} characters at most. Remove another one first."
            }
        )
    made = ProbeCase.objects.create(
        verifier=verifier,
        answer=stored,
        digest=digest,
        source=dict(source),
        created_by=actor,
    )
    _log(made, actor, "probe_case_added", after=_logged(made))
    return made


@transaction.atomic
def probe_case_remove(*, case: ProbeCase, actor: User) -> None:
    """Probes of the verifier no longer hold it to this answer; reports that did stay as they are."""
    _log(case, actor, "probe_case_removed", before=_logged(case))
    case.delete()


def judged_texts(verifier: Verifier) -> list[JudgedText]:
    """What a probe of the verifier is given, the oldest first."""
    return [JudgedText.model_validate(answer) for answer in verifier.probe_cases.values_list("answer", flat=True)]


def _logged(case: ProbeCase) -> dict[str, object]:
    """Without the texts, which may have to be deleted."""
    return {"digest": case.digest, "right": case.answer["right"], "source": case.source}


def _log(case: ProbeCase, actor: User, kind: str, **entry: Any) -> None:
    subject = f"verifier:{case.verifier_id}"
    audit.log(actor=audit.who(actor), kind=kind, subject=subject, project=case.verifier.project, **entry)
