"""What decides which samples a step learns from, through the real command: refill, overlong, masks, KL in the reward,
references that follow, adapters, process rewards, the critic."""

import pytest
import torch
from safetensors.torch import load_file

from grpo_core.model.lora import adapters_off
from grpo_core.records.types import ComponentScore, StepScore
from grpo_core.rewards.kinds import equations
from grpo_core.trainer.inputs import load_inputs

from .runs import groups_of, metrics_of, outcome_of, samples_of, train_here, warnings_of
from .tiny import config


def run(home, out, **parts):
    """Train on the model in which one byte in nine ends a completion."""
    defaults = {"model": {"path": "ends"}, "sampling": SAMPLING}
    assert train_here(home, out, **{**defaults, **parts}) == 0
    return metrics_of(out)


SAMPLING = {"group_size": 4, "prompts_per_step": 4, "max_completion_tokens": 16}
LENGTHS = {
    "overlong": {"buffer_tokens": 12},
    "signal_gate": "reward",
}  # the only reward that a random model earns anything from

# ---------------------------------------------------------------------- dynamic sampling


def test_refill_fills_the_step_and_keeps_what_is_left_over(home, tmp_path):
    """One byte for an answer, of 258: about one group in five of 64 completions has a right one."""
    dynamic = {"enabled": True, "max_batches": 50}
    parts = {"model": {"path": "base"}, "algorithm": {"dynamic_sampling": dynamic}, "optim": {"steps": 4, "lr": 1e-4}}
    sampling = {"group_size": 64, "prompts_per_step": 4, "max_completion_tokens": 1}
    metrics = run(home, tmp_path / "run", sampling=sampling, **parts)
    groups, sums = groups_of(tmp_path / "run"), outcome_of(tmp_path / "run")["totals"]
    for step in range(1, 5):
        trained = [g for g in groups if g["step"] == step and g["discarded"] is None]
        assert len(trained) == 4
        assert all(group["signal"] == "mixed" for group in trained)
        assert all(any(sample["advantage"] != 0 for sample in group["samples"]) for group in trained)
    left_out = [group for group in groups if group["discarded"] is not None]
    assert left_out, "the test must see a group without a signal"
    assert {group["discarded"] for group in left_out} == {"all_wrong"}
    assert all(sample["advantage"] == 0 for group in left_out for sample in group["samples"])
    assert sums["groups_discarded"] == len(left_out) == sum(m["dynamic_sampling/discarded_groups"] for m in metrics)
    # Every group that was sampled is trained on, left out, or left over at the end.
    assert sums["groups"] == 4 * 4 + len(left_out) + metrics[-1]["dynamic_sampling/surplus_groups"]
    # What was left over is trained on first in the next step, and told where it comes from.
    for step in range(2, 5):
        older = [g for g in groups if g["step"] == step and g["sampled_at"] is not None]
        assert len(older) == metrics[step - 2]["dynamic_sampling/surplus_groups"]
        assert [group["index"] for group in older] == list(range(len(older)))
        assert all(group["sampled_at"] == step - 1 for group in older)
    assert any(m["dynamic_sampling/surplus_groups"] > 0 for m in metrics), "the test must see a surplus"
    assert any("clip_ratio/high_mean" in m for m in metrics)  # an older group has a ratio that is not 1
    for step, m in enumerate(metrics, start=1):
        kept = [s for g in groups if g["step"] == step and g["discarded"] is None for s in g["samples"]]
        if "clip_ratio/high_mean" not in m:
            assert {sample["clipped"] for sample in kept} == {None}
            continue
        clipped = sum((sample["clipped"] or 0) * sample["tokens"] for sample in kept)
        both = m["clip_ratio/low_mean"] + m["clip_ratio/high_mean"]
        assert clipped == pytest.approx(both * sum(sample["tokens"] for sample in kept))


def test_refill_stops_at_its_bound_and_says_so(home, tmp_path):
    algorithm = {"dynamic_sampling": {"enabled": True, "max_batches": 3}}
    sampling = {**SAMPLING, "max_completion_tokens": 4}
    metrics = run(home, tmp_path / "run", model={"path": "base"}, sampling=sampling, algorithm=algorithm)
    assert [m["dynamic_sampling/batches"] for m in metrics] == [3, 3]
    assert outcome_of(tmp_path / "run")["totals"]["discarded_all_wrong"] == 2 * 3 * 4
    assert outcome_of(tmp_path / "run")["totals"]["groups"] == 2 * 3 * 4
    assert len(warnings_of(tmp_path / "run")) == 2
    assert [m["grad_norm"] for m in metrics] == [0, 0]


