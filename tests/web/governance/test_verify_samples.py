"""Completions against the run's commitments, and one shown alone with its proof; forged traces are in the table of
test_verify_forged.py."""

import json
from pathlib import Path
from typing import Any

import pytest

from cohort.evidence.canonical import canonical
from cohort.evidence.merkle import EMPTY_ROOT, root
from cohort.evidence.samples import Commitments, SampleFault, sample_leaf, sample_proof
from cohort.evidence.verify import main
from cohort.evidence.verify.check import Beside
from grpo_core import commitments as trainer
from grpo_core import records
from tests.factories import small_cards
from tests.factories.small_cards import Log, card, check, faults, group, packed, sample_content


def committed() -> Commitments:
    return Commitments(json.loads(line) for line in small_cards.commitments().splitlines())


def test_a_leaf_is_the_trainers() -> None:
    told = {"index": 0, "completion": "<answer>é</answer>", "tokens": 7, "finish_reason": "eos", "reward": 0.5}
    sample = records.Sample.model_validate({**told, "components": {}, "advantage": -1.0})
    problem = {"step": 3, "index": 1, "problem_id": "a", "prompt": "1 + 1?", "answer": "2"}
    rewards = {"reward_mean": 0.5, "reward_std": 0.0, "signal": "mixed"}
    made = records.Group.model_validate({**problem, **rewards, "samples": (sample,)})
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
    for step, position in ((2, 4), (4, 0)):
        with pytest.raises(SampleFault):
            found.index(step, position)


def test_commitments_other_than_the_log_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_cards, "run_root", lambda _: "0" * 64)
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
    made = card(Log())
    for number in range(12):
        step, index, at = number // 4 + 1, number // 2 % 2, number % 2
        assert check(made, Beside(sample=proof(step, index, at))).accepted


def test_a_sample_that_is_changed_or_of_another_run() -> None:
    made, good = card(Log()), proof()
    content = good["sample"]
    changes: list[dict[str, Any]] = [
        {"sample": {**content, "completion": "else"}},
        {"sample": {**content, "reward": 0.0}},
        {"sample": {}},
        {"salt": "0" * 32},
        {"salt": "no"},
        {"index": good["index"] - 1},
        {"path": good["path"][::-1]},
        {"path": ["x"]},
        {"run_root": "0" * 64},
        {"size": 17},
        {"more": 1},
    ]
    for one in (*({**good, **change} for change in changes), {}, [], "x"):
        assert list(faults(check(made, Beside(sample=one)))) == ["sample"], one
