"""The section about the stage: what fine-tuning, distillation, a reward model's training and sampling have alone."""

from typing import Any

from cohort.evidence.canonical import dig
from cohort.evidence.plain_text import counted, percent
from cohort.records.answers import count, declared, measured, not_applicable, not_measured, number, of, plain, short
from cohort.records.facts import Facts
from cohort.records.fields import Stage
from cohort.records.schema_types import Answer
from cohort.records.sections import method_text
from cohort.records.sections.by_kind import KIND_WORDS
from cohort.records.sections.sampled import DUPLICATES, dropped, dropped_completions, words_of
from cohort.records.sections.stage_facts import ACCURACY
from cohort.records.sections.subject import NO_MANIFEST, NO_TOTALS
from grpo_core.config.evaluation import HELDOUT
from grpo_core.config.reward_model import RewardModelConfig
from grpo_core.config.sample import SampleConfig
from grpo_core.config.sft import SftConfig
from grpo_core.data.rejection import KEPT


def stage_section(facts: Facts) -> Stage | None:
    """None of a GRPO run, whose fields are those of every section."""
    config = facts.config
    if isinstance(config, SftConfig):
        return _fine_tuning(facts, config)
    if isinstance(config, RewardModelConfig):
        return _reward_model(facts, config)
    return _sampling(facts, config) if isinstance(config, SampleConfig) else None


def _kind(facts: Facts) -> Answer:
    kind = facts.config.kind
    return declared(kind, KIND_WORDS[kind])


# ---------------------------------------------------------------------- fine-tuning, distillation


def _fine_tuning(facts: Facts, config: SftConfig) -> Stage:
    return Stage(
        kind=_kind(facts),
        conversations=_conversations(facts, config),
        packing=_packing(facts, config),
        epochs=_epochs(facts, config),
        heldout_loss=_heldout_loss(facts, config),
        token_accuracy=_token_accuracy(facts),
        teacher=_teacher(facts) if config.kind == "distill" else None,
    )


def _conversations(facts: Facts, config: SftConfig) -> Answer:
    """How many, how long, and which share of their tokens is learned from."""
    train = dig(facts.manifest, "data", "train")
    if train is None:
        return not_measured(NO_MANIFEST)
    tokens, learned = train.get("tokens"), train.get("learned_tokens")
    value = {
        "conversations": train["problems"],
        "sha256": train["problems_digest"],
        "rows": train.get("rows"),
        "tokens": tokens,
        "learned_tokens": learned,
        "learned_share": learned / tokens if tokens and learned is not None else None,
        "turns": config.data.turns,
        "format": train.get("format"),
        "files": train.get("files"),
        "chat": train.get("chat"),
    }
    parts = [f"{count(train['problems'])} conversations"]
    if tokens and learned is not None:
        parts.append(f"{count(tokens)} tokens, of which {count(learned)} are answers and learned from")
        parts[-1] += f" ({percent(learned / tokens)})"
    parts.append("every turn of the assistant" if config.data.turns == "all" else "the last turn of each")
    parts.append(short(train["problems_digest"]))
    note = ""
    if train.get("rows") not in (None, train["problems"]):
        note = (
            f"In {count(train['rows'])} rows of tokens: where the chat template rewrites earlier turns, a conversation "
            "is a row for each answer."
        )
    return measured(plain(value), "; ".join(parts), note=note)


def _packing(facts: Facts, config: SftConfig) -> Answer:
    """How texts share a forward pass."""
    engine = config.engine
    value = {"layout": engine.layout, "micro_batch_tokens": engine.micro_batch_tokens}
    note = "Texts that share a pass do not attend to each other: positions and mask are those of each text alone."
    return declared(
        value, f"layout {engine.layout}, at most {count(engine.micro_batch_tokens)} tokens a pass", note=note
    )


def _epochs(facts: Facts, config: SftConfig | RewardModelConfig) -> Answer:
    """How often the rows were gone through."""
    epochs = facts.last.metrics.get("epoch") if facts.last is not None else None
    if epochs is None:
        return not_measured("No step reported it.")
    size = config.optim.batch_size
    value = {"epochs": float(epochs), "batch_size": size, "steps": facts.steps_done}
    text = f"{number(round(float(epochs), 2))} after {counted(facts.steps_done, 'step')} of {counted(size, 'row')}"
    return measured(value, text, evidence="recomputable")


