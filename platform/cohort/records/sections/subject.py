"""Sections about the run itself: what was trained from what, by which code, on which machine."""

from typing import Any

from cohort.evidence.canonical import dig
from cohort.evidence.plain_text import counted, percent
from cohort.records.answers import count, declared, measured, moment, not_measured, not_stated, plain, scaled, short
from cohort.records.facts import Facts
from cohort.records.fields import Environment, Subject
from cohort.records.schema_types import Answer
from cohort.records.sections import history, lineage, method_text
from cohort.records.sections.by_kind import not_applicable_to
from cohort.runs.base_models import weight_files
from grpo_core.config.kinds import ScoredConfig

NO_MANIFEST = "the trainer ended before it described its inputs"
NO_TOTALS = "the trainer ended without reporting its totals"


def subject(facts: Facts) -> Subject:
    kind = facts.config.kind
    return Subject(
        run=_run(facts),
        outcome=_outcome(facts),
        attempts=history.attempts(facts),
        steering=history.steering(facts),
        earlier_records=history.earlier_records(facts),
        training_method=_training_method(facts),
        base_model=_base_model(facts),
        context=_context(facts),
        lineage=lineage.lineage(facts),
        pipeline=lineage.pipeline(facts),
        reference_policy=not_applicable_to(kind, "subject.reference_policy") or _reference(facts),
        old_policy=not_applicable_to(kind, "subject.old_policy") or _old_policy(facts),
        trained_policy=not_applicable_to(kind, "subject.trained_policy") or _trained(facts),
    )


def _run(facts: Facts) -> Answer:
    run = facts.run
    # A run that succeeded is over, as its columns say it, only once this record is sealed.
    ended_at = facts.history.tries[-1].attempt.ended_at if facts.state == "succeeded" else run.ended_at
    value = {
        "id": run.pk,
        "name": run.name,
        "project": run.project.slug,
        "created_by": run.created_by.username,
        "launched_by": facts.launched_by,
        "created_at": run.created_at.isoformat(),
        "started_at": run.started_at.isoformat() if run.started_at else None,
        "ended_at": ended_at.isoformat() if ended_at else None,
        "cloned_from": {"id": run.cloned_from.pk, "name": run.cloned_from.name} if run.cloned_from else None,
    }
    text = f"{run.name}, run {run.pk} of the project {run.project.name}; launched by {facts.launched_by}"
    if run.created_by.username != facts.launched_by:
        text += f", defined by {run.created_by.username}"
    if run.cloned_from is not None:
        text += f"; cloned from {run.cloned_from.name}, run {run.cloned_from.pk}"
    return measured(value, f"{text}; started {moment(run.started_at)}")


def _outcome(facts: Facts) -> Answer:
    run, planned = facts.run, facts.steps_planned
    message = facts.last_message
    value = {
        "state": facts.state,
        "code": run.error_code or (_ended_well(facts) if facts.state == "succeeded" else facts.state),
        "steps_done": facts.steps_done,
        "steps_planned": planned,
        "message": message,
        "reason": run.reason,
    }
    if facts.state == "succeeded":
        return measured(value, f"succeeded. {message}".strip())
    why = run.reason or message
    return measured(value, f"{facts.state} after {steps_of(facts.steps_done, planned)}" + (f": {why}" if why else ""))


def steps_of(done: int, planned: int | None) -> str:
    """`3 of 10 steps`; without the plan where that is not known."""
    return f"{done} steps of a number not known" if planned is None else f"{done} of {planned} steps"


def _training_method(facts: Facts) -> Answer:
    if facts.steps_done == 0:
        first = "first step" if facts.config.kind == "sample" else "first training step"
        return measured("none", f"none: the run ended before its {first}")
    name, words = method_text.training_method(facts.config)
    yes = "yes" if facts.config.kind == "grpo" else "no"
    return measured(name, f"{yes}: {words}, {counted(facts.steps_done, 'step')}")


