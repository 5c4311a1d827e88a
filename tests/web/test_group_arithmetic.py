"""What a group's page calculates is what the trainer calculates: for every estimator, scaling and setting, on rewards
that hypothesis makes, with samples that were not scored, equal groups and groups in which shaping alone varies.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from django.test import Client
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.catalog.services import verifier_version_create
from cohort.review.models import Group, Sample
from cohort.web.launch.variants import Variant, variant_of
from cohort.web.review.arithmetic import derive, group_scores, stored_only, variants_for
from grpo_core.advantages.base import Estimator, GroupScores, Signal, StepScores
from grpo_core.advantages.settings import ESTIMATORS, IN_PLACE_OF_GROUP
from grpo_core.algo.advantages import Advantages, step_advantages
from grpo_core.config.algorithm import AlgorithmConfig
from grpo_core.config.run import RunConfig
from tests.core.tiny import config
from tests.factories.runs import Maker, add_group, add_steps
from tests.web.pages import html
from tests.web.run_page import words

WEIGHTS = {"answer": 1.0, "format": 0.25}
REWARDS = st.sampled_from([0.0, 1.0, 0.1, 0.30000000000000004, 0.3, -0.5, 0.25, 1e-9]) | st.floats(-3, 3)
CASES = [(estimator, scale) for estimator in (*ESTIMATORS.values(), *IN_PLACE_OF_GROUP) for scale in estimator.scales]


def algorithms(estimator: Estimator, scale: str) -> st.SearchStrategy[AlgorithmConfig]:
    chosen: dict[str, Any] = {estimator.chosen_by: estimator.name, "scale": scale}
    if estimator.needed:
        chosen["pass_k"] = 2
    own = st.fixed_dictionaries(
        {
            "std_ddof": st.sampled_from([0, 1]),
            "advantage_eps": st.sampled_from([0.0, 1e-4, 0.1]),
            "signal_gate": st.sampled_from(["success", "reward"]),
        }
    )
    return own.map(lambda given: AlgorithmConfig.model_validate({**chosen, **given}))


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[GroupScores], list[Signal]]:
    """Groups of four completions as they are stored, and what varies in each."""
    groups, signals = [], []
    for _ in range(draw(st.integers(1, 3))):
        rewards = draw(st.lists(REWARDS, min_size=4, max_size=4) | REWARDS.map(lambda one: [one] * 4))
        missing = draw(st.sets(st.integers(0, 3), max_size=4))
        groups.append(
            GroupScores(
                rewards=[None if g in missing else reward for g, reward in enumerate(rewards)],
                tokens=draw(st.lists(st.integers(3, 9), min_size=4, max_size=4)),
                components=[{"answer": reward, "format": draw(REWARDS)} for reward in rewards],
                weights=WEIGHTS,
                step_rewards=[draw(st.lists(REWARDS, max_size=3)) for _ in range(4)],
            )
        )
        signals.append("unscored" if len(missing) > 2 else draw(st.sampled_from(["mixed", "phantom"])))
    return groups, signals


def trained(groups: Sequence[GroupScores], signals: Sequence[Signal], algorithm: AlgorithmConfig) -> Advantages:
    components = [[[own.components[g][name] for g in range(4)] for own in groups] for name in WEIGHTS]
    scores = StepScores(
        rewards_PG=torch.tensor([[reward or 0.0 for reward in own.rewards] for own in groups], dtype=torch.float64),
        scored_PG=torch.tensor([[reward is not None for reward in own.rewards] for own in groups]),
        lengths_PG=torch.tensor([own.tokens for own in groups]),
        signals=signals,
        components_CPG=torch.tensor(components, dtype=torch.float64),
        weights_C=torch.tensor(list(WEIGHTS.values()), dtype=torch.float64),
        step_rewards=[[list(enumerate(steps)) for steps in own.step_rewards] for own in groups],
        values=[[torch.zeros(tokens, dtype=torch.float64) for tokens in own.tokens] for own in groups],
    )
    return step_advantages(scores, algorithm)


@pytest.mark.parametrize(("estimator", "scale"), CASES, ids=lambda value: getattr(value, "name", value))
def test_the_page_calculates_what_the_trainer_does(estimator: Estimator, scale: str) -> None:
    @settings(max_examples=150, deadline=None)
    @given(algorithms(estimator, scale), steps())
    def check(algorithm: AlgorithmConfig, step: tuple[list[GroupScores], list[Signal]]) -> None:
        groups, signals = step
        variant = variant_of(algorithm)
        if estimator.critic:
            assert "V_t" in stored_only(variant, algorithm)
            return
        assert stored_only(variant, algorithm) == ""
        advantages = trained(groups, signals, algorithm)
        for p, own in enumerate(groups):
            derived = derive(own, variant, algorithm, step=groups, phantom=signals[p] == "phantom")
            scored = len(own.scored)
            if derived is None:
                assert not advantages.advantages_PG[p].any(), "the page has nothing to show where all are 0"
                continue
            if derived.advantages is None:
                assert advantages.tokens is not None
                for g, tokens in enumerate(advantages.tokens[p]):
                    shown = [sum_ for _, _, sum_ in derived.steps[g]]
                    assert tokens.tolist() == pytest.approx(shown + [0.0] * (len(tokens) - len(shown)), abs=1e-9)
                continue
            shown = [0.0 if value is None else value for value in derived.advantages]
            assert advantages.advantages_PG[p].tolist() == pytest.approx(shown, rel=1e-7, abs=1e-9), scored
            assert [value is None for value in derived.advantages] == [reward is None for reward in own.rewards]

    check()


def test_a_variant_that_the_run_did_not_use_is_calculated_as_if_it_had() -> None:
    """Of a run with process supervision, Dr. GRPO's variant is on whole completions: 1 − 0.5 and 0 − 0.5."""
    algorithm = AlgorithmConfig.model_validate({"supervision": "process"})
    variant = next(each for each in variants_for(algorithm) if each.value == "group/none/0")
    derived = derive(GroupScores([1.0, 0.0], step_rewards=[[0.2], []]), variant, algorithm)
    assert derived is not None
    assert (derived.advantages, derived.steps) == ((0.5, -0.5), ())


