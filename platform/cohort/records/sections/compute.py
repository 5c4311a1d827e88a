"""The fields on operations: what the training took, by architecture and by hardware time, and how far that is from what
the Commission's guidelines take as an indication of a significant modification."""

import json
from dataclasses import asdict
from typing import Any

from cohort.catalog.pretraining import Original, published_original, stated_original
from cohort.evidence.canonical import dig
from cohort.evidence.plain_text import counted
from cohort.records.answers import estimated, not_measured, not_stated, stated
from cohort.records.facts import Facts
from cohort.records.fields import field_facts
from cohort.records.models import Record
from cohort.records.schema_types import Answer
from cohort.records.sections.from_statements import ASKED, given, statement_answer
from cohort.records.sections.subject import NO_MANIFEST, NO_TOTALS
from cohort.runs.compute import RunCompute, evaluated_tokens, mean_utilisation, run_compute
from grpo_core.compute.thresholds import GUIDELINES, READ, Threshold, thresholds
from grpo_core.compute.words import (
    architecture_lines,
    difference_text,
    format_flop,
    format_share,
    hardware_text,
    indications_text,
    threshold_text,
)


def compute(facts: Facts) -> Answer:
    """Estimated, never measured: the trainer counts tokens and seconds, not operations."""
    if facts.tokens is None:
        return not_measured(NO_TOTALS)
    measured = measured_compute(facts, facts.tokens)
    if measured is None:
        return not_measured(NO_MANIFEST)
    total = measured.flop.total
    chain = lineage_compute(facts, total)
    original = original_compute(facts)
    rows = indicated(chain["flop"], original)
    elsewhere = original is not None and not original.public
    used = measured.hardware
    value = {
        "flop_estimate": total,
        "architecture": {
            "parts": [{**asdict(part), "counted": part.counted} for part in measured.flop.parts],
            "attention": measured.flop.attention,
            "shape": measured.shape.model_dump(),
            "work": measured.work.model_dump(),
        },
        "hardware": {**asdict(used), "flop_at_most": used.flop},
        "lineage": chain,
        "thresholds": [{**asdict(row), "reached": row.reached} for row in rows],
        "guidelines": {"document": GUIDELINES, "read": READ},
    }
    text = compute_text(total, rows)
    difference = difference_text(measured.flop, used)
    lines = [
        "By architecture:",
        *(f"– {line}" for line in architecture_lines(measured.flop, measured.shape, measured.work)),
        f"By hardware time: {hardware_text(used)}.",
        *([difference] if difference else []),
        *_about_lineage(facts, chain),
        f"{GUIDELINES}, as read on {READ}, ask for an estimate that is right within 30 %, and give indications:",
        *(f"– {threshold_text(row)}" for row in rows),
    ]
    if elsewhere:
        lines.append(f"– a third of the original model's: see “{field_facts('budget.base_share').label}”")
    lines.append("An indication is no judgement, and none is made here.")
    return estimated(value, text, note="\n".join(lines))


def indicated(flop: float, original: Original | None) -> tuple[Threshold, ...]:
    """The indications that this field has; what follows from a number that only a person stated is in `base_share`."""
    rows = thresholds(flop, original=original.flop if original else None)
    if original is None or original.public:
        return rows
    return tuple(row for row in rows if row.key != "third_of_original")


def compute_text(total: float, rows: tuple[Threshold, ...]) -> str:
    return f"about {format_flop(total)}, estimated by architecture; {indications_text(rows)}"


def measured_compute(facts: Facts, tokens: float) -> RunCompute | None:
    """From what the trainer reported; None where it did not describe its model."""
    launched = facts.estimate.estimate if facts.estimate is not None else {}
    rate = launched.get("product_rate")
    here = launched.get("device_name") == dig(facts.manifest, "platform", "device")
    return run_compute(
        facts.config,
        facts.manifest,
        tokens=tokens + (facts.history.superseded_tokens or 0.0),
        sums=facts.totals,
        evaluated=evaluated_tokens(facts.run.eval_results.all(), facts.manifest),
        device_seconds=facts.history.device_seconds,
        utilisation=mean_utilisation(facts.run),
        measured=float(rate) if here and rate is not None else None,
    )