def _base_model(facts: Facts) -> Answer:
    row, model = facts.run.base_model, dig(facts.manifest, "model")
    registered = {name: entry["sha256"] for name, entry in row.weights.items()}
    if model is None:
        value = {"name": row.name, "path": row.path, "revision": row.revision or None, "weights": registered}
        if not registered:
            at = f" at {row.revision}" if row.revision else ""
            return declared(value, f"{row.name}: {row.path}{at}", note=NO_MANIFEST)
        text = f"{row.name}: {row.path}, weights {short(row.weights_digest)} as registered"
        return measured(value, text, note=NO_MANIFEST)
    weights = dict(model["weights"])
    note = ""
    if registered:
        on_top = model.get("adapter") or model.get("checkpoint")
        same = registered.items() <= on_top.items() if on_top else weights == registered
        note = "The weights are those that were registered." if same else "The weights differ from those registered."
    value = {"name": row.name, **{name: model[name] for name in model if name != "provenance"}}
    first = next(iter(weights.values()), "")
    if row.checkpoint is not None:
        step, run = row.checkpoint.step, row.checkpoint.run
        value["trained_by"] = {"run": run.pk, "name": run.name, "step": step, "final": row.checkpoint.final}
        text = (
            f"{row.name}: the checkpoint of run {run.pk}, {run.name}, after step {count(step)}, "
            f"weights {short(row.weights_digest)}; {scaled(model['parameters'])} parameters, {model['dtype']}"
        )
        return measured(plain(value), text, note=note)
    text = (
        f"{row.name}: {model['source']}" + (f" at {model['revision']}" if model.get("revision") else "") + f", "
        f"{scaled(model['parameters'])} parameters, {model['dtype']}; {len(weights)} weights "
        f"file{'' if len(weights) == 1 else 's'}" + (f", {short(first)}" if first else "")
    )
    return measured(plain(value), text, note=note)


def _context(facts: Facts) -> Answer:
    """How many tokens the model was made for, next to how many this run gave it."""
    most = dig(facts.manifest, "data", "train", "prompt_tokens", "max")
    value: dict[str, Any] = {"context": dig(facts.manifest, "model", "context")}
    if isinstance(facts.config, ScoredConfig):
        longest = facts.config.sampling.max_completion_tokens
        used = f"prompts of at most {count(most)}" if most is not None else "prompts of a length not reported"
        done = "were trained on" if facts.config.kind == "grpo" else "were sampled"
        text = f"{used} and completions of at most {count(longest)} tokens {done}"
        value |= {"prompt_tokens": most, "completion_tokens": longest}
    else:
        longest = facts.config.data.max_tokens
        text = f"texts of at most {count(longest)} tokens were trained on"
        value |= {"text_tokens": longest}
    if value["context"] is None:
        if facts.manifest is None:
            return not_measured(NO_MANIFEST)
        return not_stated(f"The model's config names none. {text.capitalize()}.").model_copy(update={"value": value})
    return measured(value, f"{count(value['context'])} tokens; {text}")


def _ended_well(facts: Facts) -> str:
    """ "ok", or "early_stop"."""
    return str((facts.outcome or {}).get("code", "ok"))


def _reference(facts: Facts) -> Answer:
    config = facts.run.grpo_config
    algorithm, text = config.algorithm, method_text.reference(config)
    if not algorithm.needs_reference:
        return declared(None, text)
    value = {"policy": "base model", "kl_coef": algorithm.kl.coef, "reference": algorithm.reference.model_dump()}
    return declared(value, text)


