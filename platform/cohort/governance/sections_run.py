"""Sections about the run itself: what was trained from what, what was thrown away, what it cost."""

from typing import Any

from cohort.governance import method_words, sections_history
from cohort.governance.facts import Facts, TracesInCard
from cohort.governance.schema import Budget, Entry, Rejected, Subject
from cohort.governance.words import (
    count,
    declared,
    dig,
    measured,
    moment,
    not_stated,
    of,
    plain,
    scaled,
    short,
    span,
    stated,
)

NO_MANIFEST = "the trainer ended before it described its inputs"
NO_TOTALS = "the trainer ended without telling its totals"


def subject(facts: Facts) -> Subject:
    return Subject(
        run=_run(facts),
        outcome=_outcome(facts),
        attempts=sections_history.attempts(facts),
        steering=sections_history.steering(facts),
        earlier_records=sections_history.earlier_records(facts),
        training_method=_training_method(facts),
        base_model=_base_model(facts),
        before_grpo=_before_grpo(facts),
        reference_policy=_reference(facts),
        old_policy=_old_policy(facts),
        trained_policy=_trained(facts),
        code=_code(facts),
        seeds=declared(
            {"run": facts.config.seed},
            f"{facts.config.seed}",
            note="One training seed: nothing follows about how the recipe varies.",
        ),
    )


def _run(facts: Facts) -> Entry:
    run = facts.run
    value = {
        "id": run.pk,
        "name": run.name,
        "project": run.project.slug,
        "created_by": run.created_by.username,
        "launched_by": facts.launched_by,
        "created_at": run.created_at.isoformat(),
        "started_at": run.started_at.isoformat() if run.started_at else None,
        "ended_at": run.ended_at.isoformat() if run.ended_at else None,
        "cloned_from": {"id": run.cloned_from.pk, "name": run.cloned_from.name} if run.cloned_from else None,
    }
    text = f"{run.name}, run {run.pk} of the project {run.project.name}; launched by {facts.launched_by}"
    if run.created_by.username != facts.launched_by:
        text += f", defined by {run.created_by.username}"
    if run.cloned_from is not None:
        text += f"; cloned from {run.cloned_from.name}, run {run.cloned_from.pk}"
    return measured(value, f"{text}; started {moment(run.started_at)}")


def _outcome(facts: Facts) -> Entry:
    run, planned = facts.run, facts.config.optim.steps
    told = facts.last_words
    value = {
        "state": facts.state,
        "code": run.error_code or ("ok" if facts.state == "succeeded" else facts.state),
        "steps_done": facts.steps_done,
        "steps_planned": planned,
        "message": told,
        "reason": run.reason,
    }
    if facts.state == "succeeded":
        return measured(value, f"succeeded. {told}".strip())
    why = run.reason or told
    return measured(value, f"{facts.state} after {facts.steps_done} of {planned} steps" + (f": {why}" if why else ""))


def _training_method(facts: Facts) -> Entry:
    if facts.steps_done == 0:
        return measured("none", "none: the run ended before its first training step")
    name, words = method_words.training_method(facts.config.algorithm)
    return measured(name, f"yes: {words}, {facts.steps_done} steps")


def _base_model(facts: Facts) -> Entry:
    row, model = facts.run.base_model, dig(facts.manifest, "model")
    registered = {name: entry["sha256"] for name, entry in row.weights.items()}
    if model is None:
        value = {"name": row.name, "path": row.path, "revision": row.revision or None, "weights": registered}
        if not registered:
            return declared(value, f"{row.name}: {row.path} at {row.revision}", note=NO_MANIFEST)
        text = f"{row.name}: {row.path}, weights {short(row.weights_digest)} as registered"
        return measured(value, text, note=NO_MANIFEST)
    weights = dict(model["weights"])
    note = ""
    if registered:
        same = weights == registered
        note = "The weights are those that were registered." if same else "The weights differ from those registered."
    value = {"name": row.name, **{name: model[name] for name in model if name != "provenance"}}
    first = next(iter(weights.values()), "")
    text = (
        f"{row.name}: {model['source']}" + (f" at {model['revision']}" if model.get("revision") else "") + f", "
        f"{scaled(model['parameters'])} parameters, {model['dtype']}; {len(weights)} weights "
        f"file{'' if len(weights) == 1 else 's'}" + (f", {short(first)}" if first else "")
    )
    return measured(plain(value), text, note=note)


