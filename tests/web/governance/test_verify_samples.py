"""Completions against the run's commitments: in trace files, redacted, and one shown alone with its proof."""

import json
from pathlib import Path
from typing import Any

import pytest

from cohort.evidence.canonical import canonical
from cohort.evidence.merkle import EMPTY_ROOT, root
from cohort.evidence.samples import Commitments, SampleFault, check_trace, sample_leaf, sample_proof
from cohort.evidence.verify import main
from cohort.evidence.verify.check import Beside
from cohort.evidence.verify.report import Report
from grpo_core import commitments as trainer
from grpo_core import records
from tests.web.governance import card_made
from tests.web.governance.card_made import Log, card, check, faults, group, lines, packed, reissued, sample_content

TRACES = "traces/steps-000001-000100.jsonl"


def read(content: bytes) -> list[Any]:
    return [json.loads(line) for line in content.splitlines()]


def committed() -> Commitments:
    return Commitments(read(card_made.commitments()))


def shown(traces: list[Any]) -> Report:
    """A card whose holder of the platform's key put these traces into it."""
    log = Log()
    return check(reissued(log, card(log), lambda inside: inside.update({TRACES: lines(traces)})))


def test_a_leaf_is_the_trainers() -> None:
    sample = records.Sample(
        index=0,
        completion="<answer>é</answer>",
        tokens=7,
        finish_reason="eos",
        reward=0.5,
        components={},
        advantage=-1.0,
    )
    made = records.Group(
        step=3, index=1, problem_id="a", prompt="1 + 1?", answer="2", reward_mean=0.5, reward_std=0.0, signal="mixed",
        samples=(sample,),
    )  # fmt: skip
    ((salted,), committed) = trainer.commit([made])
    (leaf,) = trainer.unpack(committed.leaves)
    content = trainer.sample_content(salted, salted.samples[0])
    assert sample_leaf(str(salted.samples[0].salt), content) == leaf


def test_the_runs_root_is_over_all_attempts_in_order() -> None:
    found = committed()
    assert found.count == 16
    assert found.root() == root(leaf for line in found.lines for leaf in line.leaves)
    assert Commitments([]).root() == EMPTY_ROOT
    assert found.standing(2) is found.lines[2]  # the second attempt's
    assert found.index(2, 0) == 8
    with pytest.raises(SampleFault):
        found.index(2, 4)
    with pytest.raises(SampleFault):
        found.index(4, 0)


def test_a_run_without_commitments() -> None:
    log = Log()
    made = card(log)
    report = check(reissued(log, made, lambda inside: inside.update({"commitments.jsonl": b""})))
    assert report.accepted
    said = next(one for one in report.checks if one.name == "completions")
    assert "6 completions of steps whose trainer made no commitments: nothing binds them" in said.detail


@pytest.mark.parametrize("field", ["completion", "reward", "advantage", "tokens", "finish_reason", "salt"])
def test_a_trace_with_one_value_changed(field: str) -> None:
    changed = group(3, 1)
    value = changed["samples"][1][field]
    changed["samples"][1][field] = (
        value + 1 if isinstance(value, int | float) else value[:-1] + ("0" if value[-1] != "0" else "1")
    )
    found = faults(shown([group(1, 0), changed]))
    assert "line 2: step 3, group 1, sample 1: is not what was committed to" in found["completions"]


@pytest.mark.parametrize("field", ["problem_id", "prompt"])
def test_a_trace_of_another_problem(field: str) -> None:
    found = faults(shown([{**group(1, 0), field: "else"}]))
    assert "step 1, group 0, sample 0: is not what was committed to" in found["completions"]


def test_samples_moved_dropped_or_of_another_attempt() -> None:
    whole = group(1, 1)
    for samples in (whole["samples"][::-1], whole["samples"][:1], whole["samples"] + whole["samples"], []):
        assert "completions" in faults(shown([{**whole, "samples": samples}]))
    assert "completions" in faults(shown([{**group(1, 1), "index": 0}]))
    assert "completions" in faults(shown([{**group(1, 1), "index": 7}]))
    assert "completions" in faults(shown([{**group(1, 1), "step": 3}]))


