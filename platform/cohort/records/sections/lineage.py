"""Origin of the base model, and the whole pipeline with this run as one of its stages."""

from typing import Any

from cohort.evidence.plain_text import counted
from cohort.records.answers import count, measured, not_measured, plain, short, stated
from cohort.records.facts import Facts
from cohort.records.schema_types import Answer
from cohort.records.sections import method_text
from cohort.records.sections.by_kind import KIND_WORDS
from cohort.records.sections.earlier_stages import GAVE_WORDS, EarlierStage
from cohort.records.sections.from_statements import given, statement_answer
from cohort.records.statements.questions import STAGE_WORDS, StageKind
from cohort.runs.models import Run
from grpo_core.config.stage import Kind

STAGE_OF: dict[Kind, StageKind] = {
    "grpo": "grpo",
    "sft": "sft",
    "reward_model": "reward_model",
    "sample": "rejection_sampling",
    "distill": "distillation",
}
"""Kind of run → kind of stage, as people state a pipeline."""


def lineage(facts: Facts) -> Answer:
    """Base, cold start, and the earlier runs whose output the base model is, as far as this platform knows them."""
    origin, run = facts.lineage, facts.run
    chain = {run.pk, *(ancestor.run.pk for ancestor in origin.ancestors)}
    """Whose weights the text says already."""
    earlier = [
        {
            "run": ancestor.run.pk,
            "name": ancestor.run.name,
            "step": ancestor.step,
            "base_model": ancestor.run.base_model.name,
            "final": ancestor.checkpoint.final,
            "weights": ancestor.weights,
            "registered_as": ancestor.registered_as or None,
            "seal": ancestor.seal or None,
        }
        for ancestor in origin.ancestors
    ]
    others = [stage for stage in facts.earlier if not (stage.gave == "weights" and stage.to.pk in chain)]
    value: dict[str, Any] = {
        "earlier_runs": earlier,
        "stages": [stage.as_value() for stage in facts.earlier],
        "complete": origin.followed_to_the_end,
        "cold_start": plain(origin.cold_start),
        "settings_from": {"run": run.cloned_from.pk, "name": run.cloned_from.name} if run.cloned_from else None,
    }
    parts = [
        f"its base model is what run {ancestor.run.pk}, {ancestor.run.name}, wrote after step {count(ancestor.step)}"
        + "".join(f", weights {short(digest)}" for digest in list(ancestor.weights.values())[:1])
        + (f" (record {short(ancestor.seal)})" if ancestor.seal else " (without a record)")
        for ancestor in origin.ancestors
    ]
    weights_given = bool(parts)
    if not origin.weights_known:
        parts.append("earlier runs were not looked for, as no digest of the base model's weights is known")
    elif not weights_given:
        parts.append("no earlier run of this project wrote the base model's weights")
    parts += [_gave(stage, run) for stage in others]
    if origin.cold_start:
        parts.append(f"cold start recorded in the model folder: {_method(origin.cold_start)}")
    if run.cloned_from is not None:
        no_weights = "" if run.cloned_from in [ancestor.run for ancestor in origin.ancestors] else "; no weights of it"
        parts.append(f"settings cloned from run {run.cloned_from.pk}, {run.cloned_from.name}{no_weights}")
    note = "Weights are known again by the SHA-256 of every file; what was trained elsewhere is not seen."
    if not origin.followed_to_the_end:
        note += f" Followed back over {count(len(origin.ancestors))} runs; there are more."
    if not origin.weights_known and len(parts) == 1:
        return not_measured(f"{parts[0].capitalize()}.").model_copy(update={"value": value})
    return measured(value, "; ".join(parts), note=note)


def _gave(stage: EarlierStage, run: Run) -> str:
    to = "" if stage.to == run else f" to run {stage.to.pk}, {stage.to.name}"
    digest = next(iter(stage.digests.values()), "")
    sealed = f" (record {short(stage.seal)})" if stage.seal else " (without a record)"
    return (
        f"run {stage.run.pk}, {stage.run.name} ({KIND_WORDS[stage.run.parsed_config.kind]}), gave "
        f"{GAVE_WORDS[stage.gave]}{to}" + (f", {short(digest)}" if digest else "") + sealed
    )


def _method(provenance: dict[str, Any]) -> str:
    recipe = provenance.get("recipe")
    name = str(provenance.get("method") or provenance.get("task") or "stage before this run")
    return name + (f", {recipe['steps']} steps" if isinstance(recipe, dict) and "steps" in recipe else "")


def pipeline(facts: Facts) -> Answer:
    """Every known stage with its source; the GRPO stages are this run and earlier ones."""
    statement = facts.statements.get("subject.pipeline")
    name, _ = method_text.training_method(facts.config)
    what = f"this run: {name}, {counted(facts.steps_done, 'step')}"
    own = STAGE_OF[facts.config.kind]
    here = {"kind": own, "what": what, "known_by": "measured"}
    if statement is None:
        stages = [*_known_before(facts), here]
        text = _in_words(stages)
        note = (
            "What pretraining, tuning or distillation the base model had is not known here, and nobody has stated it."
        )
        cold = facts.lineage.cold_start
        if cold:
            return stated(stages, text, by="the model folder's provenance.json", note=note)
        return measured(stages, f"{text}; nothing is known of the stages before", note=note)
    stages = [{**stage, "known_by": f"stated by {statement.by.username}"} for stage in given(statement)["stages"]]
    at = next((index for index, stage in enumerate(stages) if _is_this_run(stage, own)), None)
    stages[len(stages) if at is None else at :] = [here, *([] if at is None else stages[at + 1 :])]
    return statement_answer(statement, value=stages, text=_in_words(stages))


def _is_this_run(stage: dict[str, Any], kind: StageKind) -> bool:
    return bool(stage["kind"] == kind and stage["what"].casefold().strip(" .") == "this run")


def _known_before(facts: Facts) -> list[dict[str, Any]]:
    stages = []
    if facts.lineage.cold_start:
        what = _method(facts.lineage.cold_start)
        kind = "other" if "quantisation" in facts.lineage.cold_start else "cold_start"
        stages.append({"kind": kind, "what": what, "known_by": "the model folder's provenance.json"})
    runs = {stage.run.pk: stage.run for stage in reversed(facts.earlier)}
    for run in runs.values():
        kind = STAGE_OF[run.parsed_config.kind]
        stages.append({"kind": kind, "what": f"run {run.pk}, {run.name}", "known_by": "measured"})
    return stages


def _in_words(stages: list[dict[str, Any]]) -> str:
    return "; ".join(
        f"{at}. {stage['what'] if stage['kind'] == 'grpo' else STAGE_WORDS[stage['kind']] + ': ' + stage['what']}"
        for at, stage in enumerate(stages, start=1)
    )
