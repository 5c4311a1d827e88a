"""What re-scores made of the run's samples: which second reward, over which steps, and how it agrees with the first."""

from typing import Any

from django.db.models import QuerySet

from cohort.evidence.plain_text import counted
from cohort.evidence.rescores import CHANGES
from cohort.records.answers import count, kappa_text, measured, not_applicable, not_stated, rate_text, short, steps_text
from cohort.records.schema_types import Answer
from cohort.review.models import Rescore, Sample
from cohort.runs.models import Run
from cohort.runs.transitions import superseded
from grpo_core.stats.agreement import VERDICTS


def rescored(run: Run) -> list[dict[str, Any]]:
    """Every finished re-score of the run as its entry of the record, the first one first. One query more for each where
    the run has superseded work."""
    replaced = run.attempts.filter(valid_through__isnull=False).exists()
    finished = finished_rescores(run).select_related("version__verifier")
    return [_entry(rescore, replaced=replaced) for rescore in finished]


def finished_rescores(run: Run) -> QuerySet[Rescore]:
    """Those that a record mentions: with figures, and with a sample whose text was not deleted before its turn came."""
    return Rescore.objects.filter(run=run, figures__isnull=False, done__gt=0).order_by("pk")


def _entry(rescore: Rescore, *, replaced: bool) -> dict[str, Any]:
    figures: dict[str, Any] = rescore.figures or {}
    rows = Sample.objects.filter(rescored__rescore=rescore.pk)
    return {
        "rescore": rescore.pk,
        "reward": rescore.version.verifier.name,
        "version": rescore.version.number,
        "sha256": rescore.version.digest,
        "requested_at": rescore.at.isoformat(),
        "steps": dict(zip(("first", "last"), figures["steps"], strict=True)),
        "samples": rescore.done,
        "deleted": figures["deleted"],
        "superseded": superseded(rows).count() if replaced else 0,
        "confusion": {
            first: dict(zip(VERDICTS, row, strict=True))
            for first, row in zip(VERDICTS, figures["confusion"], strict=True)
        },
        "changes": {name: figures["changes"][name] for name in CHANGES},
        "errors": {name: error["count"] for name, error in sorted(rescore.errors.items())},
        "agreement": figures["agreement"],
        "kappa": figures["kappa"],
    }


def rescores_answer(entries: list[dict[str, Any]], *, samples_kept: int) -> Answer:
    if not samples_kept:
        return not_applicable("No sample was kept, so there was nothing to score again.")
    if not entries:
        return not_stated("No second reward has scored this run's samples.", text="not scored again")
    text = "; ".join(f"{name_text(entry)}, {short(entry['sha256'])}: {agreement_text(entry)}" for entry in entries)
    note = "Nothing was trained by it. The counts are the platform's; agreement and κ follow from them."
    if any(entry["superseded"] for entry in entries):
        note += " It counts samples that a later attempt has superseded since."
    return measured(entries, text, note=note)


def name_text(entry: dict[str, Any]) -> str:
    """Such as: numeric v2 over steps 1 to 40."""
    return f"{entry['reward']} v{entry['version']} over {steps_text(entry['steps']['first'], entry['steps']['last'])}"


def agreement_text(entry: dict[str, Any]) -> str:
    """Its figures as a sentence without its end."""
    right, wrong = entry["confusion"]["right"], entry["confusion"]["wrong"]
    text = f"{counted(entry['samples'], 'sample')} scored again; both rewards agree on {rate_text(entry['agreement'])}"
    if entry["kappa"] is not None and entry["kappa"]["value"] is not None:
        text += f", κ {kappa_text(entry['kappa'])}"
    text += f"; right by the first alone {count(right['wrong'])}, by the second alone {count(wrong['right'])}"
    if entry["superseded"]:
        text += f"; {count(entry['superseded'])} of them superseded since"
    return text
