"""Records cross the wire unchanged, and hold nothing that JSON cannot."""

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from grpo_core import records

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
SCORE = records.ComponentScore(value=1.0, passed=True, detail="82", seconds=0.25)
SAMPLE = records.Sample(
    index=0,
    completion="<answer>82</answer>\u202e",
    tokens=9,
    finish_reason="eos",
    reward=1.2,
    components={"right": SCORE},
    advantage=-0.5,
)
GROUP = {"step": 1, "index": 0, "problem_id": "add-37-45", "prompt": "what is 37 + 45?", "answer": "82"}
GROUP |= {"reward_mean": 1.2, "reward_std": 0.0, "signal": "all_equal"}
ITEM = {"phase": "before", "suite": "holdout", "problem_id": "a", "prompt": "p", "answer": "1", "completion": "c"}
ITEM |= {"score": 0.5, "truncated": False, "tokens": 3}
RESULT = {"phase": "after", "suite": "holdout", "problems": 2, "correct": 1.5, "truncated": 0, "errors": 0}
RESULT |= {"mean_tokens": 3.5, "seconds": 0.1, "protocol": {"seed": 0}}
ALL: list[records.Record] = [
    records.Event(type="warning", message="one line", data={"line": 3}),
    records.PhaseStarted(phase="training", total=110),
    records.Manifest(code={}, packages={}, platform={}, model={}, data={}, seeds={"run": 0}, config_digest="0" * 64),
    records.StepMetrics(step=1, metrics={"reward": 0.5}, seconds={"total": 1.5}),
    records.Group(**GROUP, samples=(SAMPLE, SAMPLE)),
    records.EvalItem(**ITEM),
    records.EvalResult(**RESULT),
    records.CheckpointManifest(
        step=3,
        path="checkpoints/final",
        files={"model.safetensors": records.FileEntry(size=3, sha256="ab")},
        final=True,
    ),
    records.CheckpointRemoved(step=1, path="checkpoints/step-000001"),
    records.Resumed(
        step=2,
        checkpoint="checkpoints/step-000002",
        skipped=(records.SkippedCheckpoint(path="checkpoints/step-000003", reason="state.json was changed"),),
    ),
    records.Commitments(step=1, count=1, leaves="A" * 43 + "="),
    records.Outcome(status="failed", code="data_error", message="line 3", steps_done=3, steps_planned=110),
]


@pytest.mark.parametrize("record", ALL, ids=lambda record: record.kind)
def test_every_record_comes_back_as_it_was(record: records.Record) -> None:
    envelope = records.Envelope(seq=7, at=AT, record=record)
    assert records.ENVELOPE.validate_json(envelope.model_dump_json()) == envelope


def test_every_kind_is_covered() -> None:
    kinds = records.ENVELOPE.json_schema()["properties"]["record"]["discriminator"]["mapping"]
    assert {record.kind for record in ALL} == set(kinds)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_must_be_finite(number: float) -> None:
    with pytest.raises(ValidationError):
        records.StepMetrics(step=1, metrics={"kl": number})
    with pytest.raises(ValidationError):
        records.ComponentScore(value=number)


@pytest.mark.parametrize(
    "changed",
    [
        {"seq": 0},
        {"at": datetime(2026, 1, 1)},
        {"record": {"kind": "event", "type": "a", "message": "b", "x": 1}},
        {"record": {"kind": "rumour"}},
    ],
    ids=["seq 0", "no time zone", "unknown field", "unknown kind"],
)
def test_what_is_no_envelope_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        records.ENVELOPE.validate_python({"seq": 1, "at": AT, "record": ALL[0].model_dump(), **changed})
