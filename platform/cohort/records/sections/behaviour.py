"""The section about the trained policy's behaviour, before and after, suite by suite."""

from typing import Any

from cohort.records.answers import (
    count,
    declared,
    dig,
    measured,
    moment,
    not_applicable,
    not_evaluated,
    number,
    of,
    percent,
    points,
)
from cohort.records.facts import Facts
from cohort.records.fields import Behaviour
from cohort.records.schema_types import SAFETY, Answer, Category, Comparison
from cohort.records.sections.from_statements import given, said
from grpo_core.config.evaluation import ScorerKind

NO_SUITE = "No such suite was run."
NOT_COMPARABLE = "not comparable"
CATEGORY_WORDS: dict[Category, str] = {
    "performance": "performance",
    "hallucination": "hallucination",
    "refusal_calibration": "refusal calibration",
    "jailbreak_robustness": "jailbreak robustness",
    "harmful_capability": "harmful capability",
    "multilingual": "multilingual behaviour",
    "tool_use": "tool use",
    "format": "format",
}


def behaviour(facts: Facts) -> Behaviour:
    return Behaviour(
        performance=_performance(facts),
        protocol=_protocol(facts),
        hallucination=_category(facts, "hallucination"),
        refusal_calibration=_category(facts, "refusal_calibration"),
        jailbreak_robustness=_category(facts, "jailbreak_robustness"),
        harmful_capability=_category(facts, "harmful_capability"),
        benchmark_contamination=_contamination(facts),
        multilingual=_category(facts, "multilingual"),
        tool_use=_tool_use(facts),
        format=_category(facts, "format"),
        safety_regressions=_regressions(facts),
        imported=_imported(facts),
    )


def _of(facts: Facts, category: Category) -> list[Comparison]:
    return [one for one in facts.comparisons if one.category == category]


def _performance(facts: Facts) -> Answer:
    """Its value lists the comparisons of every suite, whatever the category: they stand in the record once."""
    asked = facts.config.eval.before or facts.config.eval.after
    if not facts.comparisons:
        return not_evaluated("The run ended before its first evaluation." if asked else NO_SUITE)
    found = _of(facts, "performance")
    value = [comparison.model_dump(mode="json") for comparison in facts.comparisons]
    if not found:
        return not_evaluated(f"{NO_SUITE} The value lists the suites of other categories.").model_copy(
            update={"value": value}
        )
    note = "A score shows performance on these problems under this protocol, and nothing beyond it."
    if len(found) < len(facts.comparisons):
        note += " The value lists the comparisons of all suites, of the other categories too."
    return measured(value, "; ".join(map(in_words, found)), evidence="recomputable", note=note)


_CANNOT: dict[Category, str] = {
    "hallucination": "Answers to these questions only; what the model makes up elsewhere is not seen.",
    "jailbreak_robustness": "Under the attacks in these items; others are not tested.",
    "multilingual": "In the languages of these items.",
}
_SCORED_CANNOT: dict[ScorerKind, str] = {
    "choice": "Of multiple choice: no free text was asked for, and a score near chance says only that.",
    "refusal": "Refusals are found by words that refusals use: the match counts too many and too few.",
    "function_call": "Calls are compared as written and not carried out.",
}
"""By what the suites are scored with, and not by their category: a suite of any category may have any scorer."""


def _cannot(facts: Facts, category: Category, found: list[Comparison]) -> str:
    names = {one.suite for one in found}
    kinds = dict.fromkeys(suite.scorer.kind for suite in facts.config.eval.suites if suite.name in names)
    words = [_CANNOT.get(category, ""), *(_SCORED_CANNOT.get(kind, "") for kind in kinds)]
    return " ".join(filter(None, words))


def _category(facts: Facts, category: Category) -> Answer:
    found = _of(facts, category)
    if not found:
        return not_evaluated(NO_SUITE)
    value = {
        "suites": [one.suite for one in found],
        "verdicts": {one.suite: one.verdict for one in found},
        "stands_in": "behaviour.performance",
    }
    return measured(
        value, "; ".join(map(in_words, found)), evidence="recomputable", note=_cannot(facts, category, found)
    )


def _tool_use(facts: Facts) -> Answer:
    if _of(facts, "tool_use"):
        return _category(facts, "tool_use")
    told = facts.statements.get("behaviour.tool_use")
    if told is not None and given(told)["choice"] == "not_relevant":
        return said(told, note=NO_SUITE)
    if told is not None:
        return not_evaluated(f"{NO_SUITE} {told.by.username} stated on {moment(told.at)}: {told.text}")
    return not_evaluated(NO_SUITE)


def in_words(found: Comparison) -> str:
    before, after, change = found.before, found.after, found.change
    shares = [
        f"{percent(side.share)} {when}" for side, when in ((before, "before"), (after, "after")) if side is not None
    ]
    text = f"{found.title}, {count(found.problems)} problems: {', '.join(shares)}"
    if change is not None:
        interval = f"95 % interval {points(change.interval.low)} to {points(change.interval.high)}"
        return f"{text}; {points(change.difference)} points ({interval}): {found.verdict}"
    if before is None:
        return f"{text}; not evaluated before training"
    if after is None:
        return f"{text}; not evaluated after training"
    return f"{text}; {NOT_COMPARABLE}: problems or protocol differed"


# ---------------------------------------------------------------------- safety


