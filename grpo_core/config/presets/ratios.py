"""Papers that replace what PPO's clip does with the probability ratio."""

from functools import partial

from grpo_core.config.presets.preset import Preset

_GSPO_CITATION = "Zheng et al. 2025, Group Sequence Policy Optimization"
_GSPO_ALGORITHM = {
    "advantage": "group",
    "scale": "group_std",
    "loss": "gspo",
    "aggregation": "sequence_mean",
    "clip_low": 3e-4,
    "clip_high": 4e-4,
    "kl": {"coef": 0.0},
    "mini_batches": 4,
}

_paper = partial(Preset, family="ratio")

RATIO_FAMILY = (
    _paper(
        name="gspo",
        title="One ratio for a completion, clipped as a whole",
        paper="GSPO",
        citation=_GSPO_CITATION,
        settings={
            "algorithm": _GSPO_ALGORITHM,
        },
        notes=(
            "Clip range and mini-batches: section 5.1. The range belongs to a geometric mean over tokens, which moves "
            "far less than one token's ratio."
        ),
    ),
    _paper(
        name="gspo_token",
        title="GSPO with an advantage for each token",
        paper="GSPO-token",
        citation=_GSPO_CITATION,
        settings={
            "algorithm": _GSPO_ALGORITHM | {"loss": "gspo_token"},
        },
        notes="With one advantage for a whole completion its gradient is GSPO's.",
    ),
    _paper(
        name="gmpo",
        title="Geometric mean of clipped token ratios",
        paper="GMPO",
        citation="Zhao et al. 2025, Geometric-Mean Policy Optimization",
        settings={
            "sampling": {"group_size": 8, "prompts_per_step": 128},
            "algorithm": {
                "loss": "gmpo",
                "aggregation": "sequence_mean",
                "clip_low": 0.4,
                "clip_high": 0.4,
                "kl": {"coef": 0.0},
                "mini_batches": 8,
            },
        },
        notes=(
            "The clip range is in log space: ratios between e^−0.4 and e^0.4. 128 problems × 8 a step in 8 updates are "
            "those of its authors' code, which is Dr. GRPO's."
        ),
    ),
    _paper(
        name="luspo",
        title="GSPO with each completion's loss times its length",
        paper="LUSPO",
        citation=(
            "Length-Unbiased Sequence Policy Optimization: Revealing and Controlling Response Length Variation in "
            "RLVR, 2026, arXiv 2602.05261"
        ),
        settings={
            "algorithm": {
                "loss": "luspo",
                "aggregation": "sequence_sum",
                "clip_low": 2e-3,
                "clip_high": 2.5e-3,
            },
        },
        notes=(
            "The clip range: section 5.1. The paper's sizes were not verified. The ratio moves only with several "
            "updates per batch."
        ),
    ),
    _paper(
        name="cispo",
        title="The ratio as a bounded weight, so that every token keeps its gradient",
        paper="CISPO",
        citation=(
            "MiniMax 2025, MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention; numbers from "
            "ScaleRL (2025, The Art of Scaling Reinforcement Learning Compute for LLMs)"
        ),
        settings={
            "sampling": {"group_size": 16},
            "algorithm": {
                "advantage": "group",
                "scale": "batch_std",
                "loss": "cispo",
                "cispo_bound": "absolute",
                "clip_high": 5.0,
                "aggregation": "token_mean",
            },
        },
        notes=(
            "MiniMax-M1 does not state its bound; 5, G 16 and the batch's standard deviation are ScaleRL's. ScaleRL "
            "averages over each prompt's tokens first, computes the last layer in float32 and trains on samples some "
            "steps old. Updates per batch were not verified. The ratio moves only with several of them."
        ),
    ),
    _paper(
        name="sapo",
        title="A soft gate in place of the clip",
        paper="SAPO",
        citation="Gao et al. 2025, Soft Adaptive Policy Optimization",
        settings={
            "algorithm": {
                "advantage": "group",
                "scale": "group_std",
                "loss": "sapo",
                "aggregation": "sequence_mean",
                "sapo": {"tau_positive": 1.0, "tau_negative": 1.05},
            },
        },
        notes="The paper's sizes were not verified. The ratio moves only with several updates per batch.",
    ),
    _paper(
        name="vespo",
        title="A smooth weight on the ratio of whole completions",
        paper="VESPO",
        citation=(
            "Shen et al. 2026, VESPO: Variational Sequence-Level Soft Policy Optimization for Stable Off-Policy LLM "
            "Training"
        ),
        settings={
            "algorithm": {
                "loss": "vespo",
                "aggregation": "token_mean",
                "vespo": {"k_positive": 2.0, "lambda_positive": 3.0, "k_negative": 3.0, "lambda_negative": 2.0},
            },
        },
        notes=(
            "The four numbers and the mean over tokens are those of TRL's implementation. The ratio is not made "
            "independent of length. The paper's sizes were not verified. The ratio moves only with several updates per "
            "batch."
        ),
    ),
    _paper(
        name="dppo",
        title="Stops at a distance between probabilities, not at a ratio",
        paper="DPPO",
        citation="Qi et al. 2026, Rethinking the Trust Region in LLM Reinforcement Learning",
        settings={
            "sampling": {"group_size": 16, "prompts_per_step": 256},
            "algorithm": {"loss": "dppo", "dppo": {"divergence": "tv", "threshold": 0.15}, "mini_batches": 8},
        },
        notes=(
            "The paper's thresholds for divergence tv: 0.15 for dense models (0.2 for mixtures of experts, as a "
            "secondary source says); for kl: 0.05. Its ratio and divergence are to the policy that sampled, so the "
            "sampler's own log-probabilities are the old ones here and no correction weight is applied besides. 256 "
            "problems × 16 a step in 8 updates."
        ),
    ),
)
