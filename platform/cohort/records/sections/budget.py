"""What the run cost: all attempts, with superseded work shown separately."""

import re
from statistics import median
from typing import Any

from cohort.base.formatting import seconds_in_words, signed_percent
from cohort.evidence.canonical import dig
from cohort.evidence.plain_text import MINUS, counted
from cohort.lab.estimates import estimate_of
from cohort.records.answers import count, measured, moment, not_measured, scaled, span
from cohort.records.facts import Facts
from cohort.records.fields import Budget
from cohort.records.schema_types import Answer
from cohort.records.sections import history
from cohort.records.sections.compute import base_share, compute
from cohort.records.sections.subject import NO_TOTALS, steps_of
from grpo_core.config.kinds import ScoredConfig
from grpo_core.records.estimate import MEMORY, SECONDS, compared

_NO_STEPS = "No step of the run reported it, so there is nothing to compare with."


def _answer(facts: Facts, name: str, words: Any, how: str) -> Answer:
    """What the steps took, and where a calibration estimated it before the launch, how far off that was."""
    noted = facts.estimate
    if noted is None:
        return _unestimated(facts, name, words, how)
    estimated = estimate_of(noted.estimate)
    event = compared(estimated, seconds=facts.step_seconds, memory=facts.step_memory)
    actual = event.data["actual"].get(name) if event else None
    error = event.data["error"].get(name) if event else None
    estimate = float(getattr(estimated, name))
    low, high = estimated.spread.get(name) or (None, None)
    value = {
        "estimate": estimate,
        "low": low,
        "high": high,
        "estimate_source": f"calibration on {estimated.device_name}, job {noted.job_id}",
        "actual": actual,
        "actual_source": how if actual is not None else None,
        "relative_error": error,
        "config_digest": estimated.config_digest,
    }
    text = f"estimated {words(estimate)}"
    if actual is None:
        text += ", actual not reported"
    else:
        text += f", took {words(actual)}" + (
            "" if error is None else f": the estimate is off by {signed_percent(error)}"
        )
    where = f" of {noted.job.node.name}" if noted.job.node is not None else ""
    when = moment(noted.job.finished_at)
    note = f"The estimate: a calibration of {estimated.prompts} prompts on {estimated.device_name}{where}, {when}."
    basis = f"The actual: {how}. The error is (estimate {MINUS} actual) / actual." if actual is not None else _NO_STEPS
    return measured(value, text, note=f"{note} {basis}")


def _unestimated(facts: Facts, name: str, words: Any, how: str) -> Answer:
    values = facts.step_seconds if name == SECONDS else facts.step_memory
    if not values:
        return not_measured("No step of the run reported it, and nothing was estimated before the launch.")
    actual = median(values) if name == SECONDS else max(values)
    value = {"estimate": None, "actual": actual, "actual_source": how}
    note = f"The actual: {how}. Nothing was measured of this config before the launch."
    return measured(value, f"took {words(actual)}; nothing was estimated before the launch", note=note)


def budget(facts: Facts) -> Budget:
    planned, tries = facts.steps_planned, len(facts.history.tries)
    steps = measured(
        {"done": facts.steps_done, "planned": planned},
        f"{steps_of(facts.steps_done, planned)} in {counted(tries, 'attempt')}",
        evidence="recomputable",
    )
    missing = not_measured(NO_TOTALS)
    operations = compute(facts)
    return Budget(
        steps=steps,
        time=_time(facts),
        step_time=_answer(facts, SECONDS, seconds_in_words, "median of the current steps"),
        peak_memory=_answer(facts, MEMORY, lambda size: scaled(size, "B"), "largest of the current steps"),
        tokens=missing if facts.tokens is None else _tokens(facts, facts.tokens),
        superseded=history.superseded(facts),
        compute=operations,
        energy=_energy(facts),
        base_share=base_share(facts, operations),
    )


