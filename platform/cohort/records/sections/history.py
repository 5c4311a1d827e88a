"""Fields about the history of a run: attempts, superseded work, interventions, earlier records."""

from typing import Any

from cohort.evidence.plain_text import counted
from cohort.records.answers import count, measured, moment, short, span
from cohort.records.facts import Facts
from cohort.records.schema_types import Answer
from cohort.records.sections.history_facts import Tried

_STEERED = {
    "retried": "retried",
    "extended": "extended",
    "pause_asked": "paused",
    "paused": "paused",
    "resumed": "resumed",
    "cancelled": "cancelled while it was paused",
}


def attempts(facts: Facts) -> Answer:
    """Every try: where, from which checkpoint, how far, how it ended and why."""
    tries = facts.history.tries
    text = "; ".join(_in_words(tried) for tried in tries)
    text = f"{len(tries)} attempts: {text}" if len(tries) > 1 else f"attempt {text}" if tries else "none"
    return measured([_value(tried) for tried in tries], text)


def _value(tried: Tried) -> dict[str, Any]:
    attempt = tried.attempt
    return {
        "number": attempt.fence,
        "node": attempt.node.name,
        "gpus": attempt.gpus,
        "began": attempt.claimed_at.isoformat(),
        "ended": attempt.ended_at.isoformat() if attempt.ended_at else None,
        "end": attempt.state,
        "code": attempt.end_code,
        "reason": attempt.end_reason,
        "from_checkpoint_at_step": attempt.resumed_step,
        "first_step": tried.first_step,
        "last_step": tried.last_step,
        "steps": tried.steps,
        "superseded_steps": tried.superseded_steps,
        "stands_through_step": attempt.valid_through,
        "device_seconds": round(tried.device_seconds, 1),
    }


def _in_words(tried: Tried) -> str:
    attempt = tried.attempt
    text = f"{attempt.fence} on {attempt.node.name}"
    if attempt.resumed_step is not None:
        text += f", from the checkpoint at step {count(attempt.resumed_step)}"
    if tried.first_step is not None and tried.last_step is not None:
        steps = f"{count(tried.first_step)} to {count(tried.last_step)}"
        text += f", step{f' {count(tried.first_step)}' if tried.steps == 1 else f's {steps}'}"
    else:
        text += ", no step"
    text += f", {attempt.get_state_display().lower()}"
    if attempt.end_code not in ("", "ok", attempt.state):
        text += f" ({attempt.end_code})"
    return text + (f", {count(tried.superseded_steps)} superseded" if tried.superseded_steps else "")


def superseded(facts: Facts) -> Answer:
    """What was recorded, and rewarded, and then replaced because a later attempt resumed from an earlier step."""
    past = facts.history
    value = {
        "steps": past.superseded_steps,
        "tokens": past.superseded_tokens,
        "groups_kept": past.superseded_groups,
        "samples_kept": past.superseded_samples,
        "evaluations": past.superseded_evaluations,
    }
    note = "Of a step in hand when an attempt ended nothing was recorded, so it is in no count."
    if not any(value.values()):
        return measured(value, "none", note=note if len(past.tries) > 1 else "")
    tokens = "tokens not reported" if past.superseded_tokens is None else f"{count(past.superseded_tokens)} tokens"
    text = (
        f"{counted(past.superseded_steps, 'step')} with {tokens}; {counted(past.superseded_groups, 'kept group')} with "
        f"{counted(past.superseded_samples, 'completion')}"
    )
    if past.superseded_evaluations:
        text += f"; {counted(past.superseded_evaluations, 'evaluation')}"
    stays = "They stay on the platform; the files of this card and all other fields are of what is current."
    return measured(value, text, note=f"{stays} {note}")


def steering(facts: Facts) -> Answer:
    """Who retried, extended, paused or resumed the run, and why."""
    steered = facts.history.steered
    value = [
        {"at": event.at.isoformat(), "by": event.actor, "what": event.what, "words": event.words, "data": event.data}
        for event in steered
    ]
    text = "; ".join(
        f"{_STEERED[event.what]} by {event.actor} on {moment(event.at)}"
        + (f": {event.words}" if event.what in ("retried", "extended") else "")
        for event in steered
    )
    extended = any(event.what == "extended" for event in steered)
    note = "Its length was changed after it was launched; the number of steps in the config is the last one."
    return measured(value, text or "none", note=note if extended else "")


def earlier_records(facts: Facts) -> Answer:
    """Records that were sealed at earlier ends of the run, and earlier versions of this one."""
    past = facts.history.earlier
    value = [
        {
            "end": record.end,
            "version": record.version,
            "attempt": record.fence,
            "sealed_at": record.sealed_at.isoformat(),
            "state": state,
            "seal": record.seal,
        }
        for record, state in past
    ]
    text = "; ".join(
        f"after attempt {record.fence}"
        + (f", version {record.version}" if record.version > 1 or record.end == facts.run.ends else "")
        + f", sealed {moment(record.sealed_at)}, the run {state}, seal {short(record.seal)}"
        for record, state in past
    )
    return measured(value, text or "none", note="This record takes their place; they stay as they are." if past else "")


def held(facts: Facts) -> str:
    """How long nodes were held, over all attempts."""
    number = len(facts.history.tries)
    text = f"{span(facts.history.held_seconds)} on nodes over {number} attempts"
    if facts.history.device_seconds > facts.history.held_seconds:
        text += f", {span(facts.history.device_seconds)} of devices"
    return text
