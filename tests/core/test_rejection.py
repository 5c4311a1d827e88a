"""Which completions become rows, and at which filter the others are counted: cases by hand."""

import json
from typing import Any

import pytest
import yaml

from grpo_core.config.kinds import config_from_dict
from grpo_core.config.sample import SampleConfig
from grpo_core.data.near_duplicates import near_duplicates
from grpo_core.data.problem import Message, Problem
from grpo_core.data.rejection import choose, in_order, nothing_kept
from grpo_core.data.sampled_rows import rows_of
from grpo_core.errors import ConfigError
from grpo_core.records.types import ComponentScore, Group, Sample
from tests.tables import FOLDER

_TABLE = yaml.safe_load((FOLDER / "sample/filters.yaml").read_text(encoding="utf-8"))
CASES: dict[str, dict[str, Any]] = _TABLE["cases"]


def sampling_config(**parts: Any) -> SampleConfig:
    config = config_from_dict(
        {
            "kind": "sample",
            "model": {"path": "base"},
            "data": {"path": "train.jsonl"},
            "reward": {
                "components": [
                    {"name": "right", "kind": "exact", "weight": 1},
                    {"name": "form", "kind": "format", "weight": 0.1},
                ]
            },
            **parts,
        }
    )
    assert isinstance(config, SampleConfig)
    return config


def group_of(form: list[int]) -> Group:
    samples = [
        Sample(
            index=index,
            completion=text,
            tokens=tokens,
            finish_reason=finish,
            reward=reward,
            components={
                "right": ComponentScore(value=reward, passed=right),
                "form": ComponentScore(value=1.0, passed=index in form),
            },
            advantage=0.0,
        )
        for index, (text, tokens, right, reward, finish) in enumerate(_TABLE["completions"])
    ]
    return Group(
        step=3, index=1, problem_id="p", prompt="3+4", answer="7", reward_mean=None, reward_std=None, signal="mixed",
        samples=tuple(samples),
    )  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_filters(name: str) -> None:
    case = CASES[name]
    given = {part: case[part] for part in ("filter", "rows") if part in case}
    choice = choose(group_of(case.get("form", [])), sampling_config(**given))
    assert [sample.index for sample in choice.kept] == case["kept"]
    assert [sample.index for sample in choice.rejected] == case.get("rejected", [])
    assert in_order(choice.counts) == case["counts"]
    assert sum(case["counts"].values()) == len(_TABLE["completions"])


def test_random_choice_is_the_seeds() -> None:
    def chosen(seed: int) -> list[int]:
        rules = {"passed": False, "finished": False, "duplicates": "keep", "per_problem": 3, "choose": "random"}
        return [sample.index for sample in choose(group_of([]), sampling_config(filter=rules, seed=seed)).kept]

    several = [tuple(chosen(seed)) for seed in range(20)]
    assert several == [tuple(chosen(seed)) for seed in range(20)]
    assert len(set(several)) > 5
    assert all(len(indices) == 3 and list(indices) == sorted(indices) for indices in several)
    assert set().union(*several) == {0, 1, 2, 3, 4, 5, 7}


@pytest.mark.parametrize("share", _TABLE["near"]["shares"])
def test_near_duplicates(share: str) -> None:
    texts = _TABLE["near"]["texts"]
    near = near_duplicates(texts, words=5, share=float(share))
    assert [index for index in range(len(texts)) if index not in near] == _TABLE["near"]["shares"][share]


def test_what_to_loosen_is_named() -> None:
    text = nothing_kept(choose(group_of([]), sampling_config(filter={"min_tokens": 7})).counts)
    assert "too_short 3" in text
    assert "lower filter.min_tokens" in text


CHAT = (Message("system", "Be brief."), Message("user", "3+4"))


@pytest.mark.parametrize(
    ("rows", "messages", "first"),
    [
        ("conversations", (), {"prompt": "3+4", "completion": "<think>the sum is 7"}),
        (
            "conversations",
            CHAT,
            {
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "3+4"},
                    {"role": "assistant", "content": "<think>the sum is 7"},
                ]
            },
        ),
        ("pairs", (), {"prompt": "3+4", "chosen": "<think>the sum is 7", "rejected": "<think>it is 8"}),
        (
            "scores",
            CHAT,
            {
                "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "3+4"}],
                "completion": "<think>the sum is 7",
                "score": 1.0,
            },
        ),
    ],
)
def test_rows(rows: str, messages: tuple[Message, ...], first: dict[str, Any]) -> None:
    config = sampling_config(rows=rows, data={"path": "train.jsonl", "prefill": "<think>"})
    group = group_of([])
    problem = Problem("p", "3+4", "7", messages=messages)
    lines = rows_of(group, problem, choose(group, config), config)
    row = json.loads(lines[0])
    origin = {"problem_id": "p", "step": 3, "group": 1, "sample": 0, "reward": 1.0}
    assert row.pop("from") == origin | ({"rejected_sample": 2, "rejected_reward": 0.0} if rows == "pairs" else {})
    assert row == first
    assert len(lines) == len(choose(group, config).kept)
    assert all(line.count(b"\n") == 1 and line.endswith(b"\n") for line in lines)


@pytest.mark.parametrize(
    ("parts", "path", "code"),
    [
        ({"filter": {"components": ["language"]}}, "filter.components", "unknown_component"),
        ({"filter": {"min_tokens": 9, "max_tokens": 8}}, "filter.min_tokens", "min_tokens_above_max"),
        ({"rows": "scores", "filter": {"passed": False}}, "filter", "scores_are_not_filtered"),
        ({"rows": "pairs", "filter": {"passed": False}}, "filter.passed", "pairs_of_right_and_wrong"),
        ({"model": {"path": "base", "lora": {"rank": 4}}}, "model.lora.rank", "nothing_is_trained"),
        ({"model": {"path": "b", "lora": {"rank": 4}, "quantization": "nf4"}}, "model.lora.rank", "nothing_is_trained"),
        ({"engine": {"training": "deepspeed"}}, "engine.training", "nothing_is_trained"),
        ({"engine": {"one_step_off": True}}, "engine.one_step_off", "nothing_is_trained"),
        ({"traces": {"tokens": ["best"]}}, "traces.tokens", "nothing_is_trained"),
    ],
)
def test_refused_settings(parts: dict[str, Any], path: str, code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sampling_config(**parts)
    assert [(problem.path, problem.code) for problem in caught.value.problems] == [(path, code)]
