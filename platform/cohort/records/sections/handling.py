"""Links from the record: cards, inventory, audit trail, processes."""

from cohort.records.answers import count, measured, not_evaluated
from cohort.records.facts import Facts
from cohort.records.fields import Handling
from cohort.records.schema_types import Answer
from cohort.records.sections.from_statements import stated_or_asked


def handling(facts: Facts) -> Handling:
    statements = facts.statements
    return Handling(
        trace_policy=stated_or_asked(statements, "handling.trace_policy"),
        inventory=stated_or_asked(statements, "handling.inventory"),
        system_card=stated_or_asked(statements, "handling.system_card"),
        model_card=measured(
            ["CARD.md", "card.html", "card.pdf"],
            "CARD.md, card.html and card.pdf in this card",
            evidence="recomputable",
        ),
        audit_trail=measured(
            {"file": "events.jsonl", "events": facts.events},
            f"{count(facts.events)} events of this run with time and actor, in events.jsonl; that this record was "
            "sealed stands in the platform's audit log, whose proof is in the card",
            note="events.jsonl is in the card for the project itself; its digest is under the seal of every card.",
        ),
        evaluation_file=_evaluation_file(facts),
        change_management=stated_or_asked(statements, "handling.change_management"),
        monitoring=stated_or_asked(statements, "handling.monitoring"),
    )


def _evaluation_file(facts: Facts) -> Answer:
    files = [
        f"evals/{phase}.jsonl"
        for phase in ("before", "after")
        if any(getattr(comparison, phase) is not None for comparison in facts.comparisons)
    ]
    imported = ["evals/imported.jsonl"] if facts.imported else []
    if not files and not imported:
        return not_evaluated("There are no items.")
    text = f"{' and '.join(files)}, every item's score" if files else "no items of this run's own"
    text += "; evals/imported.jsonl, results of other tools" if imported else ""
    note = "Texts stand apart: those of sensitive suites for authorities, the others for those who build on the model."
    return measured([*files, *imported], text, evidence="recomputable", note=note if files else "")