def _old_policy(facts: Facts) -> Answer:
    text = "the policy at the start of each step, which sampled that step's completions; held in memory"
    stored = [
        {
            "after_step": snapshot.step,
            "weights": {
                name: snapshot.files[name]["sha256"] for name in weight_files(snapshot) if name in snapshot.files
            },
            "kept": snapshot.removed_at is None or snapshot.stored_at is not None,
        }
        for snapshot in facts.snapshots
    ]
    kept = sum(bool(snapshot["kept"]) for snapshot in stored)
    if stored:
        text += (
            f"; {count(len(stored))} of them were written as checkpoints, of which {count(kept)} were left at the seal"
        )
    else:
        text += ", not stored"
    note = "The value has the SHA-256 of the weights of every one that was written." if stored else ""
    if facts.config.algorithm.dynamic_sampling.enabled:
        note += (
            " Groups left over from a step are trained on in a later one; their old policy is the one that sampled "
            "them."
        )
    value = {"refreshed": "every step", "stored": stored}
    return (measured if stored else declared)(value, text, note=note.strip())


def _weights(files: dict[str, Any]) -> dict[str, str]:
    """{file: sha256} of a checkpoint's model; adapters and optimiser state are in subfolders."""
    return {name: entry["sha256"] for name, entry in files.items() if name.endswith(".safetensors") and "/" not in name}


def _trained(facts: Facts) -> Answer:
    saved = facts.checkpoint
    if saved is None:
        if not facts.config.checkpoints.final:
            return declared(None, "not kept (checkpoints.final is off)")
        return measured(None, "none: the run ended before weights were saved")
    weights = list(_weights(saved.files).values())
    text = f"{len(saved.files)} file{'' if len(saved.files) == 1 else 's'} written after step {saved.step}"
    if weights:
        text += f", weights {short(weights[0])}"
    where = "Kept where it was trained; not part of this card, whose attestation names every file."
    if facts.best is not None and facts.best.step is not None and facts.best.step < saved.step:
        score = f" ({percent(facts.best.score)})" if facts.best.score is not None else ""
        when = f"those after step {facts.best.step}" if facts.best.step else "those before training"
        where += f" These are the last weights; the best by {facts.best.by}{score} were {when}."
    value = {"path": saved.path, "step": saved.step, "attempt": saved.attempt.fence, "files": saved.files}
    return measured(value, text, note=where)


# ---------------------------------------------------------------------- code and environment


def environment(facts: Facts) -> Environment:
    return Environment(
        code=_code(facts),
        packages=_packages(facts),
        machine=_machine(facts),
        seeds=declared(
            {"run": facts.config.seed},
            f"{facts.config.seed}",
            note="One training seed: nothing follows about how the recipe varies.",
        ),
    )


def _code(facts: Facts) -> Answer:
    code = dig(facts.manifest, "code")
    if code is None:
        return not_measured(NO_MANIFEST)
    commit, dirty = code.get("git_commit"), code.get("dirty_sha256")
    text = f"Cohort {code.get('version')}"
    if commit:
        text += f" at commit {commit[:12]}" + (f" with uncommitted changes, {short(dirty)}" if dirty else "")
    note = "" if commit else "Installed as a package: there is no commit to name."
    return measured(plain(code), text, note=note)


def _packages(facts: Facts) -> Answer:
    packages = dig(facts.manifest, "packages")
    if packages is None:
        return not_measured(NO_MANIFEST)
    return measured(
        plain(packages), ", ".join(f"{name} {number}" for name, number in sorted(packages.items())) or "none"
    )


def _machine(facts: Facts) -> Answer:
    machine = dig(facts.manifest, "platform")
    if machine is None:
        return not_measured(NO_MANIFEST)
    device = machine.get("device")
    hardware = machine.get("processor") if device == "cpu" else device
    text = f"{hardware or 'device not reported'}" + (f", {machine.get('threads')} threads" if device == "cpu" else "")
    if machine.get("ranks", 1) > 1:
        text += f"; {machine['ranks']} processes"
    if machine.get("python"):
        text += f"; Python {machine['python']}"
    sandbox = dig(facts.manifest, "sandbox")
    return measured(plain(machine | ({"sandbox": sandbox} if sandbox else {})), text)
