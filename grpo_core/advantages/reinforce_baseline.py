"""reinforce_baseline: the reward minus the mean of the whole step.

A_i = (r_i − mean over all scored rewards of the step), undivided or divided by their standard deviation + eps. Source:
REINFORCE with a constant baseline, Williams 1992. Exactly 0 where not scored, and throughout a step whose rewards are
all equal or fewer than two. A group of equal rewards is not 0 when it did better or worse than the step.
"""

from grpo_core.advantages.base import Estimator, Scaling, Terms

BETTER_OR_WORSE = "They are learned from all the same, where they did better or worse than the step's mean."

SPEC = Estimator(
    "reinforce_baseline",
    ("REINFORCE", "REINFORCE with a baseline"),
    "step",
    source="Williams 1992",
    help="the mean of the step",
    scales={
        "none": Scaling(
            "minus the step's mean (REINFORCE with baseline)",
            "REINFORCE baseline",
            "Each reward minus the mean of the whole step. Not divided.",
            "reward minus the mean of the whole step, not divided",
            "r − {step_mean}",
            lambda s, a: Terms(s.step_mean),
        ),
        "batch_std": Scaling(
            "z-score over the step{std} (REINFORCE with baseline)",
            "REINFORCE baseline",
            "Each reward minus the mean of the whole step, divided by the step's {std}.",
            "reward minus the mean of the whole step, divided by the step's {std} + {eps}",
            "(r − {step_mean}) / ({step_std} + {eps})",
            lambda s, a: Terms(s.step_mean, divisor=s.step_std + a.advantage_eps),
        ),
    },
    equal_rewards=BETTER_OR_WORSE,
    zero_when_equal="step",
)