def sample(index: int, components: dict[str, Any], **fields: Any) -> Sample:
    scores = {name: {"value": None, "steps": None, **score} for name, score in components.items()}
    return Sample(index=index, completion="abcdef", tokens=7, finish_reason="eos", components=scores, **fields)


def test_step_rewards_are_those_of_the_components_in_the_order_of_the_text() -> None:
    """Steps of `equations` end at characters 2 and 6 and weigh 2; `answer` has no steps and falls on the end token,
    or, without one, on the step that ends the text."""
    scored = {
        "equations": {"value": 0.5, "steps": [{"end": 2, "value": 1.0}, {"end": 6, "value": 0.0}]},
        "answer": {"value": 1.0},
    }
    run = RunConfig.model_validate(
        config().to_dict()
        | {
            "reward": {
                "components": [
                    {"name": "equations", "kind": "equations", "weight": 2},
                    {"name": "answer", "kind": "exact"},
                ]
            },
            "algorithm": {"supervision": "process"},
        }
    )
    whole, cut = sample(0, scored, reward=2.0), sample(1, scored, reward=2.0)
    cut.finish_reason = "length"
    failed = sample(2, {**scored, "answer": {"value": None}}, reward=0.0)
    assert group_scores([whole, cut, failed], run).step_rewards == [[2.0, 0.0, 1.0], [2.0, 1.0], [0.0]]