def _before_grpo(facts: Facts) -> Entry:
    provenance = dig(facts.manifest, "model", "provenance") or facts.run.base_model.provenance
    if not provenance:
        return not_stated("What pretraining, supervised tuning or distillation the base model had is not known here.")
    method = provenance.get("method") or provenance.get("task") or "see the value"
    recipe = provenance.get("recipe")
    text = f"{method}" + (f" ({recipe['steps']} steps)" if isinstance(recipe, dict) and "steps" in recipe else "")
    return stated(plain(provenance), text, by="the model folder's cold_start.json")


def _reference(facts: Facts) -> Entry:
    algorithm, text = facts.config.algorithm, method_words.reference(facts.config)
    if not algorithm.needs_reference:
        return declared(None, text)
    value = {"policy": "base model", "kl_coef": algorithm.kl.coef, "reference": algorithm.reference.model_dump()}
    return declared(value, text)


def _old_policy(facts: Facts) -> Entry:
    text = "the policy at the start of each step, which sampled that step's completions; held in memory, not stored"
    note = ""
    if facts.config.algorithm.dynamic_sampling.enabled:
        note = (
            "Groups left over from a step are trained on in a later one; their old policy is the one that sampled them."
        )
    return declared({"refreshed": "every step", "stored": False}, text, note=note)


def _trained(facts: Facts) -> Entry:
    saved = facts.checkpoint
    if saved is None:
        if not facts.config.checkpoints.final:
            return declared(None, "not kept (checkpoints.final is off)")
        return measured(None, "none: the run ended before weights were saved")
    # Those of the model; adapters, if any, lie in a folder beside them.
    weights = [entry for name, entry in saved.files.items() if name.endswith(".safetensors") and "/" not in name]
    text = f"{len(saved.files)} file{'' if len(saved.files) == 1 else 's'} written after step {saved.step}"
    if weights:
        text += f", weights {short(weights[0]['sha256'])}"
    where = f"On the node {saved.attempt.node.name}; not part of this card."
    value = {"path": saved.path, "step": saved.step, "attempt": saved.attempt.fence, "files": saved.files}
    return measured(value, text, note=where)


def _code(facts: Facts) -> Entry:
    manifest = facts.manifest
    if manifest is None:
        return not_stated(NO_MANIFEST, text="not measured")
    code, machine, packages = manifest["code"], manifest["platform"], manifest["packages"]
    commit = code.get("git_commit")
    text = f"Cohort {code.get('version')}"
    if commit:
        text += f" at commit {commit[:12]}" + (" with uncommitted changes" if code.get("dirty_sha256") else "")
    versions = ", ".join(f"{name} {packages[name]}" for name in ("torch", "transformers") if name in packages)
    text += f"; {versions}" if versions else ""
    device = machine.get("device")
    hardware = machine.get("processor") if device == "cpu" else device
    text += f"; {hardware or 'device not told'}" + (f", {machine['threads']} threads" if device == "cpu" else "")
    return measured(plain({"code": code, "packages": packages, "platform": machine}), text)


# ---------------------------------------------------------------------- what was thrown away


def rejected(facts: Facts, *, traces: TracesInCard) -> Rejected:
    totals = facts.totals
    missing = not_stated(NO_TOTALS, text="not measured")
    return Rejected(
        samples=_samples(facts) if totals else missing,
        groups=_groups(facts) if totals else missing,
        truncated=_truncated(facts) if totals else missing,
        problems=_dropped(facts),
        traces=_traces(facts, traces),
    )


_CAUSES = {
    "reward_error": "without a reward",
    "truncated": "cut off at the token limit",
    "importance": "sampler and trainer too far apart",
}


