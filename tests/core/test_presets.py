"""Presets are the papers' settings, lie under what a person gives, and every departure from them is shown."""

from typing import Any

import pytest

from grpo_core.config import RunConfig
from grpo_core.errors import ConfigError
from grpo_core.presets import PRESETS, Difference, apply, diff

GIVEN: dict[str, Any] = {
    "model": {"path": "m"},
    "data": {"path": "d"},
    "reward": {"components": [{"name": "right", "kind": "numeric"}]},
    "eval": {"holdout": 8},
}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_makes_a_valid_config_without_differences(name: str) -> None:
    config = RunConfig.from_dict(apply(name, GIVEN))
    assert config.preset == name
    assert diff(config) == []


@pytest.mark.parametrize(
    ("name", "group", "kl", "clip_high", "lr"),
    [
        ("deepseekmath", 64, 0.04, 0.2, 1e-6),
        ("r1_zero", 16, 0.001, 10.0, 3e-6),
        ("dapo", 16, 0.0, 0.28, 1e-6),
        ("dr_grpo", 8, 0.0, 0.2, 1e-6),
        ("demo", 8, 0.0, 0.28, 2e-4),
    ],
)
def test_values_as_the_papers_state_them(name: str, group: int, kl: float, clip_high: float, lr: float) -> None:
    config = RunConfig.from_dict(apply(name, GIVEN))
    assert config.sampling.group_size == group
    assert config.algorithm.kl.coef == kl
    assert config.algorithm.clip_high == clip_high
    assert config.optim.lr == lr


def test_given_settings_win_field_by_field_and_are_shown() -> None:
    config = RunConfig.from_dict(
        apply("dapo", {**GIVEN, "sampling": {"group_size": 4}, "algorithm": {"kl": {"coef": 0.1}}, "seed": 3})
    )
    assert config.sampling.max_completion_tokens == 20480
    assert diff(config) == [
        Difference("sampling.group_size", 16, 4),
        Difference("algorithm.kl.coef", 0.0, 0.1),
    ]


def test_constant_falls_away_with_another_aggregation() -> None:
    config = RunConfig.from_dict(apply("dr_grpo", {**GIVEN, "algorithm": {"aggregation": "token_mean"}}))
    assert config.algorithm.aggregation_constant is None
    assert [difference.path for difference in diff(config)] == [
        "algorithm.aggregation",
        "algorithm.aggregation_constant",
    ]
    given = {"aggregation": "token_mean", "aggregation_constant": 5}
    with pytest.raises(ConfigError, match="only with aggregation: constant"):
        RunConfig.from_dict(apply("dr_grpo", {**GIVEN, "algorithm": given}))


def test_apply_changes_neither_preset_nor_input() -> None:
    before = str(PRESETS["dapo"]), str(GIVEN)
    apply("dapo", {**GIVEN, "algorithm": {"clip_high": 9}})["sampling"]["group_size"] = 99
    assert (str(PRESETS["dapo"]), str(GIVEN)) == before


def test_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="there are deepseekmath, r1_zero, dapo, dr_grpo, demo"):
        apply("ppo", GIVEN)
    with pytest.raises(ConfigError, match="'ppo' is not a preset"):
        diff(RunConfig.from_dict({**GIVEN, "preset": "ppo"}))


def test_no_preset_no_differences() -> None:
    assert diff(RunConfig.from_dict(GIVEN)) == []


def test_a_config_that_names_a_preset_takes_its_settings() -> None:
    config = RunConfig.from_dict({**GIVEN, "preset": "dapo", "sampling": {"group_size": 4}})
    assert (config.algorithm.clip_high, config.sampling.group_size) == (0.28, 4)
    assert RunConfig.from_text(config.to_yaml()) == config
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_dict({**GIVEN, "preset": "dappo"})
    assert caught.value.problems[0].path == "preset"
