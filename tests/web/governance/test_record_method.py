"""The record's sentences about the method: for each option what is true of it, and nothing that is true of another."""

from typing import Any

import pytest

from cohort.governance import method_words
from grpo_core.config import RunConfig
from grpo_core.config_algorithm import AlgorithmConfig
from grpo_core.config_mixes import SCALES
from grpo_core.presets import PRESETS

GIVEN: dict[str, Any] = {
    "model": {"path": "m"},
    "data": {"path": "d"},
    "reward": {"components": [{"name": "right", "kind": "numeric"}, {"name": "form", "kind": "r1_format"}]},
    "eval": {"holdout": 8},
}


def algorithm(**fields: Any) -> AlgorithmConfig:
    return AlgorithmConfig.model_validate(fields)


def config(**parts: Any) -> RunConfig:
    return RunConfig.from_dict({**GIVEN, **parts})


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_put_in_words(name: str) -> None:
    found = config(preset=name)
    said = [
        *method_words.training_method(found.algorithm),
        method_words.loss(found.algorithm),
        method_words.normalization(found.algorithm),
        method_words.clipping(found.algorithm),
        method_words.kl(found),
        method_words.reference(found),
        method_words.silent_groups(found.algorithm, remaining=True),
    ]
    assert all(said)
    assert not any("None" in text or "{" in text for text in said)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "clipped policy gradient; mean over all tokens of the step (as in DAPO); μ 1"),
        (
            {"mini_batches": 4, "inner_iterations": 2},
            "clipped policy gradient; mean over all tokens of the mini-batch (as in DAPO); μ 2, 4 mini-batches",
        ),
        (
            {"aggregation": "local_token_mean", "local_batch": 8, "denominator": "informative", "entropy_coef": 0.001},
            "clipped policy gradient; mean over the tokens of 8 completions, then over those batches (BNPO); μ 1; "
            "groups without a signal are in no denominator; entropy bonus 0.001",
        ),
        (
            {"loss": "sequence_ratio", "aggregation": "sequence_total", "denominator": "informative"},
            "unclipped ratio of whole completions; one number for each completion, summed; μ 1",
        ),
        (
            {"top_entropy_share": 0.2, "off_policy_threshold": 0.5},
            "clipped policy gradient; mean over all tokens of the step (as in DAPO); μ 1; only the 20 % of tokens with "
            "the highest entropy; without completions of negative advantage that fell by over 0.5 nats a token since "
            "they were sampled",
        ),
        (
            {"advantage": "gae", "scale": "none"},
            "clipped policy gradient; mean over all tokens of the step (as in DAPO); μ 1; critic of its own, learning "
            "rate 1e-6, values clipped at 0.2",
        ),
    ],
)
def test_the_loss(fields: dict[str, Any], words: str) -> None:
    assert method_words.loss(algorithm(**fields)) == words


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "reward minus the group's mean, divided by the group's population standard deviation + 0.0001"),
        (
            {"scale": "batch_std", "std_ddof": 1, "advantage_eps": 0},
            "reward minus the group's mean, divided by the whole batch's sample standard deviation + 0",
        ),
        ({"scale": "none"}, "reward minus the group's mean, not divided (Dr. GRPO)"),
        (
            {"advantage": "reinforce", "scale": "none"},
            "the reward itself: compared with nothing, not divided (REINFORCE)",
        ),
        (
            {"advantage": "reinforce_baseline", "scale": "batch_std"},
            "reward minus the mean of the whole step, divided by the step's population standard deviation + 0.0001",
        ),
        (
            {"advantage": "rloo", "scale": "none"},
            "reward minus the mean of the group's other completions, not divided (RLOO)",
        ),
        ({"advantage": "maxrl", "scale": "none"}, "reward minus the group's mean, divided by that mean (MaxRL)"),
        (
            {"advantage": "pass_at_k", "pass_k": 4},
            "what a completion adds to the mean best reward of 4 of its group, divided by its standard deviation + "
            "0.0001 (pass@k)",
        ),
        (
            {"advantage": "reinforce_pp_baseline", "scale": "batch_std"},
            "reward minus the group's mean, then minus the mean over all tokens of the step, divided by their "
            "population standard deviation + 0.0001 (REINFORCE++)",
        ),
        (
            {"multi_objective_aggregation": "normalize_then_sum"},
            "each reward component minus its group's mean, divided by its group's population standard deviation + "
            "0.0001; their weighted sum minus its mean over the step, divided by its population standard deviation + "
            "0.0001 (GDPO)",
        ),
        (
            {"supervision": "process", "scale": "none"},
            "each step's reward minus the mean over all steps of its group, not divided; a token's advantage is the "
            "sum over the steps that end at it or later (process supervision)",
        ),
        (
            {"advantage": "gae", "scale": "none"},
            "generalised advantage estimation with a learned critic, γ 1, λ 0.95, not divided",
        ),
    ],
)
def test_the_normalization(fields: dict[str, Any], words: str) -> None:
    assert method_words.normalization(algorithm(**fields)) == words


