"""A run config says what is wrong and where, and survives YAML and JSON unchanged."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core import config_docs
from grpo_core.config import RunConfig
from grpo_core.errors import ConfigError

SMALLEST = """
model: {path: models/demo}
data: {path: train.jsonl}
reward: {components: [{name: right, kind: numeric}]}
eval: {holdout: 64}
"""


def smallest(**parts: Any) -> dict[str, Any]:
    return {
        "model": {"path": "models/demo"},
        "data": {"path": "train.jsonl"},
        "reward": {"components": [{"name": "right", "kind": "numeric"}]},
        "eval": {"holdout": 64},
        **parts,
    }


def faults(data: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_dict(data, source="run.yaml")
    assert str(caught.value).startswith("run.yaml")
    return {problem.path: problem.message for problem in caught.value.problems}


def test_unknown_field_names_path_and_allowed_fields() -> None:
    found = faults(smallest(sampling={"group_sise": 8}))
    assert found == {
        "sampling.group_sise": "unknown field; allowed here: group_size, prompts_per_step, temperature, top_p, top_k, "
        "max_completion_tokens"
    }


def test_unknown_field_inside_a_list_of_parts() -> None:
    found = faults(smallest(reward={"components": [{"name": "right", "kind": "numeric", "wight": 1}]}))
    assert found == {
        "reward.components.0.wight": "unknown field; allowed here: name, kind, weight, params",
    }


def test_wrong_type_and_wrong_choice_are_both_told_at_once() -> None:
    found = faults(smallest(optim={"lr": "fast"}, algorithm={"scale": "std"}))
    assert found["optim.lr"].endswith('given "fast"')
    assert found["algorithm.scale"] == "\"std\" is not one of 'group_std', 'batch_std' or 'none'"
    assert len(found) == 2


def test_group_of_one_is_refused() -> None:
    found = faults(smallest(sampling={"group_size": 1}))
    assert "greater than or equal to 2" in found["sampling.group_size"]


def test_missing_part_is_named() -> None:
    data = smallest()
    del data["model"]
    assert faults(data) == {"model": "is needed and not given"}


def test_dr_grpo_needs_its_constant_and_nothing_else_takes_it() -> None:
    assert "needs aggregation_constant" in faults(smallest(algorithm={"aggregation": "constant"}))["algorithm"]
    assert "only with aggregation: constant" in faults(smallest(algorithm={"aggregation_constant": 3000}))["algorithm"]
    assert RunConfig.from_dict(smallest(algorithm={"aggregation": "constant", "aggregation_constant": 3000}))


def test_nothing_to_evaluate_on_is_refused() -> None:
    assert "give eval.path or eval.holdout" in faults(smallest(eval={}))[""]
    assert RunConfig.from_dict(smallest(eval={"before": False, "after": False}))


def test_success_component_must_exist() -> None:
    assert "there are right" in faults(smallest(eval={"holdout": 1, "success_component": "wrong"}))[""]


def test_heaviest_component_decides_success() -> None:
    components = [
        {"name": "form", "kind": "r1_format", "weight": 0.2},
        {"name": "right", "kind": "numeric", "weight": 1},
    ]
    assert RunConfig.from_dict(smallest(reward={"components": components})).success_component == "right"


def test_same_component_twice_and_all_weights_zero() -> None:
    part = {"name": "right", "kind": "numeric", "weight": 0}
    assert "given twice: right" in faults(smallest(reward={"components": [part, part]}))["reward"]
    assert "other than 0" in faults(smallest(reward={"components": [part]}))["reward"]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 2**60])
def test_values_that_json_cannot_carry_are_refused(number: float) -> None:
    component = {"name": "right", "kind": "numeric", "params": {"tolerance": number}}
    assert faults(smallest(reward={"components": [component]}))


def test_key_given_twice_is_refused_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"'seed' is given twice[\s\S]*line 7"):
        RunConfig.from_text(SMALLEST + "seed: 1\nseed: 2\n")


def test_alias_bomb_is_refused() -> None:
    with pytest.raises(ConfigError, match="aliases"):
        RunConfig.from_text("a: &a [1, 1]\nb: [*a, *a]\n")


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
    plain = json.dumps(config.to_dict(), sort_keys=True, separators=(",", ":")).replace(":1.0", ":1")
    plain = plain.replace(":0.0,", ":0,").replace(":0.0}", ":0}").replace("1e-06", "0.000001")
    assert config.digest() == hashlib.sha256(plain.encode()).hexdigest()
    respelled = RunConfig.from_text("eval: {holdout: 64}\nseed: 0\n" + SMALLEST.replace("eval: {holdout: 64}", ""))
    assert respelled.digest() == config.digest()
    assert RunConfig.from_text(SMALLEST + "seed: 1").digest() != config.digest()


_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30).filter(
    lambda text: text.strip() == text and text
)
_params = st.dictionaries(
    _text,
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**53) + 1, 2**53 - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | _text,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_text, inner, max_size=2),
        max_leaves=4,
    ),
    max_size=3,
)
_configs = st.builds(
    lambda name, path, params, lr, top_p, weight, seed, group, threads, template, kl: RunConfig.from_dict(
        smallest(
            name=name,
            model={"path": path},
            data={"path": path, "template": template + "{prompt}"},
            reward={"components": [{"name": "right", "kind": "exact", "weight": weight, "params": params}]},
            optim={"lr": lr},
            sampling={"top_p": top_p, "group_size": group},
            algorithm={"kl": {"coef": kl}},
            engine={"threads": threads},
            seed=seed,
        )
    ),
    name=_text | st.sampled_from(["1e5", "null", "yes", "1:30", "2026-01-01", "~", "0x10", "- a", "3e-4"]),
    path=_text,
    params=_params,
    lr=st.floats(1e-12, 10),
    top_p=st.floats(0, 1, exclude_min=True),
    weight=st.floats(allow_nan=False, allow_infinity=False).filter(lambda weight: weight != 0),
    seed=st.integers(0, 2**32 - 1),
    group=st.integers(2, 1024),
    threads=st.none() | st.integers(1, 64),
    template=_text,
    kl=st.floats(0, 1),
)


@settings(deadline=None, max_examples=150)
@given(_configs)
def test_yaml_and_json_give_back_the_same_config(config: RunConfig) -> None:
    for back in (RunConfig.from_text(config.to_yaml()), RunConfig.from_dict(json.loads(json.dumps(config.to_dict())))):
        assert back == config
        assert back.digest() == config.digest()


def test_docs_page_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "config.md"
    assert page.read_text(encoding="utf-8") == config_docs.render(), (
        "run: python -m grpo_core.config_docs > docs/config.md"
    )


def test_docs_page_names_every_field_with_its_help() -> None:
    page = config_docs.render()
    for name in RunConfig.model_fields:
        assert f"| `{name}` |" in page
    assert "`temperature` | number, above 0 | `1.0` | Sampling temperature" in page
    assert "## algorithm.kl" in page
    assert "dr_grpo" in page
