"""The section about the trained policy's behaviour, before and after, suite by suite."""

from collections.abc import Collection, Sequence
from typing import Any

from cohort.evidence.canonical import dig
from cohort.evidence.plain_text import change_points, counted, side_text
from cohort.lab.judged import training_reward_judge
from cohort.records.answers import count, declared, kappa_text, measured, not_applicable, not_evaluated, number, of
from cohort.records.facts import Facts
from cohort.records.fields import Behaviour
from cohort.records.schema_types import SAFETY, Answer, Comparison
from cohort.records.sections import absence
from cohort.records.sections.by_kind import absent_section
from cohort.records.sections.from_statements import given, statement_answer, statement_text
from cohort.runs.models import ImportedResult
from grpo_core.config.evaluation import Category, ScorerKind
from grpo_core.config.kinds import judge_of
from grpo_core.config.reward_model import RewardModelConfig
from grpo_core.rewards import Rubric
from grpo_core.rewards.kinds.refusal import AGREEMENT

NO_SUITE = "No such suite was run."
NOT_COMPARABLE = "not comparable"


def behaviour(facts: Facts) -> Behaviour:
    own: dict[str, Answer] = {
        "performance": _performance(facts),
        "protocol": _protocol(facts),
        **{category: _category(facts, category) for category in (*SAFETY, "multilingual", "format")},
        "benchmark_contamination": _contamination(facts),
        "tool_use": _tool_use(facts),
        "safety_regressions": _regressions(facts),
        "not_chosen": absence.not_chosen(facts.absent),
        "imported": imported_answer(facts.imported),
    }
    absent = dict(absent_section(facts.config.kind, Behaviour))
    if facts.comparisons:  # of a reward model: its held-out pairs
        absent = {name: answer for name, answer in absent.items() if name not in ("performance", "protocol")}
    return Behaviour(**{**own, **absent})


def _of(facts: Facts, category: Category) -> list[Comparison]:
    return [comparison for comparison in facts.comparisons if comparison.category == category]


def _performance(facts: Facts) -> Answer:
    """Its value lists the comparisons of every suite, whatever the category: the record holds them once."""
    requested = facts.config.eval.before or facts.config.eval.after
    if not facts.comparisons:
        return not_evaluated("The run ended before its first evaluation." if requested else NO_SUITE)
    comparisons = _of(facts, "performance")
    value = [comparison.model_dump(mode="json") for comparison in facts.comparisons]
    if not comparisons:
        missing = not_evaluated(f"{NO_SUITE} The value lists the suites of other categories.")
        return missing.model_copy(update={"value": value})
    note = "A score shows performance on these problems under this protocol, and nothing beyond it."
    if len(comparisons) < len(facts.comparisons):
        note += " The value lists the comparisons of all suites, of the other categories too."
    if judged := training_reward_judge(facts.run):
        note += f" Held-out problems were judged {judged.text}."
    return measured(value, "; ".join(map(in_words, comparisons)), evidence="recomputable", note=note)


_CANNOT: dict[Category, str] = {
    "hallucination": "Answers to these questions only; what the model makes up elsewhere is not seen.",
    "jailbreak_robustness": "Under the attacks in these items; others are not tested.",
    "multilingual": "In the languages of these items.",
}
_SCORED_CANNOT: dict[ScorerKind, str] = {
    "choice": "Of multiple choice: no free text was requested, and a score near chance says only that.",
    "refusal": "Refusals are recognised by rules on English words, which count too many and too few.",
    "function_call": "Calls are compared as written and not carried out.",
}
"""By what the suites are scored with, and not by their category: a suite of any category may have any scorer."""


def _category(facts: Facts, category: Category) -> Answer:
    comparisons = _of(facts, category)
    if not comparisons:
        return not_evaluated(NO_SUITE)
    verdicts = {comparison.suite: comparison.verdict for comparison in comparisons}
    value = {"suites": [*verdicts], "verdicts": verdicts, "stands_in": "behaviour.performance"}
    kinds = dict.fromkeys(suite.scorer.kind for suite in facts.config.eval.suites if suite.name in verdicts)
    cannot = filter(None, [_CANNOT.get(category), *map(_SCORED_CANNOT.get, kinds), _refusals_known(facts, verdicts)])
    return measured(value, "; ".join(map(in_words, comparisons)), evidence="recomputable", note=" ".join(cannot))


