"""Sampled completions that were discarded or kept, and the commitments to all of them."""

from typing import Any

from cohort.evidence.canonical import dig
from cohort.records.answers import count, measured, not_measured, number, of, scaled, short
from cohort.records.facts import Facts, TracesInCard
from cohort.records.fields import Rejected
from cohort.records.schema_types import Answer
from cohort.records.sections import absence, method_text
from cohort.records.sections.by_kind import absent_section
from cohort.records.sections.sampled import dropped_completions
from cohort.records.sections.subject import NO_MANIFEST, NO_TOTALS
from grpo_core.config.kinds import ScoredConfig
from grpo_core.config.run import RunConfig
from grpo_core.config.sample import SampleConfig
from grpo_core.stats.paired import EQUAL_TOLERANCE


def rejected(facts: Facts, *, traces: TracesInCard) -> Rejected:
    config, missing = facts.config, not_measured(NO_TOTALS)
    own = {"problems": _dropped(facts), **dict(absent_section(config.kind, Rejected))}
    if isinstance(config, ScoredConfig):
        own |= {
            "truncated": _truncated(facts, config) if facts.totals else missing,
            "traces": _traces(facts, config, traces),
            "not_stored": absence.not_stored(facts),
            "redacted": absence.redacted(facts.absent),
            "commitments": _commitments(facts, config),
        }
    if isinstance(config, RunConfig):
        own["samples"] = _samples(facts, config) if facts.totals else missing
        own["groups"] = _groups(facts, config) if facts.totals else missing
    elif isinstance(config, SampleConfig):
        own["samples"] = dropped_completions(facts)
    return Rejected(**own)


_CAUSES = {
    "reward_error": "without a reward",
    "truncated": "truncated at the token limit",
    "importance": "sampler and trainer too far apart",
}


def _samples(facts: Facts, config: RunConfig) -> Answer:
    """Completions left out of the update, by cause. An outcome without causes had a single one."""
    totals, algorithm = facts.totals, config.algorithm
    causes = {cause: totals[f"masked_{cause}"] for cause in _CAUSES if f"masked_{cause}" in totals}
    by_cause = [f"{count(number)} {_CAUSES[cause]}" for cause, number in causes.items() if number]
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
    return measured(value, text + (f": {', '.join(by_cause)}" if others and by_cause else ""), note=" ".join(notes))


_REASONS = {
    "all_right": "all right",
    "all_wrong": "all wrong",
    "all_equal": "equal otherwise",
    "unscored": "not scored",
}


def _groups(facts: Facts, config: RunConfig) -> Answer:
    totals, algorithm = facts.totals, config.algorithm
    names = ["groups", "groups_mixed", "groups_phantom", "groups_all_equal", "groups_unscored"]
    phantom = totals["groups_phantom"]
    silent = totals["groups_all_equal"] + totals["groups_unscored"] + (phantom if algorithm.gates_by_success else 0)
    notes = [f"Rewards count as equal within {number(EQUAL_TOLERANCE)}, of their size where that is above 1."]
    if phantom:
        gated = "were not learned from" if algorithm.gates_by_success else "were learned from all the same"
        success = config.reward.success_component
        notes.append(f"In {of(phantom, totals['groups'])} groups rewards differed and {success} did not; they {gated}.")
    discarded = totals.get("groups_discarded", 0.0)
    if algorithm.dynamic_sampling.enabled:
        names += [name for name in ("groups_discarded", *(f"discarded_{why}" for why in _REASONS)) if name in totals]
        whys = [f"{count(totals.get(f'discarded_{why}', 0))} {words}" for why, words in _REASONS.items()]
        notes.append(f"Dynamic sampling discarded {count(discarded)} groups ({', '.join(whys)}) and drew others.")
    if sentence := method_text.silent_groups(algorithm, remaining=silent > discarded or silent == 0):
        notes.append(sentence)
    gated = ", none of what means right varied" if phantom and algorithm.gates_by_success else ""
    text = f"{of(silent, totals['groups'])} groups: all rewards equal{gated}, or fewer than two scored"
    value = {name: totals[name] for name in names} | {
        "phantom_share": phantom / totals["groups"] if totals["groups"] else 0.0,
        "phantom_learned_share": phantom / totals["groups"] if phantom and not algorithm.gates_by_success else 0.0,
        "signal_gate": algorithm.signal_gate,
        "equal_tolerance": EQUAL_TOLERANCE,
    }
    return measured(value, text, note=" ".join(notes))