def lineage_compute(facts: Facts, total: float) -> dict[str, Any]:
    """This run and the earlier runs whose output it began from: together they modify the original."""
    runs: list[dict[str, Any]] = [{"run": facts.run.pk, "flop": total}]
    for ancestor in facts.lineage.ancestors:
        record = Record.objects.filter(run=ancestor.run).order_by("-end", "-version").first()
        document = json.loads(record.document) if record is not None else None
        flop = dig(document, "sections", "budget", "compute", "value", "flop_estimate")
        runs.append({"run": ancestor.run.pk, "flop": None if flop is None else float(flop)})
    complete = all(row["flop"] is not None for row in runs) and not facts.lineage.cold_start
    return {"flop": sum(row["flop"] or 0.0 for row in runs), "runs": runs, "complete": complete}


def _about_lineage(facts: Facts, chain: dict[str, Any]) -> list[str]:
    """What besides the current steps of this run is in the sum, and what is not."""
    lines = []
    if facts.history.superseded_tokens is None:
        lines.append("Superseded steps are not counted: their tokens were not reported.")
    elif facts.history.superseded_tokens:
        lines.append("Superseded steps are counted.")
    if earlier := len(chain["runs"]) - 1:
        unknown = sum(row["flop"] is None for row in chain["runs"])
        words = (
            f"With {counted(earlier, 'earlier run')} of its lineage, each counted whole: {format_flop(chain['flop'])}"
        )
        lines.append(
            words + (f", without {counted(unknown, 'run')} whose operations no record has." if unknown else ".")
        )
    if facts.lineage.cold_start:
        lines.append("A cold start is recorded in the model folder; its operations are not known here.")
    return lines


def original_compute(facts: Facts) -> Original | None:
    """What training the original took: as stated of this run, else on the base model's page, else as published. The
    original is what the oldest run of the lineage began from."""
    statement = facts.statements.get("budget.base_share")
    if statement is not None:
        flop = float(given(statement)["flop"])
        by = statement.by.username
        return Original(flop, f"stated by {by}", f"{by} wrote: {statement.text}", public=False)
    oldest = facts.lineage.ancestors[-1].run if facts.lineage.ancestors else facts.run
    return stated_original(oldest.base_model) or published_original(oldest.base_model)


UNKNOWN = "unknown"
"""In place of `base_share_text`, where nobody stated what the base model took."""


def base_share_text(original: Original, spent: float | None) -> str:
    """`spent`: the run's own operations, by the estimate; None where there is none."""
    share = "" if spent is None else f"; this run's estimate is {format_share(spent / original.flop)} of it"
    return f"base model {format_flop(original.flop)}{share}"


def base_share(facts: Facts, compute: Answer) -> Answer:
    """This run's operations relative to the original model's."""
    original = original_compute(facts)
    if original is None:
        return not_stated("Unknown: nobody stated what training the base model took. " + ASKED, text=UNKNOWN)
    spent = dig(compute.value if isinstance(compute.value, dict) else None, "flop_estimate")
    share = None if spent is None else spent / original.flop
    together = None if spent is None else lineage_compute(facts, spent)["flop"]
    third = thresholds(together, original=original.flop)[0]
    words = f"{original.words}\nBy {GUIDELINES}, as read on {READ}: {threshold_text(third)}."
    text = base_share_text(original, spent)
    value = {
        "base_flop": original.flop,
        "run_flop_estimate": spent,
        "share": share,
        "third_of_original": {**asdict(third), "reached": third.reached},
    }
    statement = facts.statements.get("budget.base_share")
    if statement is None:
        by = original.source.removeprefix("stated by ")
        return stated(value, text, by=by, note=words)
    entry = statement_answer(statement, value=value, text=text)
    return entry.model_copy(update={"note": f"{words}\n{entry.note}"})