def test_the_sentence_of_what_is_only_stored_has_the_run_s_numbers() -> None:
    algorithm = AlgorithmConfig.model_validate(
        {"advantage": "gae", "scale": "none", "critic": {"gamma": 0.9, "gae_lambda": 0.5}}
    )
    assert "A_t = δ_t + 0.9·0.5·A_{t+1}, δ_t = r_t + 0.9·V_{t+1} − V_t" in stored_only(variant_of(algorithm), algorithm)
    by_token = AlgorithmConfig.model_validate(
        {"advantage": "reinforce_pp", "scale": "batch_std", "kl": {"coef": 0.1, "place": "reward", "estimator": "k1"}}
    )
    assert "KL penalty of each token" in stored_only(variant_of(by_token), by_token)
    assert isinstance(variant_of(by_token), Variant)


def page_of(client: Client, group: Group, **query: str) -> str:
    response = client.get(f"/p/ours/runs/{group.run_id}/groups/{group.pk}/", query)
    assert response.status_code == 200
    return words(html(response))


def test_a_page_with_gdpo_leads_from_components_to_advantages(viewer: Client, maker: Maker) -> None:
    """answer 1, 0 has mean 0.5 and std 0.5: z = ±1. format 1, 1 does not differ: 0. x = ±1 · weight 1, whose
    std over the step of one group is 1: A = ±1."""
    run = maker.run(
        state="training",
        algorithm={"multi_objective_aggregation": "normalize_then_sum", "advantage_eps": 0},
        sampling={"group_size": 2, "prompts_per_step": 1},
    )
    page = page_of(viewer, add_group(maker.attempt(run), [1.0, 0.0], advantages=[1.0, -1.0]))
    assert "std of x over the step = 1 A = (x − 0) / (1 + 0), x = Σ weight" in page
    assert "1 1 1 1 0 1 1 1 2 1 0 0 0 −1 −1 −1" in page, "format, answer, reward, their z, x and A"
    assert "→ 1 gives +1.00 , 0 gives −1.00" in page


def test_a_page_with_process_rewards_has_the_steps(viewer: Client, maker: Maker) -> None:
    """Step rewards 1, 0 and 1, 1: mean 0.75, not divided: +0.25, −0.75 and +0.25, +0.25, and sums from the end."""
    given: dict[str, Any] = {"project": maker.project, "actor": maker.actor, "name": "steps"}
    spec = {"components": [{"name": "answer", "kind": "equations"}]}
    maker = replace(maker, verifier_version=verifier_version_create(**given, spec=spec))
    run = maker.run(state="training", algorithm={"supervision": "process", "scale": "none"})
    group = add_group(maker.attempt(run), [1.0, 1.0], advantages=[-0.25, 0.375])
    for sample, second in zip(group.samples.order_by("index"), (0.0, 1.0), strict=True):
        steps = [{"end": 2, "value": 1.0}, {"end": 5, "value": second}]
        sample.components = {"answer": {"value": 1.0, "passed": True, "error": None, "steps": steps}}
        sample.save()
    page = page_of(viewer, group)
    assert "steps = 0.75 A = Σ over steps" in page
    assert "step 1: r 1.000, alone 0.250, its tokens A −0.500" in page
    assert "step 2: r 0.000, alone −0.750, its tokens A −0.750" in page
    assert "A −0.25" in page, "the stored mean over the completion's tokens"


def test_a_page_has_what_dynamic_sampling_did_in_the_step(viewer: Client, maker: Maker) -> None:
    run = maker.run(state="training", algorithm={"dynamic_sampling": {"enabled": True}})
    attempt = maker.attempt(run)
    names = ("batches", "discarded_groups", "surplus_groups")
    add_steps(attempt, [{f"dynamic_sampling/{name}": float(n) for n, name in enumerate(names, start=3)}])
    group = add_group(attempt, [1.0, 0.0])
    add_group(attempt, [1.0, 1.0], index=1, signal="all_equal", discarded="all_right")
    page = page_of(viewer, group)
    assert "3 batches sampled, 4 groups discarded, 5 left over for the next step." in page
    assert "Stored: 1 group trained on, 1 discarded as all right." in page