def _refusals_known(facts: Facts, names: Collection[str]) -> str:
    """How well the rules agree with labels, where a suite is scored by them."""
    scorers = [suite.scorer for suite in facts.config.eval.suites if suite.name in names]
    if not any(scorer.kind == "refusal" and scorer.params.get("phrases") is None for scorer in scorers):
        return ""
    return (
        f"With {count(AGREEMENT.n)} completions that the rules' author wrote and labelled after them their agreement "
        "is Cohen's κ "
        f"{kappa_text({'value': AGREEMENT.value, 'low': AGREEMENT.low, 'high': AGREEMENT.high})} (95 % interval)."
    )


def _tool_use(facts: Facts) -> Answer:
    if _of(facts, "tool_use"):
        return _category(facts, "tool_use")
    statement = facts.statements.get("behaviour.tool_use")
    if statement is None:
        return not_evaluated(NO_SUITE)
    if given(statement)["choice"] == "not_relevant":
        return statement_answer(statement, note=NO_SUITE)
    return not_evaluated(f"{NO_SUITE} {statement_text(statement)}")


def in_words(comparison: Comparison) -> str:
    before, after, change = comparison.before, comparison.after, comparison.change
    sides = ((before, "before"), (after, "after"))
    shares = [f"{side_text(side.model_dump())} {when}" for side, when in sides if side is not None]
    text = f"{comparison.title}, {count(comparison.problems)} problems: {', '.join(shares)}"
    if change is not None:
        difference, low, high = change_points(change.model_dump(), comparison.margin)
        text = f"{text}; {difference} points (95 % interval {low} to {high}): {comparison.verdict}"
        return text + (f". {comparison.undecided_because}" if comparison.undecided_because else "")
    if before is None:
        return f"{text}; not evaluated before training"
    if after is None:
        return f"{text}; not evaluated after training"
    return f"{text}; {NOT_COMPARABLE}: problems or protocol differed"


# ---------------------------------------------------------------------- safety


def _regressions(facts: Facts) -> Answer:
    """By the verdicts of the safety suites alone; an undecided one is never reported as no regression."""
    statement = facts.statements.get("behaviour.safety_regressions")
    decision = (
        {"by": statement.by.username, "at": statement.at.isoformat(), "text": statement.text} if statement else None
    )
    decision_text = statement_text(statement) if statement else ""
    judged = [
        comparison
        for comparison in facts.comparisons
        if comparison.category in SAFETY and comparison.higher_is != "neutral"
    ]
    judged_categories = {comparison.category for comparison in judged}
    missing = [category.replace("_", " ") for category in SAFETY if category not in judged_categories]
    if not judged:
        return not_evaluated(f"No safety suite was run, so none can be excluded. {decision_text}".strip())
    by_verdict: dict[str, list[str]] = {"regressed": [], "undecided": [], "not_worse": [], "not_compared": []}
    for comparison in judged:
        by_verdict[comparison.non_inferiority or "not_compared"].append(comparison.suite)
    titles = {
        comparison.suite: f"{comparison.title} (margin {number(100 * comparison.margin)} points)"
        for comparison in judged
    }
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
    notes = []
    if by_verdict["undecided"]:
        notes.append("Undecided means that harm by the margin is not excluded, or could not have been seen.")
    if missing:
        notes.append(f"Nothing is known of {', '.join(missing)}: no such suite was judged.")
    value = {**by_verdict, "not_judged": missing, "decision": decision}
    if all(comparison.non_inferiority is None for comparison in judged):
        why = f"No safety suite was compared before and after, so none can be excluded: {', '.join(titles.values())}."
        return not_evaluated(" ".join([why, *notes, decision_text]).strip()).model_copy(update={"value": value})
    return measured(value, text, evidence="recomputable", note=" ".join([*notes, decision_text]).strip())


# ---------------------------------------------------------------------- contamination, protocol, others' results


def _contamination(facts: Facts) -> Answer:
    """Of the suites, by what the trainer found of their items in the training file."""
    overlap: dict[str, Any] = dig(facts.manifest, "data", "overlap") or {}
    suites = [comparison for comparison in facts.comparisons if comparison.suite in overlap]
    if not suites:
        why = "No overlap of a suite with the training file was looked for" if facts.comparisons else NO_SUITE[:-1]
        return not_evaluated(f"{why}; what the base model read before is not known.")
    parts, value = [], {}
    for comparison in suites:
        counts, items = overlap[comparison.suite]["counts"], overlap[comparison.suite]["items"]["texts"]
        value[comparison.suite] = {"items": items, "touched": counts["touched"], "counts": counts}
        part = f"{comparison.title}: {of(counts['touched'], items)} items overlap with the training file"
        if counts["touched"] and comparison.clean is not None and comparison.clean.after is not None:
            part += f", {side_text(comparison.clean.after.model_dump())} after training without them"
        parts.append(part)
    note = "Of the training file; what the base model read before is not known."
    if others := [comparison.title for comparison in facts.comparisons if comparison.suite not in overlap]:
        note += f" Not looked for in: {', '.join(others)}."
    return measured(value, "; ".join(parts), note=note)


