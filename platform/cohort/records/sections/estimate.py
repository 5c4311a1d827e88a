"""Estimates before the launch, the actual figures of the steps, and the error of the estimates."""

from typing import Any

from cohort.base.formatting import seconds_in_words, signed_percent
from cohort.lab.estimates import estimate_of
from cohort.lab.models import LaunchEstimate
from cohort.records.answers import measured, moment, not_stated, scaled
from cohort.records.facts import Facts
from cohort.records.schema_types import Answer
from grpo_core.records.estimate import MEMORY, SECONDS, Estimate, compared

NO_ESTIMATE = "Nothing was measured of this config before the launch."
_NO_STEPS = "No step of the run told it, so there is nothing to compare with."


def step_time(facts: Facts) -> Answer:
    return _answer(facts, SECONDS, seconds_in_words, "median of the steps that stand")


def peak_memory(facts: Facts) -> Answer:
    return _answer(facts, MEMORY, lambda size: scaled(size, "B"), "largest of the steps that stand")


def _answer(facts: Facts, name: str, words: Any, how: str) -> Answer:
    noted = facts.estimate
    if noted is None:
        return not_stated(NO_ESTIMATE)
    estimated = estimate_of(noted.estimate)
    event = compared(estimated, seconds=facts.step_seconds, memory=facts.step_memory)
    actual = event.data["actual"].get(name) if event else None
    error = event.data["error"].get(name) if event else None
    estimate = float(getattr(estimated, name))
    low_high = estimated.spread.get(name)
    value = {
        "estimate": estimate,
        "low": low_high[0] if low_high else None,
        "high": low_high[1] if low_high else None,
        "estimate_source": f"calibration on {estimated.device_name}, job {noted.job_id}",
        "actual": actual,
        "actual_source": how if actual is not None else None,
        "relative_error": error,
        "config_digest": estimated.config_digest,
    }
    text = f"estimated {words(estimate)}"
    if actual is None:
        text += ", actual not told"
    else:
        text += f", took {words(actual)}" + (
            "" if error is None else f": the estimate is off by {signed_percent(error)}"
        )
    note = f"{_calibration(noted, estimated)} {_how(how) if actual is not None else _NO_STEPS}"
    return measured(value, text, note=note)


def _calibration(noted: LaunchEstimate, estimated: Estimate) -> str:
    where = f" of {noted.job.node.name}" if noted.job.node is not None else ""
    when = moment(noted.job.finished_at)
    return f"The estimate: a calibration of {estimated.prompts} prompts on {estimated.device_name}{where}, {when}."


def _how(how: str) -> str:
    return f"The actual: {how}. The error is (estimate \N{MINUS SIGN} actual) / actual."
