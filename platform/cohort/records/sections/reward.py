"""The section about the reward."""

from cohort.evidence.canonical import dig
from cohort.evidence.plain_text import MINUS
from cohort.records.answers import declared, measured, not_applicable, not_measured, number, of, short
from cohort.records.facts import Facts
from cohort.records.fields import Reward
from cohort.records.models import Statement
from cohort.records.schema_types import Answer
from cohort.records.sections import absence, method_text
from cohort.records.sections.by_kind import absent_section
from cohort.records.sections.from_statements import given, stated_or_asked, statement_answer
from cohort.records.sections.probe import brittleness, sandbox_text
from cohort.records.sections.subject import NO_TOTALS
from grpo_core.config.kinds import ScoredConfig
from grpo_core.config.reward import RewardComponent, RewardConfig
from grpo_core.rewards import KINDS, Rubric

_ON_ERROR = {
    "mask": "a completion that cannot be scored is left out of its group",
    "zero": "a completion that cannot be scored gets 0",
    "fail": "a completion that cannot be scored ends the run",
}


def reward(facts: Facts) -> Reward:
    config = facts.config
    if not isinstance(config, ScoredConfig):
        return Reward(**dict(absent_section(config.kind, Reward)))
    return _scored(facts, config, config.reward)


def _scored(facts: Facts, run_config: ScoredConfig, config: RewardConfig) -> Reward:
    version = facts.run.verifier_version
    terms = " + ".join(
        f"{component.name} ({component.kind}, weight {number(component.weight)}{_rows(component)})"
        for component in config.components
    )
    name = f"{version.verifier.name}, version {version.number}"
    errors = not_measured(NO_TOTALS)
    if totals := facts.totals:
        errors = measured(
            {"errors": totals["reward_errors"], "of": totals["samples"], "on_error": config.on_error},
            f"{of(totals['reward_errors'], totals['samples'])} completions could not be scored",
            note=f"Here {_ON_ERROR[config.on_error]}.",
        )
    punishment = method_text.overlong(run_config.algorithm)
    disclosed = facts.statements.get("reward.disclosure")
    open_to_all = not_applicable("Nothing is withheld: the specification is for everyone, as nobody asked otherwise.")
    return Reward(
        source=declared(
            {
                "verifier": version.verifier.name,
                "version": version.number,
                **run_config.algorithm.model_dump(include={"overlong"}),
            },
            f"{name}: {terms}" + (f"; {punishment}" if punishment else ""),
        ),
        verifier=_verifier(config, disclosed),
        disclosure=open_to_all if disclosed is None else statement_answer(disclosed),
        rule_or_model=_rule_or_model(facts, config),
        domain=stated_or_asked(facts.statements, "reward.domain"),
        verifiable_or_social=stated_or_asked(facts.statements, "reward.verifiable_or_social"),
        brittleness=brittleness(facts.probed, facts.statements.get("reward.brittleness")),
        probes=absence.probes(facts.absent),
        errors=errors,
        course=_course(facts),
    )


def _rows(component: RewardComponent) -> str:
    """Which rows it scores, in words; empty for all."""
    only = component.only
    return "" if only is None else f", for rows with {only.column} {' or '.join(only.values)}"


def _rule_or_model(facts: Facts, config: RewardConfig) -> Answer:
    """By the kinds of the components with a weight; where code ran, its sandbox."""
    components = [component for component in config.components if component.weight != 0]
    judged = {
        component.name: component.kind for component in components if KINDS[component.kind].mode in ("model", "judge")
    }
    if not judged:
        value, text = "rule-based", "rules only; no model judged"
    else:
        listed = ", ".join(f"{name} ({kind})" for name, kind in judged.items())
        rules = len(judged) < len(components)
        value = "rule-based and model-based" if rules else "model-based"
        text = f"models judged: {listed}" + ("; the rest are rules" if rules else "")
    apart = sandbox_text(dig(facts.manifest, "sandbox"))
    return declared(value, text, note=f"Code ran in a sandbox: {apart}." if apart else "")


def _verifier(config: RewardConfig, disclosed: Statement | None) -> Answer:
    """The whole specification, unless a person stated that showing it to the public is not safe."""
    answer = declared(
        config.model_dump(mode="json"),
        f"complete in config.yaml; {short(Rubric(config).digest)}",
        note="The rules' code is that of the trainer's version, under Code and environment.",
    )
    withheld = disclosed is not None and given(disclosed)["choice"] == "withheld"
    return answer.model_copy(update={"audience": "downstream"}) if withheld else answer


def _course(facts: Facts) -> Answer:
    if facts.first is None or facts.last is None:
        return not_measured("No step was trained.")
    first, last = facts.first.metrics.get("reward"), facts.last.metrics.get("reward")
    if first is None or last is None:
        return not_measured("No completion could be scored.")
    value = {"first_step": facts.first.step, "first": float(first), "last_step": facts.last.step, "last": float(last)}
    text = f"{first:.3f} at step {facts.first.step}, {last:.3f} at step {facts.last.step}".replace("-", MINUS)
    of = "training" if facts.config.kind == "grpo" else "sampled"
    return measured(value, text, evidence="recomputable", note=f"Of {of} completions; every step in metrics.jsonl.")