def _regressions(facts: Facts) -> Answer:
    """By the verdicts of the safety suites alone; an undecided one is never told as no regression."""
    told = facts.statements.get("behaviour.safety_regressions")
    decision = {"by": told.by.username, "at": told.at.isoformat(), "text": told.text} if told else None
    beside = f"{told.by.username} stated on {moment(told.at)}: {told.text}" if told else ""
    judged = [one for one in facts.comparisons if one.category in SAFETY and one.higher_is != "neutral"]
    missing = [CATEGORY_WORDS[category] for category in SAFETY if not any(one.category == category for one in judged)]
    if not judged:
        return not_evaluated(f"No safety suite was run, so none can be excluded. {beside}".strip())
    by_verdict: dict[str, list[str]] = {"regressed": [], "undecided": [], "not_worse": [], "not_compared": []}
    for one in judged:
        by_verdict[one.non_inferiority or "not_compared"].append(one.suite)
    titles = {one.suite: f"{one.title} (margin {number(100 * one.margin)} points)" for one in judged}
    words = {
        "regressed": "regressed",
        "undecided": "undecided",
        "not_worse": "not worse within the margin",
        "not_compared": "not compared before and after",
    }
    text = "; ".join(
        f"{words[verdict]}: {', '.join(titles[name] for name in names)}"
        for verdict, names in by_verdict.items()
        if names
    )
    notes = ["Undecided means that harm by the margin is not excluded."] if by_verdict["undecided"] else []
    if missing:
        notes.append(f"Nothing is known of {', '.join(missing)}: no such suite was judged.")
    value = {**by_verdict, "not_judged": missing, "decision": decision}
    if all(one.non_inferiority is None for one in judged):
        why = f"No safety suite was compared before and after, so none can be excluded: {', '.join(titles.values())}."
        return not_evaluated(" ".join([why, *notes, beside]).strip()).model_copy(update={"value": value})
    return measured(value, text, evidence="recomputable", note=" ".join([*notes, beside]).strip())


# ---------------------------------------------------------------------- contamination, protocol, others' results


def _contamination(facts: Facts) -> Answer:
    """Of the suites, by what the trainer found of their items in the training file."""
    found: dict[str, Any] = dig(facts.manifest, "data", "overlap") or {}
    suites = [one for one in facts.comparisons if one.suite in found]
    if not suites:
        why = "No overlap of a suite with the training file was looked for" if facts.comparisons else NO_SUITE[:-1]
        return not_evaluated(f"{why}; what the base model read before is not known.")
    parts, value = [], {}
    for one in suites:
        counts, items = found[one.suite]["counts"], found[one.suite]["items"]["texts"]
        value[one.suite] = {"items": items, "touched": counts["touched"], "counts": counts}
        part = f"{one.title}: {of(counts['touched'], items)} items overlap with the training file"
        if counts["touched"] and one.clean is not None and one.clean.after is not None:
            part += f", {percent(one.clean.after.share)} after training without them"
        parts.append(part)
    note = "Of the training file; what the base model read before is not known."
    if others := [one.title for one in facts.comparisons if one.suite not in found]:
        note += f" Not looked for in: {', '.join(others)}."
    return measured(value, "; ".join(parts), note=note)


def _protocol(facts: Facts) -> Answer:
    config = facts.config
    if not (config.eval.before or config.eval.after) or not (facts.comparisons or config.eval.has_something):
        return not_applicable("nothing was evaluated")
    samples = config.eval.samples_per_problem
    text = (
        f"temperature {number(config.eval.temperature)}, {samples} completion{'' if samples == 1 else 's'} a problem, "
        f"at most {count(config.eval_max_completion_tokens)} tokens, right when {config.success_component} passes; "
        f"regressed means that a fall is shown and one of {number(100 * config.eval.margin)} points is not excluded, "
        "each one-sided at 95 %"
    )
    value = {**config.eval.model_dump(mode="json"), "success_component": config.success_component}
    note = "The margin was fixed before the run."
    if suites := config.eval.suites:
        note = (
            f"The margins were fixed before the run. {count(len(suites))} suite{'' if len(suites) == 1 else 's'} "
            "beside the held-out problems, each with its own scorer; the value has them."
        )
    if facts.comparisons and all(comparison.change for comparison in facts.comparisons):
        note += " Same problems and seeds before and after."
    return declared(value, text, note=note)


def _imported(facts: Facts) -> Answer:
    if not facts.imported:
        return not_evaluated("Nobody imported results of another tool.")
    value = [
        {
            "tool": one.tool,
            "task": one.task,
            "phase": one.phase,
            "metric": one.metric,
            "value": one.value,
            "stderr": one.stderr,
            "n": one.n,
            "higher_is": one.higher_is or None,
            "file": {"name": one.file_name, "sha256": one.file_sha256},
            "by": one.by.username,
        }
        for one in facts.imported
    ]
    parts = [
        f"{one.task} {one.metric} {number(round(one.value, 4))}"
        + (f" ± {number(round(one.stderr, 4))}" if one.stderr is not None else "")
        + f" ({one.tool}, {one.get_phase_display()})"
        for one in facts.imported
    ]
    by = ", ".join(dict.fromkeys(one.by.username for one in facts.imported))
    note = "As the files of those tools say; that they are of this model is said by who imported them, and not checked."
    return Answer(value=value, text="; ".join(parts), source=f"stated by {by}", evidence="stated", note=note)
