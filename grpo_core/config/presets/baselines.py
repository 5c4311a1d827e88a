"""Papers that compare a reward with something else than its group's mean, and PPO with its critic."""

from functools import partial

from grpo_core.config.presets.preset import Preset

_BATCH_CLIP = {
    "scale": "batch_std",
    "loss": "clip",
    "clip_low": 0.2,
    "clip_high": 0.2,
    "aggregation": "token_mean",
}
_REINFORCE_PP_CITATION = (
    "Hu et al. 2025, REINFORCE++: An Efficient RLHF Algorithm with Robustness to Both Prompt and Reward Models"
)

_paper = partial(Preset, family="baseline")

BASELINE_FAMILY = (
    _paper(
        name="rloo",
        title="Compared with the mean of the other completions",
        paper="RLOO",
        citation=(
            "Ahmadian et al. 2024, Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human "
            "Feedback in LLMs"
        ),
        settings={
            "sampling": {"group_size": 4},
            "algorithm": {
                "advantage": "rloo",
                "scale": "none",
                "loss": "reinforce",
                "aggregation": "sequence_sum",
                "kl": {"coef": 0.03, "estimator": "k1", "place": "reward"},
            },
            "optim": {"lr": 1e-6},
        },
        notes="The paper tried 2 and 4 completions of a prompt and two mini-batches of 512.",
    ),
    _paper(
        name="reinforce",
        title="The reward itself, without baseline, ratio or clip",
        paper="REINFORCE",
        citation=(
            "Williams 1992, Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning"
        ),
        settings={
            "algorithm": {
                "advantage": "reinforce",
                "scale": "none",
                "loss": "reinforce",
                "aggregation": "sequence_sum",
            },
        },
        notes="Groups of equal rewards teach here too: what is rewarded is learned, what is not is left alone.",
    ),
    _paper(
        name="reinforce_pp",
        title="KL in each token's reward, normalised over the whole batch",
        paper="REINFORCE++",
        citation=_REINFORCE_PP_CITATION,
        settings={
            "algorithm": {
                "advantage": "reinforce_pp",
                **_BATCH_CLIP,
                "kl": {"coef": 0.01, "estimator": "k1", "place": "reward"},
            },
            "optim": {"lr": 5e-7},
        },
        notes=(
            "The numbers are those of its authors' trainer, OpenRLHF. The paper samples one completion of a prompt; "
            "here a problem has at least two."
        ),
    ),
    _paper(
        name="reinforce_pp_baseline",
        title="Group mean first, then normalised over the whole batch",
        paper="REINFORCE++ baseline",
        citation=_REINFORCE_PP_CITATION,
        settings={
            "sampling": {"group_size": 8, "prompts_per_step": 128},
            "algorithm": {
                "advantage": "reinforce_pp_baseline",
                **_BATCH_CLIP,
                "kl": {"coef": 1e-5, "estimator": "k2", "place": "loss"},
            },
            "optim": {"lr": 5e-7},
        },
        notes="The numbers are those of its authors' script for OpenRLHF as of January 2026; before, β was 0.001.",
    ),
    _paper(
        name="maxrl",
        title="Divided by the group's mean: towards maximum likelihood",
        paper="MaxRL",
        citation="Tajwar et al. 2026, Maximum Likelihood Reinforcement Learning",
        settings={"algorithm": {"advantage": "maxrl", "scale": "none"}},
        notes=(
            "Meant for rewards of 0 and 1. The paper's sizes were not verified; it wants many completions of a problem."
        ),
    ),
    _paper(
        name="pass_at_k",
        title="Paid for the best of k completions",
        paper="Pass@k Training",
        citation=(
            "Chen et al. 2025, Pass@k Training for Adaptively Balancing Exploration and Exploitation of Large "
            "Reasoning Models"
        ),
        settings={"algorithm": {"advantage": "pass_at_k", "scale": "group_std", "pass_k": 4}},
        notes="The paper trains with several k. That of this preset, 4, is a choice of ours; k is below G.",
    ),
    _paper(
        name="trpo",
        family="ratio",
        title="A trust region in place of a clip: the natural gradient, as far as the divergence allows",
        paper="TRPO",
        citation="Schulman et al. 2015, Trust Region Policy Optimization",
        settings={
            "algorithm": {
                "advantage": "group",
                "scale": "none",
                "loss": "unclipped",
                "aggregation": "token_mean",
            },
            "optim": {"method": "trpo", "trpo": {"max_kl": 0.01, "cg_iterations": 10}},
        },
        notes=(
            "Of the paper's two estimators this is nearest to the vine, which compares several actions from one state: "
            "its self-normalised estimator (equation 16) has at the old policy the gradient that the group's mean as "
            "baseline gives. The paper takes a tenth of the data for products with the Fisher matrix, here all tokens "
            "count; damping and the least share of the predicted gain are those of the code that its first author "
            "published. Later work adds a critic: take advantage gae. For small models."
        ),
    ),
    _paper(
        name="ppo",
        family="critic",
        title="A learned critic and GAE, KL in the reward, four passes",
        paper="PPO",
        citation=(
            "Schulman et al. 2017, Proximal Policy Optimization Algorithms; for language models Ziegler et al. 2019, "
            "Fine-Tuning Language Models from Human Preferences, as in TRL's first PPO"
        ),
        settings={
            "algorithm": {
                "advantage": "gae",
                **_BATCH_CLIP,
                "inner_iterations": 4,
                "kl": {
                    "coef": 0.2,
                    "estimator": "k1",
                    "place": "reward",
                    "controller": "adaptive",
                    "target_nats": 6.0,
                    "horizon": 10_000,
                },
                "critic": {"gamma": 1.0, "gae_lambda": 0.95, "value_clip": 0.2},
            },
        },
        notes=(
            "There the critic shares the policy's body and learning rate; here it is a model of its own. It needs one "
            "completion of a prompt; here a problem has at least two."
        ),
    ),
)