def test_a_length_alone_is_no_signal_to_refill_by(home, tmp_path):
    """DAPO counts right answers: groups that only the overlong punishment sets apart are left out all the same."""
    dynamic = {"enabled": True, "max_batches": 2}
    metrics = run(home, tmp_path / "run", algorithm={**LENGTHS, "signal_gate": "success", "dynamic_sampling": dynamic})
    groups = groups_of(tmp_path / "run")
    assert {group["discarded"] for group in groups} == {"all_wrong"}
    assert any(group["signal"] == "phantom" for group in groups)
    assert [m["dynamic_sampling/batches"] for m in metrics] == [2, 2]


# ---------------------------------------------------------------------- length limit


def test_long_completions_are_punished_softly_and_truncated_ones_masked(home, tmp_path):
    overlong = {"buffer_tokens": 12, "penalty": 0.5, "mask_truncated": True}
    metrics = run(home, tmp_path / "run", algorithm={"overlong": overlong})
    samples = samples_of(tmp_path / "run")
    for sample in samples:
        # Free up to 4 of 16 tokens, then a twelfth for each: −1 at 16; half of it comes off the reward.
        value = -max(0, sample["tokens"] - 4) / 12
        assert sample["components"]["overlong"]["value"] == pytest.approx(value)
        right = sample["components"]["answer"]["value"]
        assert sample["reward"] == pytest.approx(right + 0.5 * value)
        cut = sample["finish_reason"] == "length"
        assert sample["mask_cause"] == ("truncated" if cut else None)
        assert not cut or sample["tokens"] == 16
    assert min(sample["tokens"] for sample in samples) < 4
    assert metrics[0]["rewards/overlong/mean"] < 0
    truncated = sum(sample["finish_reason"] == "length" for sample in samples)
    # A ninth of all bytes end, by the generation config; with one id alone hardly any would.
    assert 0 < truncated < len(samples) / 2
    assert sum(m["masked/truncated"] for m in metrics) == truncated
    assert outcome_of(tmp_path / "run")["totals"]["masked_truncated"] == truncated


# ---------------------------------------------------------------------- KL and reference


def test_kl_in_the_reward_is_taken_off_before_advantages(home, tmp_path):
    kl = {"coef": 0.5, "estimator": "k1", "place": "reward"}
    algorithm = {**LENGTHS, "kl": kl, "scale": "none"}
    metrics = run(home, tmp_path / "run", algorithm=algorithm, optim={"steps": 3, "lr": 3e-3})
    assert metrics[0]["kl"] == 0  # the policy is the reference
    assert metrics[2]["kl"] != 0
    groups = groups_of(tmp_path / "run")
    assert all(sample["shaped_reward"] is None for g in groups if g["step"] == 1 for sample in g["samples"])
    moved = 0.0
    for group in [g for g in groups if g["step"] == 3]:
        shaped = [s["reward"] if s["shaped_reward"] is None else s["shaped_reward"] for s in group["samples"]]
        mean = sum(shaped) / 4
        assert [s["advantage"] for s in group["samples"]] == pytest.approx([reward - mean for reward in shaped])
        moved += sum(s["reward"] - reward for s, reward in zip(group["samples"], shaped, strict=True))
    # What came off, in all, is β times the summed divergence: 16 completions times its mean per completion.
    assert moved == pytest.approx(0.5 * 16 * metrics[2]["kl_per_completion"], rel=1e-6)


def test_kl_in_the_reward_is_that_of_the_policy_that_sampled(home, tmp_path):
    """One step ahead, the groups of step 2 come from the untouched policy, whose divergence is 0 though the update of
    step 1 has moved on; later ones diverge, and k1 is their mean: above 0."""
    kl = {"coef": 0.01, "estimator": "k1", "place": "reward"}
    parts = {"algorithm": {**LENGTHS, "kl": kl, "scale": "none"}, "engine": {"threads": 1, "one_step_off": True}}
    metrics = run(home, tmp_path / "run", **parts, optim={"steps": 6, "lr": 1e-2})
    assert metrics[0]["kl_per_completion"] == 0
    assert metrics[1]["kl_per_completion"] == pytest.approx(0, abs=1e-4)
    assert all(m["kl_per_completion"] > 0.01 for m in metrics[2:])


@pytest.mark.parametrize(
    ("reference", "zero_at"), [({}, {1}), ({"refresh": "replace", "every": 2}, {1, 3, 5})], ids=["never", "replace"]
)
def test_the_reference_follows_the_policy(home, tmp_path, reference, zero_at):
    algorithm = {**LENGTHS, "kl": {"coef": 0.1}, "reference": reference}
    warm = {**SAMPLING, "temperature": 0.7}  # in policy and reference alike, or the first KL would not be 0
    metrics = run(home, tmp_path / "run", sampling=warm, algorithm=algorithm, optim={"steps": 5, "lr": 1e-3})
    assert {step for step, m in enumerate(metrics, 1) if m["kl"] == 0} == zero_at


