"""What the monitors flagged, what people overrode, and what people and a second reward say of
completions; how texts of samples are handled."""

from collections.abc import Mapping
from typing import Any

from cohort.evidence.judgements import review_figures
from cohort.evidence.plain_text import counted
from cohort.records.answers import (
    count,
    kappa_text,
    measured,
    not_applicable,
    not_evaluated,
    not_stated,
    rate_text,
)
from cohort.records.facts import Facts
from cohort.records.fields import Handling, Oversight
from cohort.records.schema_types import Answer
from cohort.records.sections import absence
from cohort.records.sections.by_kind import not_applicable_to
from cohort.records.sections.from_statements import stated_or_asked
from cohort.records.sections.monitors import FLAG_WORDS
from cohort.records.sections.overrides import alerts_answer, monitor_of, overrides_answer
from cohort.records.sections.policy import NO_POLICY
from cohort.records.sections.preregistered import preregistration_answer
from cohort.records.sections.rescored import rescores_answer
from cohort.records.statements.questions import override_field


def handling(facts: Facts) -> Handling:
    stated = ("trace_policy", "inventory", "system_card", "change_management", "monitoring", "contact")
    return Handling(
        **{name: stated_or_asked(facts.statements, f"handling.{name}") for name in stated},
        model_card=measured(
            ["CARD.md", "card.html", "card.pdf"],
            "CARD.md, card.html and card.pdf in this card",
            evidence="recomputable",
        ),
        audit_trail=measured(
            {"file": "events.jsonl", "events": facts.events},
            f"{count(facts.events)} events of this run with time and actor, in events.jsonl; that this record was "
            "sealed is in the platform's audit log, whose proof is in the card",
            note="events.jsonl is in the card for the project itself; its digest is under the seal of every card.",
        ),
        evaluation_file=_evaluation_file(facts),
        statements_withdrawn=absence.statements_withdrawn(facts.absent),
    )


def _evaluation_file(facts: Facts) -> Answer:
    files = [
        f"evals/{phase}.jsonl"
        for phase in ("before", "after")
        if any(getattr(comparison, phase) is not None for comparison in facts.comparisons)
    ]
    return evaluation_file(files, imported=bool(facts.imported))


def evaluation_file(files: list[str], *, imported: bool) -> Answer:
    """`files` hold the items of the run's own evaluations."""
    if not files and not imported:
        return not_evaluated("There are no items.")
    text = f"{' and '.join(files)}, every item's score" if files else "no items of this run's own"
    text += "; evals/imported.jsonl, results of other tools" if imported else ""
    note = "Texts are separate: those of sensitive suites for authorities, the others for those who build on the model."
    value = [*files, *(["evals/imported.jsonl"] if imported else ())]
    return measured(value, text, evidence="recomputable", note=note if files else "")


def oversight(facts: Facts) -> Oversight:
    return Oversight(
        flags=_flags(facts),
        overrides=overrides_answer(
            {flag.name: flag.raised for flag in facts.flags}, facts.statements, facts.overrides_added
        ),
        alerts=alerts_answer(facts.alerts),
        human_review=_human_review(facts),
        judgements_hidden=absence.judgements_hidden(facts.absent),
        rescores=rescores_answer(facts.rescores, samples_kept=facts.samples_kept),
        preregistration=preregistration_answer(facts.registered),
        policy=NO_POLICY,
    )


def _flags(facts: Facts) -> Answer:
    added = {monitor_of(entry) for entry in facts.overrides_added}
    value = [
        {
            **{name: getattr(flag, name) for name in ("raised", "figure", "threshold", "text")},
            "monitor": flag.name,
            "overridden": override_field(flag.name) in facts.statements or flag.name in added,
        }
        for flag in facts.flags
    ]
    raised = [flag for flag in facts.flags if flag.raised]
    silent = [flag for flag in facts.flags if flag.raised is None]
    computed = len(facts.flags) - len(silent)
    text = "; ".join(f"{FLAG_WORDS[flag.name]}: {flag.text}" for flag in raised)
    text = f"{len(raised)} of {computed} raised. {text}" if raised else f"none of {computed} raised"
    note = "A flag says that a figure passed a threshold; the thresholds are proposals of this project."
    if silent:
        note += f" Not computed: {', '.join(FLAG_WORDS[flag.name] for flag in silent)}."
    if not computed and (absent := not_applicable_to(facts.config.kind, "oversight.flags")) is not None:
        return absent
    if not computed:
        return not_stated(note, text="not measured").model_copy(update={"value": value})
    return measured(value, text, note=note)


def _human_review(facts: Facts) -> Answer:
    """Completions that people judged, and how the verifier compares with them."""
    review = review_figures(facts.judgements)
    if not facts.groups_kept:
        return not_applicable("No group was kept, so there was nothing to look at.")
    if not review["samples"]:
        return not_stated("Nobody has judged a completion of this run.", text="no review is recorded")
    note = "Of completions that people chose to look at, not of a random sample."
    if review["disagreeing"]:
        note += f" Reviewers disagree on {count(review['disagreeing'])}."
    return measured(review, review_text(review), note=note, evidence="recomputable")


def review_text(review: Mapping[str, Any]) -> str:
    """Figures of people against the verifier as a sentence."""
    people = review["reviewers"]
    judged = ", ".join(f"{count(samples)} {word}" for word, samples in review["judged"].items())
    text = f"{counted(review['samples'], 'completion')} judged by {counted(people, 'person', 'people')}: {judged}"
    if (verifier := review["verifier"]) is not None:
        text += f"; people and verifier agree on {rate_text(verifier['agreement'])}"
        text += f", κ {kappa_text(verifier['kappa'])}" if verifier["kappa"] is not None else ""
        text += f"; false positives {rate_text(verifier['false_positives'])}"
        text += f", false negatives {rate_text(verifier['false_negatives'])}"
    return text