def _truncated(facts: Facts, config: ScoredConfig) -> Answer:
    totals, overlong = facts.totals, config.algorithm.overlong
    if isinstance(config, SampleConfig):
        note = "They are dropped." if config.filter.finished else "They are scored and may be kept like the others."
    elif overlong.mask_truncated:
        note = "They are scored, count in their group's mean, and are left out of the update."
    elif overlong.buffer_tokens is not None:
        note = f"They lose {scaled(overlong.penalty)} of their reward and are used like the others."
    else:
        note = "They are scored and used like the others."
    value = {"truncated": totals["truncated"], "of": totals["samples"]}
    text = f"{of(totals['truncated'], totals['samples'])} completions reached the token limit"
    return measured(value, text, note=note)


def _dropped(facts: Facts) -> Answer:
    train = dig(facts.manifest, "data", "train")
    if train is None:
        return not_measured(NO_MANIFEST)
    heldout = dig(facts.manifest, "data", "eval") or {}
    dropped, also = int(train.get("dropped", 0)), int(heldout.get("dropped", 0))
    if not isinstance(facts.config, ScoredConfig):
        longest = facts.config.data.max_tokens
        text = f"{count(dropped)} rows with a text over {count(longest)} tokens"
        return measured({"train": dropped, "max_tokens": longest}, text)
    limit = facts.config.data.max_prompt_tokens
    text = f"{count(dropped)} training and {count(also)} held-out problems with a prompt over {limit} tokens"
    unread = {"train": int(train.get("unreadable", 0)), "heldout": int(heldout.get("unreadable", 0))}
    if any(unread.values()):
        text += f"; {count(unread['train'])} and {count(unread['heldout'])} whose reference the reward cannot read"
    value = {"train": dropped, "heldout": also, "max_prompt_tokens": limit, "unreadable": unread}
    return measured(value, text)


def _traces(facts: Facts, config: ScoredConfig, in_card: TracesInCard) -> Answer:
    whole = facts.totals.get("groups", facts.steps_done * config.sampling.prompts_per_step)
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
        where = "in traces/ of the cards for authorities and for the project"
        return measured(value, f"{text}, {where}", evidence="recomputable", note=note)
    shown = f"{count(in_card.groups)} of them in traces/ of the cards for authorities and for the project"
    text += f"; {shown}" if in_card.groups else "; none of them in any card"
    rest = f"The rest, from step {in_card.cut_at} on, is too large for a card and stays on the platform."
    return measured(value, text, note=f"{note} {rest}".strip())


def _commitments(facts: Facts, config: ScoredConfig) -> Answer:
    committed = facts.committed
    if not committed.leaves:
        why = "No step was trained." if not facts.steps_done else "This trainer made no commitments."
        return not_measured(why)
    value = {
        "leaves": committed.leaves,
        "steps": committed.steps,
        "superseded": committed.superseded,
        "run_root": committed.root,
        "file": "commitments.jsonl",
    }
    text = f"{count(committed.leaves)} salted hashes in commitments.jsonl, root {short(committed.root)}"
    if committed.superseded:
        text += f"; {count(committed.superseded)} of superseded steps are among them"
    note = (
        "One of each completion, kept or not, made by the trainer in the step that sampled it. A completion that is "
        "shown with its salt can be checked against its hash; the hash alone reveals nothing of it."
    )
    if config.algorithm.dynamic_sampling.enabled:
        note += " One that was held over for a later step has another hash there."
    if (without := facts.history.steps - committed.steps) > 0:
        note += f" {count(without)} step{'' if without == 1 else 's'} made none."
    return measured(value, text, evidence="recomputable", note=note)
