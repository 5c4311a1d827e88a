"""The form can say every config, and says it without loss: config → texts → settings → config."""

from collections.abc import Callable
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.web.launch.layout import FIRST, FROM_CATALOG, FROM_VARIANT, GROUPS, WITHOUT_USE
from cohort.web.launch.schema import fields, group_of, settings_of, texts_of
from cohort.web.launch.variants import USUAL, offered
from grpo_core.advantages.settings import ESTIMATORS
from grpo_core.config.kinds import CONFIGS, AnyConfig, config_from_dict
from grpo_core.config.presets import PRESETS
from grpo_core.config.relevance import idle
from grpo_core.config.run import RunConfig
from grpo_core.config.stage import Kind
from grpo_core.specs.fields import LARGEST_NUMBER, LEAST_NUMBER

ROWS: dict[str, Any] = {
    "model": {"path": "m"},
    "data": {"path": "d"},
    "reward": {"components": [{"name": "right", "kind": "exact"}, {"name": "form", "kind": "r1_format"}]},
    "eval": {"path": "e"},
}


OF_KIND: dict[Kind, dict[str, Any]] = {
    "grpo": ROWS,
    "sft": {"kind": "sft", "model": {"path": "m"}, "data": {"path": "d", "more": ["e"], "heldout_path": "f"}},
    "distill": {"kind": "distill", "model": {"path": "m"}, "data": {"path": "d"}},
    "reward_model": {"kind": "reward_model", "model": {"path": "m"}, "data": {"path": "d", "heldout_path": "f"}},
    "sample": {"kind": "sample", **{name: ROWS[name] for name in ("model", "data", "reward")}},
}
each_kind = pytest.mark.parametrize("kind", CONFIGS)


def leaves(value: dict[str, Any], whole: frozenset[str], prefix: str = "") -> set[str]:
    paths = set()
    for name, inner in value.items():
        path = prefix + name
        part = isinstance(inner, dict) and inner and path not in whole
        paths |= leaves(inner, whole, path + ".") if part else {path}
    return paths


def again(config: AnyConfig) -> AnyConfig:
    """The config that the form makes of its own texts, with the rows put back."""
    posted = {"kind": config.kind, **settings_of(texts_of(config.to_dict(), config.kind), config.kind)}
    given = config.to_dict()
    for path in FROM_CATALOG[config.kind]:
        *parents, leaf = path.split(".")
        here, there = posted, given
        for parent in parents:
            here, there = here.setdefault(parent, {}), there[parent]
        if leaf in there:  # sampling has no preset
            here[leaf] = there[leaf]
    return config_from_dict(posted)


@each_kind
def test_no_leaf_of_a_config_is_missing_from_the_form(kind: Kind) -> None:
    whole = config_from_dict(OF_KIND[kind]).to_dict()
    whole.pop("kind", None)
    decided = FROM_CATALOG[kind] | WITHOUT_USE[kind] | (set(FROM_VARIANT) if kind == "grpo" else set())
    assert leaves(whole, decided) - decided == set(fields(kind))


@each_kind
def test_every_field_says_what_it_is_for_and_has_a_place(kind: Kind) -> None:
    known = fields(kind)
    for path, spec in known.items():
        assert spec.help, path
        assert spec.label, path
        assert group_of(path, kind) in {None, *(group.id for group in GROUPS[kind])}, path
    labels = [spec.label for spec in known.values()]
    assert len(labels) == len(set(labels)), "two fields are called the same"
    assert set(FIRST[kind]) <= set(known)
    own = [group for group in GROUPS[kind] if any(group_of(path, kind) == group.id for path in known)]
    assert own == list(GROUPS[kind]), "a group without a field"
    assert {path for group in GROUPS["grpo"] for path, _ in group.headline} <= set(fields())


@each_kind
def test_every_kind_survives(kind: Kind) -> None:
    config = config_from_dict(OF_KIND[kind])
    assert again(config) == config


def test_limits_are_read_off_the_config() -> None:
    known = {path: spec.limits for path, spec in fields().items()}
    assert known["sampling.group_size"] == "2 to 1024"
    assert known["algorithm.kl.coef"] == "0 or more"
    assert known["sampling.temperature"] == "0.01 to 100"
    assert known["sampling.top_p"] == "above 0 to 1"
    assert known["optim.beta1"] == "0 to below 1"
    assert known["data.limit"] == "1 or more", "inside Optional too"
    assert known["engine.device"] == ""


