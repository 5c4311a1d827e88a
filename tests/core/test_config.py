"""A run config says what is wrong and where, and survives YAML and JSON unchanged. Presets are the papers' settings,
lie under what a person gives, and every departure from them is shown."""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.cli import config_docs
from grpo_core.cli.main import main
from grpo_core.config.preset_differences import Difference, diff, differences_line, from_defaults
from grpo_core.config.presets import FAMILIES, PRESETS, apply
from grpo_core.config.reward import LARGEST_REWARD
from grpo_core.config.run import RunConfig, SamplingConfig
from grpo_core.errors import ConfigError
from tests.tables import cases

SMALLEST = """
model: {path: models/demo}
data: {path: train.jsonl}
reward: {components: [{name: right, kind: numeric}]}
eval: {holdout: 64}
"""


def smallest(**parts: Any) -> dict[str, Any]:
    return {**yaml.safe_load(SMALLEST), **parts}


def refused(data: Any) -> dict[str, str]:
    """{path: code} of what is wrong."""
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_dict(data, source="run.yaml")
    assert str(caught.value).startswith("run.yaml")
    assert all(problem.message in str(caught.value) for problem in caught.value.problems)
    return {problem.path: problem.code for problem in caught.value.problems}


@pytest.mark.parametrize(("parts", "path", "code"), cases("config/refusals", "parts", "path", "code"))
def test_a_conflict_is_refused_at_its_path_with_its_code(parts: dict[str, Any], path: str, code: str) -> None:
    assert refused(smallest(**parts)) == {path: code}


@pytest.mark.parametrize("parts", cases("config/accepted", "parts"))
def test_the_way_out_of_a_conflict_is_accepted(parts: dict[str, Any]) -> None:
    assert RunConfig.from_dict(smallest(**parts))


def test_several_faults_are_all_named_and_list_what_is_allowed() -> None:
    data = smallest(optim={"lr": "fast"}, algorithm={"scale": "std"})
    del data["model"]
    assert refused(data) == {"model": "missing", "optim.lr": "float_parsing", "algorithm.scale": "not_a_choice"}
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_dict(smallest(sampling={"group_sise": 8}, algorithm={"scale": "std"}))
    messages = {problem.path: problem.message for problem in caught.value.problems}
    assert all(name in messages["sampling.group_sise"] for name in SamplingConfig.model_fields)
    assert all(name in messages["algorithm.scale"] for name in ("group_std", "batch_std", "none"))


def test_heaviest_component_decides_success() -> None:
    components = [{"name": "form", "kind": "r1_format", "weight": 0.2}, {"name": "right", "kind": "numeric"}]
    assert RunConfig.from_dict(smallest(reward={"components": components})).reward.success_component == "right"


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_values_that_json_cannot_carry_are_refused(number: float) -> None:
    component = {"name": "right", "kind": "numeric", "params": {"tolerance": number}}
    assert refused(smallest(reward={"components": [component]}))


def test_yaml_that_means_two_things_is_refused() -> None:
    for text, word in (
        (SMALLEST + "seed: 1\nseed: 2\n", r"'seed'[\s\S]*line 7"),
        ("a: &a [1]\nb: [*a, *a]", "aliases"),
    ):
        with pytest.raises(ConfigError, match=word):
            RunConfig.from_text(text)


@pytest.mark.parametrize(
    "text",
    [
        *("[1, 2]", "42", "", "? [a]\n: b", "a: [", "\x00", "a: 2026-13-45", "[" * 10_000),
        *("!!float x", "!!float ''", "!!bool x", "!!int ''", "!!int '-'", "!!timestamp x", "!!set [a]", "!!map 1"),
        *("!!omap [1]", "!!binary é", "!!python/object/apply:os.system [ls]", "<<: 1", "seed: 0x" + "f" * 9999),
    ],
)
def test_texts_that_are_no_config(text: str) -> None:
    with pytest.raises(ConfigError):
        RunConfig.from_text(text)


@pytest.mark.parametrize(("written", "value"), [("3e-4", 0.0003), ("3.e-4", 0.0003), ("1E3", 1000.0), ("0.5", 0.5)])
def test_numbers_as_people_write_them(written: str, value: float) -> None:
    assert RunConfig.from_text(SMALLEST + f"optim: {{lr: {written}}}").optim.lr == value