def _samples(facts: Facts) -> Entry:
    """Completions left out of the update, by cause. An outcome that knows of no causes knew of one."""
    totals, algorithm = facts.totals, facts.config.algorithm
    causes = {cause: totals[f"masked_{cause}"] for cause in _CAUSES if f"masked_{cause}" in totals}
    told = [f"{count(number)} {_CAUSES[cause]}" for cause, number in causes.items() if number]
    text = f"{of(totals['masked'], totals['samples'])} completions left out of the update"
    others = algorithm.overlong.mask_truncated or algorithm.correction.mode == "sequence_mask"
    notes = ["Wrong ones stay, as training learns from them."]
    if not others and algorithm.off_policy_threshold is None:
        notes = ["Only completions without a reward are left out; wrong ones stay, as training learns from them."]
    if algorithm.off_policy_threshold is not None:
        notes.append(
            "Besides, updates leave out completions by how far the policy has moved from them; their share of the "
            "tokens is off_policy_share in metrics.jsonl."
        )
    if algorithm.dynamic_sampling.enabled:
        notes.append("Those of discarded groups are counted with the groups.")
    value = {"left_out": totals["masked"], "of": totals["samples"], **causes}
    return measured(value, text + (f": {', '.join(told)}" if others and told else ""), note=" ".join(notes))


_REASONS = {
    "all_right": "all right",
    "all_wrong": "all wrong",
    "all_equal": "equal otherwise",
    "unscored": "not scored",
}


def _groups(facts: Facts) -> Entry:
    totals, algorithm = facts.totals, facts.config.algorithm
    names = ["groups", "groups_mixed", "groups_all_equal", "groups_unscored"]
    silent = totals["groups_all_equal"] + totals["groups_unscored"]
    notes = []
    discarded = totals.get("groups_discarded", 0.0)
    if algorithm.dynamic_sampling.enabled:
        names += [name for name in ("groups_discarded", *(f"discarded_{why}" for why in _REASONS)) if name in totals]
        whys = [f"{count(totals.get(f'discarded_{why}', 0))} {words}" for why, words in _REASONS.items()]
        notes.append(f"Dynamic sampling discarded {count(discarded)} groups ({', '.join(whys)}) and drew others.")
    if said := method_words.silent_groups(algorithm, remaining=silent > discarded or silent == 0):
        notes.append(said)
    text = f"{of(silent, totals['groups'])} groups: all rewards equal, or fewer than two scored"
    return measured({name: totals[name] for name in names}, text, note=" ".join(notes))


def _truncated(facts: Facts) -> Entry:
    totals, overlong = facts.totals, facts.config.algorithm.overlong
    if overlong.mask_truncated:
        note = "They are scored, count in their group's mean, and are left out of the update."
    elif overlong.buffer_tokens is not None:
        note = f"They lose {scaled(overlong.penalty)} of their reward and are used like the others."
    else:
        note = "They are scored and used like the others."
    value = {"truncated": totals["truncated"], "of": totals["samples"]}
    text = f"{of(totals['truncated'], totals['samples'])} completions reached the token limit"
    return measured(value, text, note=note)


def _dropped(facts: Facts) -> Entry:
    train = dig(facts.manifest, "data", "train")
    if train is None:
        return not_stated(NO_MANIFEST, text="not measured")
    heldout = dig(facts.manifest, "data", "eval") or {}
    dropped, also = int(train["dropped"]), int(heldout.get("dropped", 0))
    limit = facts.config.data.max_prompt_tokens
    text = f"{count(dropped)} training and {count(also)} held-out problems with a prompt over {limit} tokens"
    return measured({"train": dropped, "heldout": also, "max_prompt_tokens": limit}, text)


def _traces(facts: Facts, in_card: TracesInCard) -> Entry:
    whole = facts.totals.get("groups", facts.steps_done * facts.config.sampling.prompts_per_step)
    value: dict[str, Any] = {
        "groups": facts.groups_kept,
        "samples": facts.samples_kept,
        "groups_in_card": in_card.groups,
        "samples_in_card": in_card.samples,
        "not_in_card_from": in_card.cut_at,
    }
    note = "Groups are picked by seed; completions of the others are counted, not kept."
    if facts.groups_kept >= whole:
        note = ""
    if not facts.groups_kept:
        return measured(value, f"none of {count(whole)} groups" if whole else "there was no group", note=note)
    text = f"{of(facts.groups_kept, whole)} groups with {count(facts.samples_kept)} completions"
    if in_card.cut_at is None:
        return measured(value, f"{text}, in traces/", evidence="recomputable", note=note)
    text += f"; {count(in_card.groups)} of them in traces/" if in_card.groups else "; none of them in this card"
    rest = f"The rest, from step {in_card.cut_at} on, is too large for the card and stays on the platform."
    return measured(value, text, note=f"{note} {rest}".strip())