def _time(facts: Facts) -> Answer:
    past, seconds = facts.history, facts.totals.get("seconds")
    if not past.tries:
        return not_measured(NO_TOTALS)
    device = dig(facts.manifest, "platform", "device") or "a device not reported"
    value = {
        "seconds": None if seconds is None else round(seconds, 1),
        "device": device,
        "held_seconds": round(past.held_seconds, 1),
        "device_seconds": round(past.device_seconds, 1),
        "step_seconds": round(sum(tried.seconds for tried in past.tries), 1),
        "superseded_step_seconds": round(sum(tried.superseded_seconds for tried in past.tries), 1),
    }
    if len(past.tries) == 1:
        note = "In the trainer, from loading the model to the end; waits for a node, and sealing, are not in it."
        if seconds is None:
            note = "From the claim of its node to its release."
        return measured(value, f"{span(past.held_seconds if seconds is None else seconds)} on {device}", note=note)
    note = "From each claim of a node to its release: what was superseded or broken off is in it."
    by = facts.newest_attempt
    which = "the newest" if by is None or by.fence == facts.run.fence else f"attempt {by.fence}"
    return measured(value, f"{history.held(facts)}; {which} on {device}", note=note)


def _tokens(facts: Facts, tokens: float) -> Answer:
    besides = facts.history.superseded_tokens
    if not isinstance(facts.config, ScoredConfig):
        learned = facts.totals.get("completion_tokens")
        value = {"tokens": tokens, "answer_tokens": learned or None, "superseded_tokens": besides}
        text = f"{count(tokens)} tokens read" + (f", {count(learned)} of them answers" if learned else "")
        if facts.history.superseded_steps:
            text += f"; besides {'a number not reported' if besides is None else count(besides)} in superseded steps"
        return measured(value, text)
    samples = facts.totals.get("samples")
    value = {
        "completions": samples,
        "tokens": tokens,
        "superseded_tokens": besides,
        "tokens_with_superseded": None if besides is None else tokens + besides,
    }
    completions = "a number of completions not reported" if samples is None else f"{count(samples)} completions"
    text = f"{completions}, {count(tokens)} tokens with prompts"
    if facts.history.superseded_steps:
        text += f"; besides {'a number not reported' if besides is None else count(besides)} in superseded steps"
    note = f"As counted at the last step: {NO_TOTALS}." if samples is None else ""
    return measured(value, text, note=note)


def _energy(facts: Facts) -> Answer:
    """Measured by the trainer where it could; else estimated from how long devices were held, where their rated power
    is known; else not measured."""
    joules, meters = facts.totals.get("energy_joules"), dig(facts.manifest, "platform", "energy_meter")
    if joules is not None:
        value = {"joules": joules, "estimated": False, "meter": meters}
        note = f"By {meters}." if meters else ""
        if len(facts.history.tries) > 1:
            note += " Of the current work; what was superseded or broken off is not in it."
        return measured(value, _energy_words(joules), note=note.strip())
    device = dig(facts.manifest, "platform", "device")
    if device and (watts := rated_watts(str(device))) is not None and facts.history.device_seconds:
        joules = watts * facts.history.device_seconds
        devices = {dig(tried.attempt.manifest, "platform", "device") for tried in facts.history.tries}
        others = " Attempts on another device, or on one not reported, are counted as if on it."
        note = (
            f"No meter was read. Estimate: {span(facts.history.device_seconds)} of devices × {count(watts)} W, "
            f"the rated power of {device}; the rest of the machine and its cooling are not in it."
        )
        return measured(
            {"joules": joules, "estimated": True, "device": device, "rated_watts": watts},
            f"estimated: about {_energy_words(joules)}, were the devices at their rated power all the time",
            note=note + (others if devices - {device} else ""),
        )
    return not_measured("No meter was read, and the device's rated power is not known here.")


def _energy_words(joules: float) -> str:
    return f"{joules / 3.6e6:.3g} kWh" if joules >= 3.6e4 else f"{scaled(joules, 'J')}"


_WATTS = (
    (r"H200 NVL", 600.0),
    (r"H200", 700.0),
    (r"H100 PCIe", 350.0),
    (r"H100 NVL", 400.0),
    (r"H100 80GB HBM3|H100 SXM", 700.0),
    (r"A100-PCIE-40GB", 250.0),
    (r"A100 80GB PCIe", 300.0),
    (r"A100-SXM4", 400.0),
    (r"\bL40S\b", 350.0),
    (r"\bL4\b", 72.0),
    (r"RTX A6000", 300.0),
    (r"V100-PCIE", 250.0),
    (r"V100-SXM2", 300.0),
    (r"Tesla T4\b", 70.0),
    (r"RTX 4090\b", 450.0),
    (r"RTX 3090\b", 350.0),
)
"""(pattern of the device's name, thermal design power in watts); the first that fits counts."""


def rated_watts(device: str) -> float | None:
    """Of one device by the name that its driver gives; None where it is not known."""
    return next((watts for pattern, watts in _WATTS if re.search(pattern, device)), None)
