"""GRPO and the papers that keep its group mean: what each divides by, averages over and leaves out."""

from functools import partial
from typing import Any

from grpo_core.config.presets.preset import Preset

_DAPO_ALGORITHM: dict[str, Any] = {
    "advantage": "group",
    "scale": "group_std",
    "aggregation": "token_mean",
    "clip_low": 0.2,
    "clip_high": 0.28,
    "kl": {"coef": 0.0},
    "mini_batches": 16,
    "dynamic_sampling": {"enabled": True, "max_batches": 10},
    "overlong": {"buffer_tokens": 4096, "penalty": 1.0},
}
_DAPO_SAMPLING = {"group_size": 16, "prompts_per_step": 512, "max_completion_tokens": 20480}

_paper = partial(Preset, family="grpo")

GRPO_FAMILY = (
    _paper(
        name="deepseekmath",
        title="GRPO as first published",
        paper="DeepSeekMath",
        citation="Shao et al. 2024, DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
        settings={
            "sampling": {"group_size": 64, "prompts_per_step": 16, "max_completion_tokens": 1024},
            "algorithm": {
                "advantage": "group",
                "scale": "group_std",
                "aggregation": "sequence_mean",
                "kl": {"coef": 0.04, "estimator": "k3"},
                "inner_iterations": 1,
            },
            "optim": {"lr": 1e-6},
        },
        notes=(
            "The paper's batch is 1,024 completions: at 64 of a problem, 16 problems. It states neither ε nor which "
            "standard deviation it divides by."
        ),
    ),
    _paper(
        name="r1_zero",
        title="Pure reinforcement learning from rules",
        paper="DeepSeek-R1",
        citation="DeepSeek-AI 2025, DeepSeek-R1: Incentivizing Reasoning Capability in LLMs via Reinforcement Learning",
        settings={
            "sampling": {
                "group_size": 16,
                "prompts_per_step": 512,
                "temperature": 1.0,
                "max_completion_tokens": 32768,
            },
            "algorithm": {
                "advantage": "group",
                "scale": "group_std",
                "aggregation": "sequence_mean",
                "clip_low": 1.0,
                "clip_high": 10.0,
                "kl": {"coef": 0.001, "estimator": "k3"},
                "reference": {"refresh": "replace", "every": 25},
                "inner_iterations": 1,
                "mini_batches": 16,
            },
            "optim": {"lr": 3e-6},
        },
        notes=(
            "The paper counts each update as a step: 16 of them, of 32 questions, follow one sampled batch of 8,192 "
            "outputs, which is one step here. So its 400 steps between two renewals of the reference are 25. It splits "
            "the outputs at random; here the groups stay whole. ε 10 is stated for R1's first stage; below, a ratio "
            "cannot fall under 0, which is clip_low 1. After 8,200 of its steps the longest output grew to 65,536 "
            "tokens."
        ),
    ),
    _paper(
        name="dapo",
        title="Clip higher, mean over tokens, no KL, dynamic sampling",
        paper="DAPO",
        citation="Yu et al. 2025, DAPO: An Open-Source LLM Reinforcement Learning System at Scale",
        settings={
            "sampling": _DAPO_SAMPLING,
            "algorithm": {**_DAPO_ALGORITHM, "clip_delta": 10.0},
            "optim": {"lr": 1e-6, "warmup_steps": 20, "schedule": "constant", "weight_decay": 0.1},
        },
        notes=(
            "The paper's rewards are +1 and −1. Its table also has overlong filtering (overlong.mask_truncated), "
            "which the code that its authors published leaves off; that at most 10 batches are drawn for a step, the "
            "weight decay and the bound of 10 on the ratio (dual clip) are from that code. The paper's condition for "
            "dynamic sampling counts right answers, which is signal_gate: success."
        ),
    ),
    _paper(
        name="dr_grpo",
        title="No division by standard deviation or length",
        paper="Dr. GRPO",
        citation="Liu et al. 2025, Understanding R1-Zero-Like Training: A Critical Perspective",
        settings={
            "sampling": {
                "group_size": 8,
                "prompts_per_step": 128,
                "temperature": 1.0,
                "max_completion_tokens": 3000,
            },
            "algorithm": {
                "advantage": "group",
                "scale": "none",
                "aggregation": "constant",
                "aggregation_constant": 3000,
                "kl": {"coef": 0.0},
                "mini_batches": 8,
            },
            "optim": {"lr": 1e-6, "schedule": "constant"},
        },
        notes=(
            "The constant is the longest completion allowed; change both together. 128 problems a step in 8 updates "
            "are from the code that its authors published."
        ),
    ),
    _paper(
        name="bnpo",
        title="Mean over the tokens of each local batch",
        paper="TRL's bnpo",
        citation="TRL's loss_type bnpo, with TRL's defaults",
        settings={
            "sampling": {"group_size": 8, "temperature": 1.0},
            "algorithm": {
                "advantage": "group",
                "scale": "group_std",
                "std_ddof": 1,
                "advantage_eps": 1e-4,
                "aggregation": "local_token_mean",
                "local_batch": 8,
                "clip_low": 0.2,
                "clip_high": 0.2,
                "kl": {"coef": 0.0},
            },
            "optim": {"lr": 1e-6, "schedule": "linear"},
        },
        notes=(
            "local_batch is TRL's batch size of one device; with another one the loss is another. The reward "
            "normalization of the paper that is also called BNPO (Beta Normalization Policy Optimization) is not part "
            "of it."
        ),
    ),
    _paper(
        name="lite_ppo",
        title="Group mean, the whole batch's standard deviation, mean over tokens",
        paper="Lite-PPO",
        citation="Liu et al. 2025, Part I: Tricks or Traps? A Deep Dive into RL for LLM Reasoning",
        settings={
            "sampling": {
                "group_size": 8,
                "prompts_per_step": 128,
                "temperature": 0.99,
                "top_p": 0.99,
                "top_k": 100,
            },
            "algorithm": {
                "advantage": "group",
                "scale": "batch_std",
                "aggregation": "token_mean",
                "kl": {"coef": 0.0},
                "inner_iterations": 1,
                "mini_batches": 8,
                "correction": {"mode": "none"},
            },
        },
        notes=(
            "128 problems a step in 8 updates. top-p and top-k rule out the correction between sampler and trainer, "
            "which is Cohort's default."
        ),
    ),
    _paper(
        name="top_entropy",
        title="DAPO on the fifth of the tokens with the highest entropy",
        paper="Beyond the 80/20 Rule",
        citation=(
            "Wang et al. 2025, Beyond the 80/20 Rule: High-Entropy Minority Tokens Drive Effective Reinforcement "
            "Learning for LLM Reasoning"
        ),
        settings={"sampling": _DAPO_SAMPLING, "algorithm": {**_DAPO_ALGORITHM, "top_entropy_share": 0.2}},
        notes=(
            "The other settings are DAPO's, which the paper builds on. Its learning rate was not verified and is left "
            "open."
        ),
    ),
    _paper(
        name="intellect2",
        title="Two-sided clipping",
        paper="INTELLECT-2",
        citation=(
            "Prime Intellect 2025, INTELLECT-2: A Reasoning Model Trained Through Globally Decentralized Reinforcement "
            "Learning"
        ),
        settings={
            "sampling": {"group_size": 16},
            "algorithm": {
                "loss": "clip",
                "clip_low": 0.2,
                "clip_high": 0.2,
                "clip_delta": 4.0,
                "kl": {"coef": 0.001},
            },
            "optim": {"lr": 3e-7},
        },
        notes=(
            "δ, ε, β, G and the learning rate: section 4.1. The paper's batch, its updates per batch, how it filters "
            "groups and where it clips the gradient's norm were not verified and are left open. The ratio moves, and "
            "the clip acts, only with several updates per batch."
        ),
    ),
    _paper(
        name="gdpo",
        title="Each reward normalised by itself, then summed",
        paper="GDPO",
        citation=(
            "Liu et al. 2026, GDPO: Group reward-Decoupled Normalization Policy Optimization for Multi-reward RL "
            "Optimization"
        ),
        settings={
            "algorithm": {
                "advantage": "group",
                "scale": "group_std",
                "multi_objective_aggregation": "normalize_then_sum",
                "signal_gate": "reward",
            },
        },
        notes=(
            "Needs a reward of two components or more, which a preset cannot give. The paper's sizes were not verified."
        ),
    ),
    _paper(
        name="simplified",
        title="As GRPO is often summed up: unclipped ratio of whole completions",
        paper="simplified GRPO",
        citation="The form in which GRPO is often summed up, with DeepSeekMath's numbers (Shao et al. 2024)",
        settings={
            "sampling": {"group_size": 64, "max_completion_tokens": 1024},
            "algorithm": {
                "advantage": "group",
                "scale": "none",
                "loss": "sequence_ratio",
                "aggregation": "sequence_total",
                "kl": {"coef": 0.04, "target": "old", "place": "loss"},
                "inner_iterations": 1,
            },
            "optim": {"lr": 1e-6},
        },
        notes=(
            "A sum over completions, divided by nothing, so the loss grows with the batch. With one update per batch "
            "the ratio is 1 and the KL to the old policy is 0."
        ),
    ),
)