# ---------------------------------------------------------------------- budget


def budget(facts: Facts) -> Budget:
    """What was paid: by all attempts, told apart from what stands."""
    planned, tries = facts.config.optim.steps, len(facts.history.tries)
    steps = measured(
        {"done": facts.steps_done, "planned": planned},
        f"{facts.steps_done} of {planned} steps in {tries} attempt{'' if tries == 1 else 's'}",
        evidence="recomputable",
    )
    missing = not_stated(NO_TOTALS, text="not measured")
    return Budget(
        steps=steps,
        time=_time(facts),
        tokens=missing if facts.tokens is None else _tokens(facts, facts.tokens),
        superseded=sections_history.superseded(facts),
        compute=missing if facts.tokens is None else _compute(facts, facts.tokens),
        energy=_ENERGY,
    )


def _time(facts: Facts) -> Entry:
    past, seconds = facts.history, facts.totals.get("seconds")
    if not past.tries:
        return not_stated(NO_TOTALS, text="not measured")
    device = dig(facts.manifest, "platform", "device") or "a device not told"
    value = {
        "seconds": None if seconds is None else round(seconds, 1),
        "device": device,
        "held_seconds": round(past.held_seconds, 1),
        "device_seconds": round(past.device_seconds, 1),
        "step_seconds": round(sum(one.seconds for one in past.tries), 1),
        "superseded_step_seconds": round(sum(one.superseded_seconds for one in past.tries), 1),
    }
    if len(past.tries) == 1:
        return measured(value, f"{span(past.held_seconds if seconds is None else seconds)} on {device}")
    note = "From each claim of a node to its release: what was superseded or broken off is in it."
    by = facts.told_by
    which = "the newest" if by is None or by.fence == facts.run.fence else f"attempt {by.fence}"
    return measured(value, f"{sections_history.held(facts)}; {which} on {device}", note=note)


def _tokens(facts: Facts, tokens: float) -> Entry:
    samples, besides = facts.totals.get("samples"), facts.history.superseded_tokens
    value = {
        "completions": samples,
        "tokens": tokens,
        "superseded_tokens": besides,
        "tokens_with_superseded": None if besides is None else tokens + besides,
    }
    completions = "a number of completions not told" if samples is None else f"{count(samples)} completions"
    text = f"{completions}, {count(tokens)} tokens with prompts"
    if facts.history.superseded_steps:
        text += f"; besides {'a number not told' if besides is None else count(besides)} in superseded steps"
    note = f"As counted at the last step: {NO_TOTALS}." if samples is None else ""
    return measured(value, text, note=note)


_ENERGY = not_stated("No meter was read.", text="not measured")


def _compute(facts: Facts, tokens: float) -> Entry:
    parameters = dig(facts.manifest, "model", "parameters")
    if not parameters:
        return not_stated(NO_MANIFEST, text="not measured")
    algorithm = facts.config.algorithm
    passes = algorithm.inner_iterations
    reference = 2 if algorithm.needs_reference else 0
    critic = 2 + 6 * passes if algorithm.advantage == "gae" else 0
    factor = 2 + 6 * passes + reference + critic
    superseded = facts.history.superseded_tokens or 0.0
    flop = factor * parameters * (tokens + superseded)
    parts = ["2 to sample", "6 for each pass"]
    if reference:
        parts.append("2 for the reference")
    if critic:
        parts.append(f"{critic} for the critic")
    cheaper = ["shared prompts"]
    if algorithm.zero_advantage_is_inert or algorithm.dynamic_sampling.enabled:
        cheaper.append("groups without signal")
    if facts.config.model.lora.rank:
        cheaper.append("adapters")
    saved = " and ".join(cheaper)
    work = " Superseded steps are counted." if superseded else ""
    return measured(
        {"flop_estimate": flop, "per_token": factor * parameters},
        f"about {scaled(flop, 'FLOP')}",
        note=f"Estimate: {factor} × parameters × tokens ({', '.join(parts)}). {saved.capitalize()} cost less; "
        f"evaluations are not counted.{work}",
    )