def test_only_what_compares_with_the_group_says_so() -> None:
    for advantage, scales in SCALES.items():
        for scale in scales:
            k = 2 if advantage == "pass_at_k" else None
            text = method_words.normalization(algorithm(advantage=advantage, scale=scale, pass_k=k))
            grouped = advantage in ("group", "rloo", "maxrl", "pass_at_k", "reinforce_pp_baseline")
            assert ("group" in text) == grouped, advantage


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"clip_high": 0.28}, "ratio kept between 1 − 0.2 and 1 + 0.28"),
        (
            {"clip_delta": 4},
            "ratio kept between 1 − 0.2 and 1 + 0.2; where the advantage is negative it counts as at most 4",
        ),
        (
            {"loss": "gspo", "aggregation": "sequence_mean", "clip_low": 3e-4, "clip_high": 4e-4},
            "each completion's ratio (geometric mean over tokens) kept between 1 − 0.0003 and 1 + 0.0004",
        ),
        (
            {"loss": "gmpo", "aggregation": "sequence_mean", "clip_low": 0.4, "clip_high": 0.4},
            "each token's log-ratio kept between −0.4 and 0.4",
        ),
        ({"loss": "cispo", "clip_high": 5}, "each token's weight kept at or below 5; no token loses its gradient"),
        (
            {"loss": "cispo", "cispo_bound": "relative"},
            "each token's weight kept between 1 − 0.2 and 1 + 0.2; no token loses its gradient",
        ),
        ({"loss": "sapo"}, "no clip: a soft gate with τ 1 and 1.05"),
        ({"loss": "dppo"}, "no clip of the ratio: no gradient beyond a difference of probabilities of 0.15"),
        ({"loss": "reinforce"}, "none: the loss has no ratio"),
    ],
)
def test_the_clipping(fields: dict[str, Any], words: str) -> None:
    assert method_words.clipping(algorithm(**fields)) == words


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({}, "At μ 1 with one mini-batch the ratio is 1 and clipping never acts."),
        ({"mini_batches": 2}, ""),
        ({"inner_iterations": 2}, ""),
        ({"loss": "sapo"}, "At μ 1 with one mini-batch the ratio is 1 and nothing is held back."),
        (
            {"dynamic_sampling": {"enabled": True}},
            "One update follows each sampled batch, so the ratio is 1, except for groups left over from an earlier "
            "step.",
        ),
        ({"loss": "reinforce"}, ""),
    ],
)
def test_that_clipping_never_acts_is_said_only_where_it_never_does(fields: dict[str, Any], note: str) -> None:
    assert method_words.clipping_note(algorithm(**fields)) == note


