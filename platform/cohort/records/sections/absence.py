"""Absence, stated: how much was sampled, evaluated, judged, stated or tested that this record does not show. Zero is
written as zero; what cannot be counted says so."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from cohort.evidence.plain_text import counted, named
from cohort.records.answers import count, measured, not_measured, of
from cohort.records.schema_types import Answer
from cohort.records.sections.absence_facts import Absent

if TYPE_CHECKING:
    from cohort.records.facts import Facts

_VERDICTS = {
    "pays_wrong": "rewarded wrong answers",
    "rejects_right": "did not reward right ones",
    "undecided": "undecided",
    "clean": "clean",
}


def not_stored(facts: "Facts") -> Answer:
    """Sampled completions of the current steps whose texts the platform does not keep."""
    drawn = facts.totals.get("samples")
    if drawn is None:
        return not_measured("The trainer reported no totals; how many completions it sampled is not known.")
    stored = facts.samples_kept
    value = {"not_stored": drawn - stored, "of": drawn, "stored": stored}
    note = (
        "Counted from the trainer's total of the current steps and the completions stored here. Of each one that is "
        "not stored there is a salted hash in commitments.jsonl, where the trainer made commitments."
    )
    return measured(value, f"{of(drawn - stored, drawn)} sampled completions", note=note)


def redacted(absent: Absent) -> Answer:
    value = {"deleted": absent.redacted, "of": absent.stored}
    note = "Of stored completions, superseded ones too, up to the seal. A later deletion issues the cards again."
    return measured(value, f"{of(absent.redacted, absent.stored)} stored completions", note=note)


def not_chosen(absent: Absent) -> Answer:
    evaluations = absent.evaluations
    total = sum((evaluations.while_training, evaluations.repeated, evaluations.superseded, evaluations.of_checkpoints))
    parts = {
        "while training": evaluations.while_training,
        "replaced by a newer one of the same suite": evaluations.repeated,
        "superseded by a later attempt": evaluations.superseded,
        "of its checkpoints in the lab": evaluations.of_checkpoints,
    }
    listed = ", ".join(f"{count(number)} {words}" for words, number in parts.items())
    text = f"{counted(total, 'evaluation')} of this run's weights: {listed}"
    if evaluations.of_base_model:
        text += f"; and {count(evaluations.of_base_model)} of its base model in the lab"
    if evaluations.sweep_runs:
        text += f"; it is one of {count(evaluations.sweep_runs + 1)} runs of a sweep"
    note = (
        "Counted from what the platform stored, one evaluation a suite. The comparisons are of the newest evaluation "
        "before and after training. What was evaluated elsewhere and not imported is not seen."
    )
    return measured({"total": total, **asdict(evaluations)}, text, note=note)


def judgements_hidden(absent: Absent) -> Answer:
    judgements = absent.judgements
    parts = {
        "replaced by a later one of the same person": judgements.revised,
        "withdrawn": judgements.withdrawn,
        "on completions of superseded work": judgements.superseded,
        "votes between two completions": judgements.pair_votes,
    }
    hidden = sum(parts.values())
    listed = ", ".join(f"{count(number)} {words}" for words, number in parts.items())
    text = f"{counted(hidden, 'judgement')}: {listed}"
    note = (
        f"{counted(judgements.counted, 'judgement')} of right, wrong or unsure are in the figures of human review, "
        "those of blind queues that are still open too. Labels and notes alone are no judgements."
    )
    return measured({"hidden": hidden, **asdict(judgements)}, text, note=note)


def statements_withdrawn(absent: Absent) -> Answer:
    statements = absent.statements
    replaced = statements.made - statements.in_force - statements.withdrawn
    value = {**asdict(statements), "replaced": replaced}
    text = f"{count(statements.withdrawn)} withdrawn, {count(replaced)} replaced, of {count(statements.made)} made"
    return measured(value, text, note="The history of each is on the run's page of statements and in the audit log.")


def probes(absent: Absent) -> Answer:
    tested = absent.probes
    failed = sum(number for verdict, number in tested.verdicts.items() if verdict != "clean")
    total = sum(tested.verdicts.values())
    text = f"{counted(total, 'probe')} of this version before the launch, {count(failed)} of them not clean"
    if tested.verdicts:
        text += f" ({named([f'{count(number)} {_VERDICTS[verdict]}' for verdict, number in tested.verdicts.items()])})"
    text += (
        f"; {count(tested.unfinished)} without a result; {counted(tested.overridden, 'launch', 'launches')} overridden"
    )
    if others := sum(tested.other_versions.values()):
        clean = tested.other_versions.get("clean", 0)
        text += f"; of other versions of this reward {counted(others, 'probe')}, {count(others - clean)} not clean"
    value = {**asdict(tested), "total": total, "not_clean": failed}
    return measured(value, text, note="Counted from the probes that the platform stored before the run was queued.")