def test_missing_and_undecodable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such config file"):
        RunConfig.from_file(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9")
    with pytest.raises(ConfigError, match="cannot read"):
        RunConfig.from_file(tmp_path / "latin.yaml")


def test_digest_is_sha256_of_sorted_compact_json_and_blind_to_spelling() -> None:
    config = RunConfig.from_text(SMALLEST)
    # With ASCII keys and no floats that RFC 8785 writes otherwise than Python, canonical JSON is sorted compact JSON.
    plain = json.dumps(config.to_dict(), sort_keys=True, separators=(",", ":"))
    plain = re.sub(r":(\d+)\.0(?=[,}])", r":\1", plain).replace("1e-06", "0.000001").replace("1e-08", "1e-8")
    assert config.digest() == hashlib.sha256(plain.encode()).hexdigest()
    respelled = RunConfig.from_text("eval: {holdout: 64}\nseed: 0\n" + SMALLEST.replace("eval: {holdout: 64}", ""))
    assert respelled.digest() == config.digest()
    assert RunConfig.from_text(SMALLEST + "seed: 1").digest() != config.digest()


_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30).filter(
    lambda text: text.strip() == text and text
)
_values = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | _text
_numbers = st.floats(allow_nan=False, allow_infinity=False)
_nested = st.recursive(
    _values | _numbers,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_text, inner, max_size=2),
    max_leaves=4,
)
_names = _text | st.sampled_from(["1e5", "null", "yes", "1:30", "2026-01-01", "~", "0x10", "- a", "3e-4"])


@settings(max_examples=50)
@given(
    _names,
    _text,
    st.dictionaries(_text, _nested, max_size=3),
    st.floats(-LARGEST_REWARD, LARGEST_REWARD).filter(bool),
    st.floats(1e-12, 10),
)
def test_yaml_and_json_give_back_the_same_config(name, path, params, weight, lr):
    parts = {
        "name": name,
        "model": {"path": path},
        "data": {"path": path, "template": path + "{prompt}"},
        "reward": {"components": [{"name": "right", "kind": "exact", "weight": weight, "params": params}]},
        "optim": {"lr": lr},
    }
    config = RunConfig.from_dict(smallest(**parts))
    for back in (RunConfig.from_text(config.to_yaml()), RunConfig.from_dict(json.loads(json.dumps(config.to_dict())))):
        assert back == config
        assert back.digest() == config.digest()


def test_docs_page_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "config.md"
    assert page.read_text(encoding="utf-8") == config_docs.render(), "run: python -m grpo_core.cli.config_docs"


def test_a_stored_config_is_read_as_it_was_stored() -> None:
    """Today's preset is not put under it: it may hold settings that the run never had."""
    given = RunConfig.from_dict(smallest(preset="dapo"))
    assert given.algorithm.dynamic_sampling.enabled
    stored = given.to_dict()
    del stored["algorithm"]["dynamic_sampling"], stored["algorithm"]["mini_batches"]
    stored["sampling"]["prompts_per_step"] = 2
    read = RunConfig.from_whole(stored)
    assert read.preset == "dapo"
    assert not read.algorithm.dynamic_sampling.enabled
    assert read.algorithm.mini_batches == 1


TWO = [{"name": "right", "kind": "numeric"}, {"name": "form", "kind": "r1_format"}]
GIVEN = smallest(reward={"components": TWO}, eval={"holdout": 8})


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
    apply("dapo", {**GIVEN, "algorithm": {"clip_high": 9}}, RunConfig.default_at)["sampling"]["group_size"] = 99
    apply("top_entropy", GIVEN, RunConfig.default_at)["algorithm"]["kl"]["coef"] = 99
    assert (str(PRESETS), str(GIVEN)) == before


# ---------------------------------------------------------------------- by name


@pytest.mark.parametrize(
    ("wrong", "right"), [("dapoo", "dapo"), ("DAPO", "dapo"), ("Dr. GRPO", "dr_grpo"), ("gpso", "gspo"), ("xyzzy", "")]
)
def test_an_unknown_preset_suggests_the_nearest(wrong: str, right: str) -> None:
    hint = f"did you mean {right}?" if right else "is not a preset. There are"
    for ask in (
        lambda: apply(wrong, GIVEN, RunConfig.default_at),
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
    assert [(problem.path, problem.code) for problem in caught.value.problems] == [("algorithm.loss", "not_a_choice")]
    assert of(preset).algorithm.loss == "clip"


# ---------------------------------------------------------------------- differences


def test_a_config_can_be_held_against_another_preset_or_none() -> None:
    assert (diff(RunConfig.from_dict(GIVEN)), differences_line(RunConfig.from_dict(GIVEN))) == ([], "")
    assert differences_line(of("dapo")) == "does not differ from DAPO in anything that it sets"
    line = differences_line(of("demo"), "dr_grpo")
    assert line.startswith(
        "differs from Dr. GRPO in: sampling.prompts_per_step 32 instead of 128, sampling.max_completion_tokens 64 "
    )
    assert line.endswith("algorithm.mini_batches 1 instead of 8, optim.lr 0.0002 instead of 1e-6")
    assert from_defaults(PRESETS["dr_grpo"]) == [
        Difference("sampling.prompts_per_step", 32, 128),
        Difference("sampling.max_completion_tokens", 256, 3000),
        Difference("algorithm.scale", "group_std", "none"),
        Difference("algorithm.aggregation", "token_mean", "constant"),
        Difference("algorithm.aggregation_constant", None, 3000),
        Difference("algorithm.mini_batches", 1, 8),
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