@pytest.mark.parametrize(
    ("parts", "penalty", "reference"),
    [
        ({}, "none (β 0)", "none (β 0)"),
        (
            {"algorithm": {"kl": {"coef": 0.04}}},
            "β 0.04, estimator k3, to the reference, added to the loss",
            "the base model, frozen; same weights as above",
        ),
        (
            {"algorithm": {"kl": {"coef": 0.04, "target": "old"}}},
            "β 0.04, estimator k3, to the old policy, added to the loss",
            "none: the KL penalty is to the old policy",
        ),
        (
            {"algorithm": {"kl": {"coef": 0.2, "place": "reward", "controller": "adaptive"}}},
            "β 0.2 at the start, moved towards 6 nats a completion (horizon 10,000 completions), estimator k3, to the "
            "reference, taken off the reward",
            "the base model, frozen; same weights as above",
        ),
        (
            {"algorithm": {"kl": {"coef": 0.001}, "reference": {"refresh": "replace"}}},
            "β 0.001, estimator k3, to the reference, added to the loss",
            "at first the base model; replaced by the policy every 400 steps",
        ),
        (
            {"algorithm": {"kl": {"coef": 0.001}, "reference": {"refresh": "average", "every": 512}}},
            "β 0.001, estimator k3, to the reference, added to the loss",
            "at first the base model; every 512 steps 60 % of the policy's weights and the rest of its own",
        ),
        (
            {"algorithm": {"kl": {"coef": 0.001}}, "model": {"path": "m", "lora": {"rank": 8}}},
            "β 0.001, estimator k3, to the reference, added to the loss",
            "the base model: the trained model with its adapters off",
        ),
    ],
)
def test_the_penalty_and_what_it_pulls_back_to(parts: dict[str, Any], penalty: str, reference: str) -> None:
    found = config(**parts)
    assert method_words.kl(found) == penalty
    assert method_words.reference(found) == reference


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "Their advantages are 0. What was scored of them still counts in the loss's mean."),
        (
            {"kl": {"coef": 0.1}, "entropy_coef": 0.01},
            "Their advantages are 0. What was scored of them still counts in the loss's mean, in the KL penalty and in "
            "the entropy bonus.",
        ),
        ({"denominator": "informative"}, "Their advantages are 0. They are in no denominator of the loss."),
        (
            {"denominator": "informative", "kl": {"coef": 0.1}},
            "Their advantages are 0. What was scored of them still counts in the KL penalty.",
        ),
        ({"loss": "sequence_ratio", "aggregation": "sequence_total"}, "Their advantages are 0."),
        (
            {"advantage": "reinforce", "scale": "none"},
            "They are learned from all the same: rewards are compared with nothing. What was scored of them still "
            "counts in the loss's mean.",
        ),
        (
            {"kl": {"coef": 0.1, "place": "reward"}},
            "Their rewards are equal before the KL penalty; with it their advantages need not be 0. What was scored of "
            "them still counts in the loss's mean.",
        ),
        (
            {"advantage": "gae", "scale": "none"},
            "The critic's advantages are not 0 for them, so they are learned from.",
        ),
    ],
)
def test_what_becomes_of_groups_without_signal(fields: dict[str, Any], words: str) -> None:
    assert method_words.silent_groups(algorithm(**fields), remaining=True) == words
    assert method_words.silent_groups(algorithm(**fields), remaining=False) == ""


def test_the_method_s_name() -> None:
    name = method_words.training_method
    assert name(algorithm()) == ("GRPO", "Group Relative Policy Optimization (GRPO)")
    assert name(algorithm(loss="sapo"))[1] == "Group Relative Policy Optimization (GRPO), with the loss sapo"
    assert name(algorithm(advantage="gae", scale="none"))[0] == "PPO"
    assert name(algorithm(advantage="reinforce", scale="none", loss="reinforce")) == ("REINFORCE", "REINFORCE")


def test_what_is_done_between_sampling_and_update() -> None:
    said = method_words.sampling_controls
    assert said(algorithm()) == ["tokens weighed by trainer over sampler probability, at most 2"]
    assert said(algorithm(correction={"mode": "none"})) == []
    assert said(algorithm(dynamic_sampling={"enabled": True}, correction={"mode": "sequence_mask"})) == [
        "groups with equal rewards are replaced by further ones, from at most 10 batches for a step (dynamic sampling)",
        "completions whose mean trainer-over-sampler ratio is outside 0.99 to 1.01 left out",
    ]
    assert method_words.overlong(algorithm()) == ""
    assert method_words.overlong(algorithm(overlong={"buffer_tokens": 4096})) == (
        "up to 1 taken off in a straight line over the last 4,096 tokens before the limit (soft overlong punishment)"
    )
    assert method_words.adapters(config()) == ""
    assert method_words.adapters(config(model={"path": "m", "lora": {"rank": 8, "targets": "attention"}})) == (
        "LoRA adapters of rank 8, alpha 32, on attention; all other weights stand still"
    )
