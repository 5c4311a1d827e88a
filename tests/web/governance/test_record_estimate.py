"""The record says what was estimated before the launch, what the steps took and how wrong the estimate was; a record
from before there were estimates stays valid."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from cohort.accounts.models import User
from cohort.evidence.record import record_root, seal_of
from cohort.evidence.schema_check import faults
from cohort.governance.fields import ADDED
from cohort.governance.parts import Entry
from cohort.governance.schema import Document, json_schema
from cohort.governance.services import record_seal
from cohort.governance.shown import shown
from cohort.lab.models import JobKind, JobState, LabJob, LaunchEstimate
from cohort.runs.models import Run, StepMetric
from tests import sealed_run
from tests.web.governance.record_reading import document

pytestmark = pytest.mark.django_db(transaction=True)
Launch = Callable[..., Run]


def estimated(run: Run, actor: User, **other: Any) -> LaunchEstimate:
    told: dict[str, Any] = {
        "config_digest": "c" * 64,
        "device": "cpu",
        "device_name": "AMD EPYC",
        "seconds_per_step": 0.5,
        "seconds_total": 130.0,
        "parts": {"sample": 0.3, "update": 0.2},
        "peak_memory_bytes": 3_000_000_000,
        "completion_tokens": 21.5,
        "length_from": "calibration",
        "prompts": 8,
        "calibration_seconds": 4.0,
        "spread": {"seconds_per_step": [0.4, 0.7]},
    } | other
    job = LabJob.objects.create(
        project=run.project,
        kind=JobKind.ESTIMATE,
        spec={},
        spec_digest="",
        result=told,
        state=JobState.DONE,
        created_by=actor,
    )
    return LaunchEstimate.objects.create(run=run, job=job, estimate=told, by=actor)


def test_estimate_actual_and_error(launch: Launch, alice: User) -> None:
    run = sealed_run.finished(launch())
    steps = list(StepMetric.objects.filter(run=run).order_by("step"))
    totals = [0.4, 0.3, 9.0] + [0.4] * max(0, len(steps) - 3)
    for at, row in enumerate(steps):
        row.seconds, row.metrics = {"total": totals[at]}, {**row.metrics, "memory/peak_bytes": 1e9 * (at + 1)}
        row.save(update_fields=["seconds", "metrics"])
    noted = estimated(run, alice)
    said = document(record_seal(run=run))
    middle = sorted(totals[: len(steps)])
    actual = middle[len(steps) // 2] if len(steps) % 2 else (middle[len(steps) // 2 - 1] + middle[len(steps) // 2]) / 2
    time = said.entry("budget.step_time")
    assert isinstance(time, Entry)
    assert isinstance(time.value, dict)
    assert time.source == "measured"
    assert (time.value["estimate"], time.value["low"], time.value["high"]) == (0.5, 0.4, 0.7)
    assert time.value["actual"] == pytest.approx(actual)
    assert time.value["relative_error"] == pytest.approx((0.5 - actual) / actual)
    assert time.value["estimate_source"] == f"calibration on AMD EPYC, job {noted.job_id}"
    assert time.value["actual_source"] == "median of the steps that stand"
    assert time.text.startswith("estimated 0.5 s, took ")
    memory = said.entry("budget.peak_memory")
    assert isinstance(memory, Entry)
    assert isinstance(memory.value, dict)
    assert memory.value["actual"] == 1e9 * len(steps)
    assert memory.value["relative_error"] == pytest.approx(3 / len(steps) - 1)


def test_not_stated_without_one(launch: Launch) -> None:
    said = document(sealed_run.sealed(launch()))
    for path in sorted(ADDED):
        entry = said.entry(path)
        assert isinstance(entry, Entry)
        assert (entry.source, entry.value) == ("not stated", None)
        assert entry.note == "Nothing was measured of this config before the launch."


def test_an_estimate_of_a_run_that_told_no_memory(launch: Launch, alice: User) -> None:
    run = sealed_run.finished(launch())
    estimated(run, alice)
    entry = document(record_seal(run=run)).entry("budget.peak_memory")
    assert isinstance(entry, Entry)
    assert isinstance(entry.value, dict)
    assert entry.value["actual"] is None
    assert "actual not told" in entry.text


def test_a_record_from_before_them_is_valid_and_shown(launch: Launch) -> None:
    whole = json.loads(sealed_run.sealed(launch()).document)
    for path in ADDED:
        section, _, name = path.partition(".")
        del whole["sections"][section][name]
    whole["record_root"] = record_root(whole)
    whole["seal"] = seal_of(whole)
    assert not list(faults(whole, json_schema()))
    old = Document.model_validate(whole)
    assert not {row.path for block in shown(old).blocks for row in block.rows} & ADDED
    del whole["sections"]["budget"]["time"]
    assert list(faults(whole, json_schema())), "any other field must be there"
    with pytest.raises(ValueError, match=r"budget\.time"):
        Document.model_validate(whole)
