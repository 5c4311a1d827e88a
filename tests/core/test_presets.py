"""Presets are the papers' settings, lie under what a person gives, and every departure from them is shown."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_core.cli import main
from grpo_core.config import RunConfig
from grpo_core.errors import ConfigError
from grpo_core.presets import FAMILIES, PRESETS, Difference, apply, diff, differences_line, from_defaults
from tests.tables import cases

GIVEN: dict[str, Any] = {
    "model": {"path": "m"},
    "data": {"path": "d"},
    "reward": {"components": [{"name": "right", "kind": "numeric"}, {"name": "form", "kind": "r1_format"}]},
    "eval": {"holdout": 8},
}


def of(name: str, **parts: Any) -> RunConfig:
    return RunConfig.from_dict({**GIVEN, "preset": name, **parts})


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_makes_a_valid_config_without_differences(name: str) -> None:
    config = of(name)
    assert config.preset == name
    assert diff(config) == []
    assert RunConfig.from_text(config.to_yaml()) == config
    preset = PRESETS[name]
    assert preset.family in FAMILIES
    assert all((preset.title, preset.paper, preset.citation, preset.notes.endswith(".")))


def test_presets_set_what_their_papers_state(golden: Callable[[str, Any], None]) -> None:
    """What the preset itself sets, so that no default of ours passes for a paper's."""
    golden("presets.json", {name: dict(preset.leaves()) for name, preset in PRESETS.items()})


# ---------------------------------------------------------------------- under what is given


def test_given_settings_win_field_by_field_and_are_shown() -> None:
    config = of("dapo", sampling={"group_size": 4}, algorithm={"kl": {"coef": 0.1}}, seed=3)
    assert (config.sampling.max_completion_tokens, config.algorithm.clip_high) == (20480, 0.28)
    assert diff(config) == [Difference("sampling.group_size", 16, 4), Difference("algorithm.kl.coef", 0.0, 0.1)]
    assert RunConfig.from_text(config.to_yaml()) == config


@pytest.mark.parametrize(
    ("name", "parts", "path", "left"), cases("config/presets_changed", "name", "parts", "path", "left")
)
def test_what_means_nothing_after_a_choice_falls_away(name: str, parts: dict[str, Any], path: str, left: Any) -> None:
    """Each of these would be refused, or would be another thing, if the preset's value stayed."""
    value: Any = of(name, **parts)
    for piece in path.split("."):
        value = getattr(value, piece)
    assert value == left


@pytest.mark.parametrize(
    ("name", "parts", "path", "code"), cases("config/presets_refused", "name", "parts", "path", "code")
)
def test_what_a_person_gave_or_the_paper_is_known_for_is_refused_and_not_dropped(name, parts, path, code):
    """A part of DAPO does not switch itself off because a run is small."""
    with pytest.raises(ConfigError) as caught:
        of(name, **parts)
    assert [(problem.path, problem.code) for problem in caught.value.problems] == [(path, code)]


@pytest.mark.parametrize("part", [[], "x", 3, {"kl": 0.1}, {"kl": [1]}, {"loss": ["clip"]}, {"loss": {"a": 1}}])
def test_what_is_no_config_is_refused(part: Any) -> None:
    for name in ("r1_zero", "ppo", "simplified"):
        with pytest.raises(ConfigError) as caught:
            of(name, algorithm=part)
        assert caught.value.problems[0].path.startswith("algorithm")


def test_apply_changes_neither_preset_nor_input() -> None:
    before = str(PRESETS), str(GIVEN)
    apply("dapo", {**GIVEN, "algorithm": {"clip_high": 9}})["sampling"]["group_size"] = 99
    apply("top_entropy", GIVEN)["algorithm"]["kl"]["coef"] = 99
    assert (str(PRESETS), str(GIVEN)) == before


# ---------------------------------------------------------------------- by name


@pytest.mark.parametrize(
    ("wrong", "right"), [("dapoo", "dapo"), ("DAPO", "dapo"), ("Dr. GRPO", "dr_grpo"), ("gpso", "gspo"), ("xyzzy", "")]
)
def test_an_unknown_preset_suggests_the_nearest(wrong: str, right: str) -> None:
    hint = f"did you mean {right}?" if right else "is not a preset. There are"
    for ask in (
        lambda: apply(wrong, GIVEN),
        lambda: of(wrong),
        lambda: diff(RunConfig.model_validate({**GIVEN, "preset": wrong})),
        lambda: differences_line(of("dapo"), wrong),
    ):
        with pytest.raises(ConfigError, match=re.escape(hint)) as caught:
            ask()
        (problem,) = caught.value.problems
        assert (problem.path, problem.code) == ("preset", "unknown_preset")


@pytest.mark.parametrize(
    ("name", "preset"), [("dapo", "dapo"), ("grpo", "deepseekmath"), ("bnpo", "bnpo"), ("dr_grpo", "dr_grpo")]
)
def test_a_loss_by_its_name_in_trl_suggests_a_preset(name: str, preset: str) -> None:
    with pytest.raises(ConfigError, match=rf"for {name} write loss: clip with .*, or preset: {preset}$") as caught:
        RunConfig.from_dict({**GIVEN, "algorithm": {"loss": name}})
    assert [(one.path, one.code) for one in caught.value.problems] == [("algorithm.loss", "not_a_choice")]
    assert of(preset).algorithm.loss == "clip"


# ---------------------------------------------------------------------- differences


def test_a_config_can_be_held_against_another_preset_or_none() -> None:
    assert (diff(RunConfig.from_dict(GIVEN)), differences_line(RunConfig.from_dict(GIVEN))) == ([], "")
    assert differences_line(of("dapo")) == "does not differ from DAPO in anything that it sets"
    line = differences_line(of("demo"), "dr_grpo")
    assert line.startswith(
        "differs from Dr. GRPO in: sampling.max_completion_tokens 64 instead of 3000, algorithm.scale"
    )
    assert line.endswith("algorithm.aggregation_constant none instead of 3000, optim.lr 0.0002 instead of 1e-6")
    assert from_defaults(PRESETS["dr_grpo"]) == [
        Difference("sampling.max_completion_tokens", 256, 3000),
        Difference("algorithm.scale", "group_std", "none"),
        Difference("algorithm.aggregation", "token_mean", "constant"),
        Difference("algorithm.aggregation_constant", None, 3000),
    ]


# ---------------------------------------------------------------------- the command


def test_the_list_is_grouped_and_one_preset_is_yaml_with_what_it_changes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith("  ")] == list(FAMILIES.values())
    assert sorted(line.split()[0] for line in lines if line.startswith("  ")) == sorted(PRESETS)
    assert main(["presets", "dr_grpo"]) == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(text) == PRESETS["dr_grpo"].settings
    changed = [line.split()[1] for line in text.splitlines() if line.startswith("#   ")]
    assert changed == [difference.path for difference in from_defaults(PRESETS["dr_grpo"])]


def test_a_config_against_a_preset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(of("dapo", sampling={"group_size": 8}).to_yaml(), encoding="utf-8")
    assert main(["presets", "dapo", "--against", str(file)]) == 0
    assert capsys.readouterr().out == "differs from DAPO in: sampling.group_size 8 instead of 16\n"
    assert main(["presets", "gspo", "--against", str(file)]) == 0
    assert "algorithm.loss clip instead of gspo" in capsys.readouterr().out, "whatever preset it names"
    for words in (["dapo", "--against", str(tmp_path / "none.yaml")], ["dapoo"], ["--against", str(file)]):
        assert main(["presets", *words]) == ConfigError.exit_status
