"""Preferences from files: what is read, what is refused, what is held out, how much is replayed."""

import json
from collections import Counter
from pathlib import Path

import pytest

from grpo_core.data.preferences import (
    Pair,
    ScoredText,
    comparable_pairs,
    load_pairs,
    load_scores,
    preferences_digest,
    prompt_digest,
    replay_rows,
    split_rows,
)
from grpo_core.data.problem import Problem
from grpo_core.errors import DataError
from tests.tables import cases

LOADERS = {"pairs": load_pairs, "scores": load_scores}


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def scored(prompt: str, completion: str, score: float, name: str = "x") -> ScoredText:
    return ScoredText(Problem(name, prompt, ""), completion, score)


@pytest.mark.parametrize(("kind", "rows", "words"), cases("data/preferences_refused", "kind", "rows", "words"))
def test_a_fault_names_its_line_and_the_fix(tmp_path: Path, kind: str, rows: list[str], words: list[str]) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    with pytest.raises(DataError) as caught:
        LOADERS[kind]([path])
    for word in [*words, str(path)]:
        assert word in str(caught.value)


def test_pairs_of_every_layout(tmp_path: Path) -> None:
    user = {"role": "user", "content": "p"}
    path = write(
        tmp_path / "pairs.jsonl",
        {"prompt": "p", "chosen": "a", "rejected": "b", "margin": 2, "id": "one"},
        {"messages": [user], "chosen": "a", "rejected": "b"},
        {"prompt": [user], "chosen": [{"role": "assistant", "content": "a"}], "rejected": "b"},
        {
            "chosen": [user, {"role": "assistant", "content": "a"}],
            "rejected": [user, {"role": "assistant", "content": "b"}],
        },
    )
    pairs = load_pairs([path])
    assert [(p.problem.id, p.problem.prompt, p.chosen, p.rejected, p.margin) for p in pairs] == [
        ("one", "p", "a", "b", 2.0),
        ("line-2", "p", "a", "b", 0.0),
        ("line-3", "p", "a", "b", 0.0),
        ("line-4", "p", "a", "b", 0.0),
    ]
    assert len(load_pairs([path], limit=2)) == 2


def test_of_a_conversation_the_users_last_turn_is_the_prompt(tmp_path: Path) -> None:
    turns = [("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "p")]
    messages = [{"role": role, "content": content} for role, content in turns]
    (pair,) = load_pairs([write(tmp_path / "pairs.jsonl", {"messages": messages, "chosen": "a", "rejected": "b"})])
    assert pair.problem.prompt == "p"
    assert [(message.role, message.content) for message in pair.problem.messages] == turns


def test_scores_from_csv(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    path.write_text("prompt,completion,score\np,a,0.5\np,b,-3\n", encoding="utf-8")
    assert [(row.completion, row.score) for row in load_scores([path])] == [("a", 0.5), ("b", -3.0)]


def test_whole_prompts_are_held_out() -> None:
    rows = [scored(f"p{n % 5}", f"c{n}", n) for n in range(15)]
    train, heldout = split_rows(rows, 7, seed=0)
    assert len(heldout) == 6  # two prompts of three rows each
    assert not {row.problem.prompt for row in train} & {row.problem.prompt for row in heldout}
    assert [*train, *heldout] != rows
    assert sorted(row.completion for row in [*train, *heldout]) == sorted(row.completion for row in rows)
    assert {prompt for seed in range(8) for prompt in {row.problem.prompt for row in split_rows(rows, 7, seed)[1]}} > {
        row.problem.prompt for row in heldout
    }
    with pytest.raises(DataError, match=r"data\.holdout"):
        split_rows(rows, 2, seed=0)
    with pytest.raises(DataError, match=r"data\.holdout"):
        split_rows(rows, 15, seed=0)


def test_scores_are_compared_within_a_prompt_where_they_differ() -> None:
    rows = [scored("p", "a", 1, "1"), scored("p", "b", 3, "2"), scored("p", "c", 3, "3"), scored("q", "d", 9, "4")]
    pairs = comparable_pairs(rows)
    assert [(pair.problem.id, pair.chosen, pair.rejected) for pair in pairs] == [("2>1", "b", "a"), ("3>1", "c", "a")]


def test_a_digest_is_of_ids_and_content() -> None:
    pair = Pair(Problem("1", "p", ""), "a", "b", 0.5)
    # printf '["1","p","a","b",0.5]\n' | sha256sum
    assert preferences_digest([pair]) == "166798e009ece720f8289605d4c66b1c8e1e7b5843eb03e09246aeaaea7689ca"
    # printf 'p q' | sha256sum, the first 16 digits
    assert prompt_digest(scored(" p \n q", "a", 0)) == "38c70423360271fc"


@pytest.mark.parametrize(
    ("share", "size", "by_step"),
    [
        (0.1, 10, [1, 1, 1, 1, 1, 1]),
        (0.1, 32, [3, 3, 4, 3, 3, 3]),  # 3.2, 6.4, 9.6, 12.8, 16, 19.2 in all
        (0.1, 4, [0, 1, 0, 1, 0, 0]),  # 0.4, 0.8, 1.2, 1.6, 2, 2.4
        (0.0, 8, [0, 0, 0, 0, 0, 0]),
        (1.0, 3, [3, 3, 3, 3, 3, 3]),
    ],
)
def test_the_share_of_replay_is_exact_over_the_run(share: float, size: int, by_step: list[int]) -> None:
    taken = [replay_rows(share, size, step) - replay_rows(share, size, step - 1) for step in range(1, 7)]
    assert taken == by_step
    assert replay_rows(share, size, 1000) == round(1000 * size * share)
    assert Counter(taken).total() == 6