def _protocol(facts: Facts) -> Answer:
    config, judge = facts.config, judge_of(facts.config)
    success = judge.success_component if judge is not None else None
    if not (config.eval.before or config.eval.after) or not (facts.comparisons or config.eval.has_something):
        return not_applicable("nothing was evaluated")
    if isinstance(config, RewardModelConfig):
        return _ranked_pairs(config)
    samples = config.eval.samples_per_problem
    text = (
        f"temperature {number(config.eval.temperature)}, {samples} completion{'' if samples == 1 else 's'} a problem, "
        f"at most {count(config.eval_max_completion_tokens)} tokens"
        + (f", right when {success} passes{_judge_text(facts)}" if success else "")
        + "; "
        f"verdicts by the 95 % interval of the difference and a margin of {number(100 * config.eval.margin)} points"
    )
    value = {**config.eval.model_dump(mode="json", exclude={"reward"}), "success": success, "judge": _judge(facts)}
    value["training_reward_judges"] = _training_reward(facts)
    note = "The margin was fixed before the run."
    if suites := config.eval.suites:
        note = (
            f"The margins were fixed before the run. {count(len(suites))} suite{'' if len(suites) == 1 else 's'} "
            "in addition to the held-out problems, each with its own scorer; the value has them."
        )
    if facts.comparisons and all(comparison.change for comparison in facts.comparisons):
        note += " Same problems and seeds before and after."
    if facts.during:
        times = ", ".join(f"{name} {counted(number, 'time')}" for name, number in facts.during.items())
        note += f" Evaluated while training too, without storing texts: {times}."
    return declared(value, text, note=note)


def _ranked_pairs(config: RewardModelConfig) -> Answer:
    text = (
        "held-out pairs, right where the better answer has the higher reward; verdict by the 95 % interval of the "
        f"difference and a margin of {number(100 * config.eval.margin)} points"
    )
    return declared({"margin": config.eval.margin, "objective": config.objective}, text)


def _judge(facts: Facts) -> dict[str, Any] | None:
    """The held-out verifier, where that is not the reward. Its specification is in config.yaml."""
    version, reward = facts.run.eval_verifier_version, facts.config.eval.reward
    if reward is None:
        return None
    named = {"verifier": version.verifier.name, "version": version.number} if version is not None else {}
    return {**named, "sha256": Rubric(reward).digest}


def _training_reward(facts: Facts) -> dict[str, Any] | None:
    """What is known of the training reward, where that judges the held-out problems; `text` is what is shown next to
    their accuracy."""
    known = training_reward_judge(facts.run)
    return {"probe": known.figures, "text": known.text} if known else None


def _judge_text(facts: Facts) -> str:
    if known := training_reward_judge(facts.run):
        return f"; held-out problems judged {known.text}"
    if facts.config.eval.reward is None:
        return ""
    version = facts.run.eval_verifier_version
    name = f"{version.verifier.name}, version {version.number}" if version is not None else "a verifier of its own"
    return f"; held-out problems judged by {name}, not by the training reward"


def imported_answer(rows: Sequence[ImportedResult]) -> Answer:
    if not rows:
        return not_evaluated("Nobody imported results of another tool.")
    value = [
        {
            **{name: getattr(row, name) for name in ("tool", "task", "phase", "metric", "value", "stderr", "n")},
            "higher_is": row.higher_is or None,
            "file": {"name": row.file_name, "sha256": row.file_sha256},
            "by": row.by.username,
        }
        for row in rows
    ]
    parts = [
        f"{row.task} {row.metric} {number(round(row.value, 4))}"
        + (f" ± {number(round(row.stderr, 4))}" if row.stderr is not None else "")
        + f" ({row.tool}, {row.get_phase_display()})"
        for row in rows
    ]
    by = ", ".join(dict.fromkeys(row.by.username for row in rows))
    note = "As the files of those tools say; that they are of this model is said by who imported them, and not checked."
    return Answer(value=value, text="; ".join(parts), source=f"stated by {by}", evidence="stated", note=note)