def _heldout_loss(facts: Facts, config: SftConfig) -> Answer:
    """Before and after training, in nats per answer token."""
    if not config.data.has_heldout:
        return not_applicable("No conversations were held out.")
    phases = facts.stage.heldout_loss
    before, after = (dig(phases, phase, "loss") for phase in ("before", "after"))
    if before is None and after is None:
        return not_measured("The run ended before it was measured.")
    shown = [f"{loss:.4f} {phase}" for phase, loss in (("before", before), ("after", after)) if loss is not None]
    held = dig(phases, "after", "conversations") or dig(phases, "before", "conversations")
    text = f"{', '.join(shown)} training, nats per answer token"
    if before is not None and after is not None:
        text += f" ({'lower' if after < before else 'not lower'} by {number(round(abs(before - after), 4))})"
    if held is not None:
        text += f", of {counted(held, 'held-out conversation')}"
    note = "A lower loss says that such answers became likelier, and nothing about whether they are right."
    return measured(plain({"before": before, "after": after, "phases": phases}), text, note=note)


def _token_accuracy(facts: Facts) -> Answer:
    """Share of answer tokens than which the model held no other for likelier, of training texts."""
    if facts.stage.token_accuracy is None:
        return not_measured("No step reported it.")
    (first_step, first), (last_step, last) = facts.stage.token_accuracy
    value: dict[str, Any] = {"first_step": first_step, "first": first, "last_step": last_step, "last": last}
    if (held := dig(facts.stage.heldout_loss, "after", ACCURACY)) is not None:
        value["heldout"] = held
    text = f"{percent(first)} at step {first_step}, {percent(last)} at step {last_step}"
    if held is not None:
        text += f"; {percent(held)} of held-out answers after training"
    return measured(value, text, note="Of training texts, each before the step that learns from it.")


def _teacher(facts: Facts) -> Answer:
    """The model that answered, by the run that sampled it and that run's record."""
    teacher = facts.stage.teacher
    if teacher is None:
        read = dig(facts.manifest, "data", "sampled_by")
        if read is None:
            return not_measured("No run of this platform sampled the dataset, and the trainer reported no teacher.")
        return measured(plain(read), f"{dig(read, 'model', 'source') or 'a model'}, as the dataset names it")
    model = dig(teacher.manifest, "model")
    weights = dict(dig(model, "weights") or {})
    value = {
        "run": teacher.run.pk,
        "name": teacher.run.name,
        "seal": teacher.seal or None,
        "card": teacher.card or None,
        "model": teacher.run.base_model.name,
        "weights": weights,
        "dataset_sha256": facts.run.dataset.sha256,
        "dataset": dig(facts.manifest, "data", "sampled_by"),
    }
    digest = next(iter(weights.values()), "")
    text = f"{teacher.run.base_model.name}" + (f", weights {short(digest)}" if digest else "")
    text += f"; its answers were sampled by run {teacher.run.pk}, {teacher.run.name}"
    text += f" (record {short(teacher.seal)})" if teacher.seal else " (without a record)"
    return measured(plain(value), text)


# ---------------------------------------------------------------------- sampling


def _sampling(facts: Facts, config: SampleConfig) -> Stage:
    sampling, rules = config.sampling, config.filter
    sampler = (
        f"{count(sampling.group_size)} completions of each problem, temperature {number(sampling.temperature)}, top-p "
        f"{number(sampling.top_p)}, top-k {sampling.top_k or 'off'}, by {config.engine.rollout}"
    )
    value = {**sampling.model_dump(mode="json"), "rollout": config.engine.rollout}
    filters = dropped_completions(facts)
    return Stage(
        kind=_kind(facts),
        sampler=declared(value, sampler),
        filters=filters.model_copy(update={"value": _with_rules(filters.value, config)}) if facts.totals else filters,
        duplicates=_duplicates(facts, rules.duplicates),
        dataset=_dataset(facts, config),
    )


def _with_rules(value: Any, config: SampleConfig) -> Any:
    return {**value, "filter": config.filter.model_dump(mode="json")} if isinstance(value, dict) else value


def _duplicates(facts: Facts, rule: str) -> Answer:
    if rule == "keep":
        return not_applicable("Duplicates were kept (filter.duplicates: keep), and not counted.")
    if not facts.totals or KEPT not in facts.totals:
        return not_measured(NO_TOTALS)
    counts = {name: n for name, n in dropped(facts).items() if name in DUPLICATES}
    total = sum(counts.values())
    text = f"{of(total, facts.totals['samples'])} completions" + (f": {words_of(counts)}" if total else "")
    return measured({"rule": rule, "dropped": total, **counts}, text)