def test_a_redacted_sample_leaves_all_else_checked() -> None:
    traces = [group(1, 0), group(1, 1)]
    traces[0]["samples"][1] = {"index": 1, "redacted": True}
    assert shown(traces).accepted
    traces[0]["samples"][1] = {"index": 1, "redacted": True, "reward": 1.0}
    assert "marked as redacted and still says something" in faults(shown(traces))["completions"]
    traces[0]["samples"][1] = {"index": 1}
    assert "completions" in faults(shown(traces))


@pytest.mark.parametrize(
    "line",
    [None, [], {}, {"step": 1}, {"step": "1", "index": 0, "samples": [1]}, {"step": 1, "index": 0, "samples": [1]},
     {"step": 1, "index": -1, "samples": [{}]}],
    ids=repr,
)  # fmt: skip
def test_lines_that_are_no_traces(line: Any) -> None:
    with pytest.raises(SampleFault):
        check_trace(line, committed())
    assert "completions" in faults(shown([line]))


def changed(at: int, **values: Any) -> list[Any]:
    found = read(card_made.commitments())
    found[at] |= values
    return found


@pytest.mark.parametrize(
    "values",
    [
        read(card_made.commitments())[::-1],
        read(card_made.commitments()) * 2,
        changed(1, superseded=False),
        changed(0, count=3),
        changed(0, count=True),
        changed(0, step=-1),
        changed(0, leaves="AAAA"),
        changed(0, leaves=None),
        changed(0, superseded=0),
        changed(0, more=1),
        [None],
        [{}],
    ],
    ids=range(12),
)  # fmt: skip
def test_commitments_that_are_none(values: list[Any]) -> None:
    with pytest.raises(SampleFault):
        Commitments(values)
    log = Log()
    found = faults(check(reissued(log, card(log), lambda inside: inside.update({"commitments.jsonl": lines(values)}))))
    assert found["completions"].startswith("commitments.jsonl, line ")


def test_commitments_other_than_the_log_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card_made, "run_root", lambda _: "0" * 64)
    found = faults(check(card(Log())))
    assert set(found) == {"completions"}
    assert f"and the log says '{'0' * 64}'" in found["completions"]
    monkeypatch.undo()
    made = card(Log())
    shorter = b"".join(made["commitments.jsonl"].splitlines(keepends=True)[:-1])
    assert {"sealed files", "attestation", "completions"} <= set(faults(check({**made, "commitments.jsonl": shorter})))


# ---------------------------------------------------------------------- one sample alone


def proof(step: int = 3, index: int = 1, at: int = 1) -> dict[str, Any]:
    line = group(step, index)
    content = sample_content(line, at)
    return sample_proof(committed(), position=2 * index + at, salt=line["samples"][at]["salt"], content=content)


def test_one_sample_shown_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    public = tmp_path / "card.zip"
    public.write_bytes(packed(card(Log(), audience="public")))
    (tmp_path / "sample.json").write_bytes(canonical(proof()))
    assert main([str(public), "--trace", str(tmp_path / "sample.json")]) == 0
    assert "step 3, group 1, sample 1 is in this run's tree: 20 characters, reward 1" in capsys.readouterr().out
    for step in (1, 2, 3):
        for index in range(2):
            for at in range(2):
                assert check(card(Log()), Beside(sample=proof(step, index, at))).accepted


def test_a_sample_that_is_changed_or_of_another_run() -> None:
    made, good = card(Log()), proof()
    bad = [
        {**good, "sample": {**good["sample"], "completion": "else"}},
        {**good, "sample": {**good["sample"], "reward": 0.0}},
        {**good, "salt": "0" * 32},
        {**good, "salt": "no"},
        {**good, "index": good["index"] - 1},
        {**good, "path": good["path"][::-1]},
        {**good, "path": ["x"]},
        {**good, "run_root": "0" * 64},
        {**good, "size": 17},
        {**good, "more": 1},
        {**good, "sample": {}},
        {},
        [],
        "x",
    ]
    for one in bad:
        found = faults(check(made, Beside(sample=one)))
        assert found["sample"].startswith("the sample "), one