def test_every_preset_survives() -> None:
    for preset in PRESETS.values():
        config = RunConfig.from_dict({**preset.settings, **ROWS, "preset": preset.name})
        assert again(config) == config


def test_each_variant_is_offered_and_an_unusual_one_is_kept() -> None:
    """Every estimator with every divisor it goes with, and both standard deviations."""
    for advantage, spec in ESTIMATORS.items():
        for scale in spec.scales:
            for ddof in (0, 1):
                k = 2 if advantage == "pass_at_k" else None
                algorithm = {"advantage": advantage, "scale": scale, "std_ddof": ddof, "pass_k": k}
                config = RunConfig.from_dict({**ROWS, "algorithm": algorithm})
                assert again(config) == config
                value = texts_of(config.to_dict())["variant"]
                assert value in [variant.value for _, variant in offered(value)]
    assert {variant.estimator.name for variant in USUAL} == set(ESTIMATORS)


def test_idle_settings_of_the_defaults(golden: Callable[[str, Any], None]) -> None:
    """The whole list: what stands in the form's way and is not shown."""
    config = RunConfig.from_dict(ROWS)
    golden(
        "form/idle.json", [path for path in fields() if idle(path, lambda name: attrgetter(name)(config)) is not None]
    )


@settings(max_examples=30, deadline=None)
@given(
    template=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=100),
    holdout=st.integers(1, 10**6),
    limit=st.none() | st.integers(1, 10**7),
    turns=st.sampled_from(["all", "last"]),
    batch=st.integers(1, 10**4),
    rank=st.integers(0, 64),
    lr=st.floats(min_value=LEAST_NUMBER, max_value=LARGEST_NUMBER),
    patience=st.none() | st.integers(1, 9),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_config_of_fine_tuning_survives(**drawn: Any) -> None:
    d = SimpleNamespace(**drawn)
    data = {"path": "d", "template": d.template + "{prompt}", "holdout": d.holdout, "limit": d.limit, "turns": d.turns}
    config = config_from_dict(
        {
            "kind": "sft",
            "model": {"path": "m", "lora": {"rank": d.rank}},
            "data": data,
            "optim": {"batch_size": d.batch, "lr": d.lr},
            "eval": {"before": False, "after": False, "every": 1, "patience": d.patience},
            "seed": d.seed,
        }
    )
    assert again(config) == config


positive = st.floats(min_value=LEAST_NUMBER, max_value=LARGEST_NUMBER)
share = st.floats(min_value=0, max_value=1)
text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=100)


@settings(max_examples=50, deadline=None)
@given(
    template=text.map(lambda text: text + "{prompt}\n"),
    group=st.integers(2, 1024),
    temperature=st.floats(0.01, 100),
    prefill=text,
    stop=st.lists(text.filter(bool), max_size=3),
    kwargs=st.dictionaries(st.sampled_from(["enable_thinking", "date_string"]), st.booleans() | text, max_size=2),
    beta=st.just(0.0) | positive,
    low=share,
    lr=positive,
    limit=st.none() | st.integers(1, 10**7),
    before=st.booleans(),
    margin=st.floats(0, 0.2),
    seed=st.integers(0, 2**32 - 1),
    estimator=st.sampled_from(["k1", "k2", "k3", "k3_plus"]),
)
def test_any_config_survives(**drawn: Any) -> None:
    d = SimpleNamespace(**drawn)
    config = RunConfig.from_dict(
        {
            **ROWS,
            "data": {
                "path": "d",
                "template": d.template,
                "limit": d.limit,
                "prefill": d.prefill,
                "chat_template_kwargs": d.kwargs,
            },
            "sampling": {"group_size": d.group, "temperature": d.temperature, "stop": d.stop},
            "algorithm": {"clip_low": d.low, "kl": {"coef": d.beta, "estimator": d.estimator}},
            "optim": {"lr": d.lr},
            "eval": {"path": "e", "before": d.before, "margin": d.margin},
            "seed": d.seed,
        }
    )
    assert again(config) == config
