"""Records cross the wire unchanged and hold nothing that JSON cannot; which groups a run keeps; and the salted hashes
of every completion: what they bind, and what they do not tell."""

import hashlib
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from grpo_core.records import types as records
from grpo_core.records.commitments import commit, sample_content, unpack
from grpo_core.records.leaves import leaf
from grpo_core.records.types import Commitments, Group
from grpo_core.trainer.recorder import kept_groups, traces
from grpo_core.trainer.sampling import prompt_order
from tests.tables import cases

from .tiny import config

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
ALL = cases("core/records", "record")


@pytest.mark.parametrize("record", ALL)
def test_every_record_comes_back_as_it_was(record: dict[str, Any]) -> None:
    envelope = records.ENVELOPE.validate_python({"seq": 7, "at": AT, "record": record})
    assert envelope.record.model_dump(mode="json") == record
    assert records.ENVELOPE.validate_json(envelope.model_dump_json()) == envelope


def test_every_kind_is_covered() -> None:
    kinds = records.ENVELOPE.json_schema()["properties"]["record"]["discriminator"]["mapping"]
    assert {case.values[0]["kind"] for case in ALL} == set(kinds)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_must_be_finite(number: float) -> None:
    with pytest.raises(ValidationError):
        records.StepMetrics(step=1, metrics={"kl": number})
    with pytest.raises(ValidationError):
        records.ComponentScore(value=number)


EVENT = {"kind": "event", "type": "a", "message": "b"}


@pytest.mark.parametrize(
    "changed",
    [{"seq": 0}, {"at": datetime(2026, 1, 1)}, {"record": {**EVENT, "x": 1}}, {"record": {"kind": "rumour"}}],
    ids=["seq 0", "no time zone", "unknown field", "unknown kind"],
)
def test_what_is_no_envelope_is_refused(changed: dict[str, object]) -> None:
    envelope = {"seq": 1, "at": AT, "record": EVENT}
    assert records.ENVELOPE.validate_python(envelope)
    with pytest.raises(ValidationError):
        records.ENVELOPE.validate_python({**envelope, **changed})


SALT = bytes(range(16))
CONTENT = {
    "step": 3,
    "group": 1,
    "sample": 0,
    "problem_id": "add-1",
    "prompt": "what is 37 + 45?",
    "completion": "82 é\n",
    "tokens": 4,
    "finish_reason": "eos",
    "reward": 1.0,
    "advantage": -0.5,
}


def group(index: int) -> Group:
    sample = {"tokens": 3, "finish_reason": "eos", "components": {}, "reward": 1.0, "advantage": 0.5}
    same = {"prompt": "what?", "answer": "1", "reward_mean": 0.5, "reward_std": 0.5, "signal": "mixed"}
    samples = [{**sample, "index": place, "completion": f"answer {index} {place}"} for place in range(2)]
    return Group.model_validate({**same, "step": 3, "index": index, "problem_id": f"p{index}", "samples": samples})


def test_a_leaf_is_the_hash_of_zero_salt_and_canonical_json():
    """Worked by hand: keys sorted, 1.0 written as 1, long texts as their SHA-256."""
    prompt = hashlib.sha256(b"what is 37 + 45?").hexdigest()
    completion = hashlib.sha256("82 é\n".encode()).hexdigest()
    written = (
        f'{{"advantage":-0.5,"completion_sha256":"{completion}","finish_reason":"eos","group":1,'
        f'"problem_id":"add-1","prompt_sha256":"{prompt}","reward":1,"sample":0,"step":3,"tokens":4}}'
    )
    assert leaf(SALT, CONTENT) == hashlib.sha256(b"\x00" + SALT + written.encode()).digest()


@pytest.mark.parametrize("name", CONTENT)
def test_every_field_is_bound(name: str):
    other = {**CONTENT, name: "x" if isinstance(CONTENT[name], str) else 99}
    assert leaf(SALT, other) != leaf(SALT, CONTENT)


def test_another_salt_gives_another_leaf_and_a_short_one_is_refused():
    assert leaf(bytes(16), CONTENT) != leaf(SALT, CONTENT)
    with pytest.raises(ValueError, match="15"):
        leaf(SALT[:15], CONTENT)


def test_leaf_i_g_plus_j_is_of_sample_j_of_group_i():
    salted, commitments = commit([group(0), group(1)])
    leaves = unpack(commitments.leaves)
    assert commitments.count == len(leaves) == 4
    for i, entry in enumerate(salted):
        for j, sample in enumerate(entry.samples):
            assert sample.salt is not None
            assert leaf(bytes.fromhex(sample.salt), sample_content(entry, sample)) == leaves[2 * i + j]


def test_equal_completions_have_different_leaves():
    first, second = commit([group(0)])[1], commit([group(0)])[1]
    assert set(unpack(first.leaves)).isdisjoint(unpack(second.leaves))


def test_every_group_is_committed_to_and_some_are_kept():
    one_each = config(traces={"groups_per_step": 1})
    commitments, *kept = traces(3, [group(0), group(1), group(2)], [group(3)], [group(4)], one_each)
    assert isinstance(commitments, Commitments)
    assert commitments.count == 10
    assert len(kept) == 2  # one trained on, one discarded
    leaves = unpack(commitments.leaves)
    for entry in kept:
        assert isinstance(entry, Group)
        for sample in entry.samples:
            assert leaf(bytes.fromhex(sample.salt or ""), sample_content(entry, sample)) in leaves
    assert traces(3, [], [], [], one_each) == []


@pytest.mark.parametrize(
    ("count", "leaves"),
    [(2, "A" * 43 + "="), (1, "A" * 42 + "=="), (1, "A" * 43), (1, "*" * 43 + "="), (0, "")],
    ids=["fewer", "short", "unpadded", "no base64", "none"],
)
def test_commitments_of_another_length_are_no_record(count: int, leaves: str):
    with pytest.raises(ValidationError):
        Commitments(step=1, count=count, leaves=leaves)


@pytest.mark.parametrize("text", ["A", "AAA=", "A" * 43 + "B=", "A" * 42 + "B="])
def test_only_one_spelling_is_unpacked(text: str):
    with pytest.raises(ValueError):
        unpack(text)


def test_texts_are_bound_as_they_can_be_kept() -> None:
    """A platform stores U+FFFD for NUL and for half a surrogate pair; so that is what is hashed."""
    made = group(0)
    odd = made.samples[0].model_copy(update={"completion": "a\x00b\ud800c"})
    content = sample_content(made.model_copy(update={"prompt": "\x00"}), odd)
    assert (content["completion"], content["prompt"]) == ("a\ufffdb\ufffdc", "\ufffd")


def test_prompt_order_is_shuffled_epochs():
    order = prompt_order(5, seed=3)
    epochs = [[next(order) for _ in range(5)] for _ in range(4)]
    assert all(sorted(epoch) == [0, 1, 2, 3, 4] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    again = prompt_order(5, seed=3)
    assert [next(again) for _ in range(20)] == [index for epoch in epochs for index in epoch]


def test_kept_groups_are_a_seeded_share():
    assert kept_groups(4, 9, 0, 1) == [0, 1, 2, 3]
    assert kept_groups(8, 0, 0, 1) == []
    picks = [tuple(kept_groups(32, 3, 0, step)) for step in range(1, 30)]
    assert all(len(set(pick)) == 3 for pick in picks)
    assert len(set(picks)) > 20
    assert kept_groups(32, 3, 0, 7) == list(picks[6])