# ---------------------------------------------------------------------- sampler and trainer


def test_the_sampler_is_compared_with_the_trainer(home, tmp_path):
    metrics = run(home, tmp_path / "run", sampling={**SAMPLING, "temperature": 0.7}, algorithm=LENGTHS)
    for m in metrics:
        assert m["sampling/importance_ratio/mean"] == pytest.approx(1, abs=1e-5)
        assert m["sampling/importance_ratio/min"] <= m["sampling/importance_ratio/mean"]
        assert 0 < m["sampling/logp_difference/max"] < 1e-4  # the temperature is in both
        assert m["sampling/truncated_share"] == 0
    assert not any(name.startswith(("kl", "clip_ratio")) for m in metrics for name in m)


def test_completions_far_from_the_sampler_are_left_out(home, tmp_path):
    """A window that the ratio 1 is not in leaves out everything, of numerator and denominator."""
    correction = {"mode": "sequence_mask", "low": 1.5, "high": 2.0}
    metrics = run(home, tmp_path / "run", algorithm={**LENGTHS, "correction": correction})
    assert [m["sampling/dropped_share"] for m in metrics] == [1, 1]
    assert [m["masked/importance"] for m in metrics] == [16, 16]
    assert [m.get("loss") for m in metrics] == [None, None], "a mean of nothing"
    samples = samples_of(tmp_path / "run")
    assert all(sample["mask_cause"] == "importance" for sample in samples)
    assert outcome_of(tmp_path / "run")["totals"]["masked_importance"] == 32


# ---------------------------------------------------------------------- adapters, steps, critic


def test_adapters_train_against_the_model_without_them(home, tmp_path):
    algorithm = {**LENGTHS, "kl": {"coef": 0.05}}
    model = {"path": "ends", "lora": {"rank": 4}}
    metrics = run(home, tmp_path / "run", model=model, algorithm=algorithm, optim={"steps": 3, "lr": 1e-2})
    assert metrics[0]["kl"] == 0
    assert metrics[2]["kl"] > 0
    final = tmp_path / "run" / "checkpoints" / "final"
    before, after = load_file(home / "ends" / "model.safetensors"), load_file(final / "model.safetensors")
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert all("proj" in name for name in moved)  # embeddings, norms and the output layer stand as they were
    assert (final / "adapter" / "adapter_model.safetensors").is_file()


def test_beta_zero_loads_no_reference(home):
    def inputs(**parts):
        return load_inputs(config(**parts), base=home)

    kl, lora = {"kl": {"coef": 0.1}}, {"path": "base", "lora": {"rank": 2}}
    assert inputs().reference is None
    assert inputs(algorithm={"kl": {"coef": 0.1, "target": "old"}}).reference is None
    assert inputs(algorithm=kl).reference is not None
    adapted = inputs(model=lora, algorithm=kl)
    assert adapted.reference is None
    with adapters_off(adapted.policy.model):
        pass  # the policy itself can be its reference


def test_process_rewards_differ_from_token_to_token(home, tmp_path, monkeypatch):
    def score(sample, params):
        """Each half of a completion is a step, right where its length is even."""
        size = len(sample.completion)
        ends = [end for end in {size // 2, size} if end]
        steps = tuple(StepScore(end=end, value=float(end % 2 == 0)) for end in sorted(ends))
        return ComponentScore(value=0.0, steps=steps)

    monkeypatch.setattr(equations, "score", score)
    reward = {"components": [{"name": "sums", "kind": "equations"}]}
    metrics = run(home, tmp_path / "run", reward=reward, algorithm={"supervision": "process"})
    samples = samples_of(tmp_path / "run")
    stepped = [sample for sample in samples if len(sample["components"]["sums"]["steps"]) > 1]
    assert stepped, "the test must see completions of several steps"
    assert any(sample["advantage"] != 0 for sample in stepped)
    assert {sample["reward"] for sample in samples} == {0.0}
    assert all(m["grad_norm"] > 0 for m in metrics)


def test_ppo_learns_values(home, tmp_path):
    algorithm = {**LENGTHS, "advantage": "gae", "scale": "batch_std", "critic": {"lr": 5e-3, "gae_lambda": 1.0}}
    metrics = run(home, tmp_path / "run", algorithm=algorithm, optim={"steps": 30, "lr": 1e-6})
    assert metrics[0]["explained_variance"] == pytest.approx(0, abs=1e-6)  # values start at 0
    late = [m["explained_variance"] for m in metrics[-5:]]
    assert sum(late) / 5 > 0.1
    assert all(m["value_loss"] > 0 and m["value_grad_norm"] > 0 for m in metrics)
