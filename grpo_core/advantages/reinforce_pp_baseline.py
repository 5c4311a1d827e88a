"""reinforce_pp_baseline: REINFORCE++ on rewards minus the mean of their group."""

from functools import partial

from grpo_core.advantages.base import Estimator, Scaling
from grpo_core.advantages.reinforce_pp import explain_reinforce_pp, reinforce_pp

SPEC = Estimator(
    "reinforce_pp_baseline",
    ("REINFORCE++", "REINFORCE++ with the group's mean"),
    "group",
    source="arXiv 2501.03262",
    help="the group's mean, then the mean over all tokens of the step (REINFORCE++)",
    scales={
        "batch_std": Scaling(
            "REINFORCE++ with the group's mean{std}",
            "REINFORCE++ baseline",
            "Minus the group's mean, then divided by the {std} over all tokens of the step.",
            "reward minus the group's mean, then minus the mean over all tokens of the step, divided by their {std} + "
            "{eps} (REINFORCE++)",
            "(r − {mean} − {token_mean}) / ({token_std} + {eps})",
        )
    },
    compute=partial(reinforce_pp, baseline=True),
    explain=partial(explain_reinforce_pp, baseline=True),
    beyond_stored="the KL penalty of each token, which is taken off it and all earlier ones",
    equal_rewards="They carry only what normalising over the tokens of the whole step takes off.",
    zero_when_equal="step",
    per_token="with_kl_reward",
)
