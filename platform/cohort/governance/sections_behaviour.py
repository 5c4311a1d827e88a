"""Sections about the trained policy's behaviour and about what the record is connected to."""

from cohort.governance.compare import NOT_COMPARABLE
from cohort.governance.facts import Facts
from cohort.governance.schema import Behaviour, Comparison, Entry, Handling, Performance
from cohort.governance.sections_method import ASKED
from cohort.governance.words import (
    count,
    declared,
    measured,
    not_applicable,
    not_evaluated,
    not_stated,
    number,
    percent,
    points,
)

NO_SUITE = "No such suite was run."


def behaviour(facts: Facts) -> Behaviour:
    return Behaviour(
        performance=_performance(facts),
        protocol=_protocol(facts),
        hallucination=not_evaluated(NO_SUITE),
        refusal_calibration=not_evaluated(NO_SUITE),
        jailbreak_robustness=not_evaluated(NO_SUITE),
        harmful_capability=not_evaluated(NO_SUITE),
        benchmark_contamination=not_evaluated(
            "No public benchmark was run; overlap of the held-out problems with the training file stands under Data."
        ),
        multilingual=not_evaluated(NO_SUITE),
        tool_use=not_applicable("The trainer samples plain text; no tool was offered."),
        safety_regressions=not_evaluated("No safety suite was run, so none can be excluded."),
    )


def _performance(facts: Facts) -> Performance:
    if not facts.comparisons:
        asked = facts.config.eval.before or facts.config.eval.after
        why = "The run ended before its first evaluation." if asked else NO_SUITE
        missing = not_evaluated(why)
        return Performance(value=None, text=missing.text, source=missing.source, evidence="none", note=why)
    return Performance(
        value=facts.comparisons,
        text="; ".join(_in_words(comparison) for comparison in facts.comparisons),
        source="measured",
        evidence="recomputable",
        note="A score shows performance on these problems under this protocol, and nothing beyond it.",
    )


def _in_words(comparison: Comparison) -> str:
    before, after, change = comparison.before, comparison.after, comparison.change
    shares = [
        f"{percent(side.share)} {when}" for side, when in ((before, "before"), (after, "after")) if side is not None
    ]
    text = f"{comparison.suite}, {count(comparison.problems)} problems: {', '.join(shares)}"
    if change is not None:
        interval = f"95 % interval {points(change.interval.low)} to {points(change.interval.high)}"
        return f"{text}; {points(change.difference)} points ({interval}): {comparison.verdict}"
    if before is None:
        return f"{text}; not evaluated before training"
    if after is None:
        return f"{text}; not evaluated after training"
    return f"{text}; {NOT_COMPARABLE}: problems or protocol differed"


def _protocol(facts: Facts) -> Entry:
    config = facts.config
    if not (config.eval.before or config.eval.after):
        return not_applicable("nothing was evaluated")
    samples = config.eval.samples_per_problem
    text = (
        f"temperature {number(config.eval.temperature)}, {samples} completion{'' if samples == 1 else 's'} a problem, "
        f"at most {count(config.eval_max_completion_tokens)} tokens, right when {config.success_component} passes; "
        f"regressed means that a fall is shown and one of {number(100 * config.eval.margin)} points is not excluded, "
        "each one-sided at 95 %"
    )
    value = {**config.eval.model_dump(), "success_component": config.success_component}
    note = "The margin was fixed before the run."
    if facts.comparisons and all(comparison.change for comparison in facts.comparisons):
        note += " Same problems and seeds before and after."
    return declared(value, text, note=note)


def handling(facts: Facts) -> Handling:
    return Handling(
        trace_policy=not_stated("Hidden, summarized, filtered or exposed: " + ASKED.lower()),
        inventory=not_stated(ASKED),
        model_card=measured(["CARD.md", "card.html"], "CARD.md and card.html in this card", evidence="recomputable"),
        audit_trail=measured(
            {"file": "events.jsonl", "events": facts.events},
            f"{count(facts.events)} events of this run with time and actor, in events.jsonl",
            evidence="recomputable",
            note="Not signed, and not anchored outside the platform.",
        ),
        evaluation_file=_evaluation_file(facts),
        change_management=not_stated(ASKED),
        monitoring=not_stated(ASKED),
    )


def _evaluation_file(facts: Facts) -> Entry:
    files = [
        f"evals/{phase}.jsonl"
        for phase in ("before", "after")
        if any(getattr(comparison, phase) is not None for comparison in facts.comparisons)
    ]
    if not files:
        return not_evaluated("There are no items.")
    return measured(files, f"{' and '.join(files)}, every item", evidence="recomputable")