def _dataset(facts: Facts, config: SampleConfig) -> Answer:
    written, kept = facts.stage.written, facts.totals.get(KEPT)
    if written is None:
        if facts.state == "succeeded":
            return not_measured("The platform holds no dataset of this run.")
        return measured(None, "none: the run ended before the dataset was written")
    value = {
        "name": written.name,
        "content": written.content,
        "rows_are": config.rows,
        "rows": written.problems,
        "sha256": written.sha256,
        "size": written.size,
        "kept": kept,
        "problems_with_rows": facts.totals.get("problems_kept"),
    }
    text = f"{written.name}: {count(written.problems)} rows ({config.rows}), {short(written.sha256)}"
    if facts.totals.get("problems_kept") is not None:
        text += f", of {counted(int(facts.totals['problems_kept']), 'problem')}"
    return measured(value, text)


# ---------------------------------------------------------------------- reward models


def _reward_model(facts: Facts, config: RewardModelConfig) -> Stage:
    return Stage(
        kind=_kind(facts),
        objective=declared(
            {"objective": config.objective, "center": config.center}, method_text.preference_loss(config)
        ),
        preferences=_preferences(facts, config),
        replay=_replay(facts, config),
        epochs=_epochs(facts, config),
        accuracy=_accuracy(facts, config),
        calibration=_calibration(facts, config),
        length_bias=_length_bias(facts, config),
    )


def _preferences(facts: Facts, config: RewardModelConfig) -> Answer:
    train = dig(facts.manifest, "data", "train")
    if train is None:
        return not_measured(NO_MANIFEST)
    rows_are = "pairs" if config.objective == "bradley_terry" else "scored completions"
    value = {name: train.get(name) for name in ("problems", "problems_digest", "prompts", "dropped", "files", "texts")}
    text = f"{count(train['problems'])} {rows_are}"
    if train.get("prompts") is not None:
        text += f" of {counted(train['prompts'], 'prompt')}"
    return measured(plain(value), f"{text}; {short(train['problems_digest'])}")


def _replay(facts: Facts, config: RewardModelConfig) -> Answer:
    data = config.data
    if data.replay_path is None:
        return declared({"share": 0.0}, "none: no earlier preferences were given")
    text = f"{percent(data.replay_share)} of the rows of the run are an earlier reward model's preferences"
    read = dig(facts.manifest, "data", "train", "replay")
    if read is None:
        return declared({"share": data.replay_share}, text)
    value = {"share": data.replay_share, **{name: read.get(name) for name in ("problems", "problems_digest", "files")}}
    return measured(plain(value), f"{text}, drawn from {count(read['problems'])}; {short(read['problems_digest'])}")


def _figures_missing(facts: Facts, config: RewardModelConfig) -> Answer:
    if not config.data.has_heldout:
        return not_measured("No preferences were held out to measure on.")
    return not_measured("The run ended before it was measured, or no two held-out answers could be ranked.")


def _accuracy(facts: Facts, config: RewardModelConfig) -> Answer:
    """Share of held-out pairs ranked right, after training; before, as an evaluation of these pairs has it."""
    held = dig(facts.stage.preferences, "accuracy")
    if held is None:
        return _figures_missing(facts, config)
    text = f"{percent(held['share'])} [{percent(held['low'])}, {percent(held['high'])}] of "
    text += f"{counted(held['pairs'], 'pair')} of {counted(held['prompts'], 'prompt')}"
    before = next((each.before for each in facts.comparisons if each.suite == HELDOUT and each.before), None)
    if before is not None and before.share is not None:
        text += f"; {percent(before.share)} before training"
    note = "95 % interval (Wilson) of the effective number of pairs: those of one prompt are no independent evidence."
    value = {"after": held, "before": before.share if before is not None else None}
    return measured(plain(value), text, note=note)


def _calibration(facts: Facts, config: RewardModelConfig) -> Answer:
    held = dig(facts.stage.preferences, "calibration")
    if held is None:
        return _figures_missing(facts, config)
    text = f"expected calibration error {held['ece']:.3f} over {counted(len(held['bins']), 'bin')} of certainty"
    note = "By the Bradley–Terry model σ(|difference of rewards|) is how often the one ranked above is the better one."
    return measured(plain(held), text, note=note)


def _length_bias(facts: Facts, config: RewardModelConfig) -> Answer:
    """Whether it goes by length."""
    held = dig(facts.stage.preferences, "length")
    if held is None:
        return _figures_missing(facts, config)
    rho = held.get("rho")
    text = "no rank correlation of reward and length: one of them does not vary"
    if rho is not None:
        text = f"Spearman's ρ of difference in reward and difference in tokens {rho:.2f}".replace("-", "−")
    for name, words in (("chosen_shorter", "shorter"), ("chosen_longer", "longer")):
        if (part := held.get(name)) is not None:
            text += (
                f"; right in {percent(part['share'])} of {count(part['pairs'])} pairs whose better answer is {words}"
            )
    return measured(plain(held), text)
