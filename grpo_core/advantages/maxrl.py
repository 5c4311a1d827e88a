"""maxrl: the reward minus the mean of its group, divided by that mean (MaxRL).

A_i = (r_i − mean(r)) / mean(r), the mean over the sample's own group. With rewards 1 and 0 the mean is the success rate
p and the division turns the gradient of p into one of log p. Source: Tajwar et al. 2026, "Maximum Likelihood
Reinforcement Learning", arXiv 2602.02710.

The mean is a probability there, so it must be above 0. A group whose mean is not (`EQUAL_TOLERANCE`, relative to its
largest reward where that is above 1) gets exactly 0 throughout: dividing by a negative mean would turn every sign
around. Exactly 0 too where not scored, with equal rewards and with fewer than two scored samples.
"""

from grpo_core.advantages.base import Estimator, Scaling, Terms
from grpo_core.stats.paired import EQUAL_TOLERANCE

SPEC = Estimator(
    "maxrl",
    ("MaxRL", "Maximum Likelihood Reinforcement Learning (MaxRL)"),
    "group",
    source="arXiv 2602.02710",
    help="the group's mean, divided by it",
    scales={
        "none": Scaling(
            "divided by the group's mean (MaxRL)",
            "MaxRL",
            "MaxRL: minus the group's mean and divided by it, so that a right answer counts more where it is rare. For "
            "rewards of 0 and 1.",
            "reward minus the group's mean, divided by that mean (MaxRL)",
            "(r − {mean}) / {mean}",
            lambda s, a: Terms(s.mean, divisor=s.mean, usable=s.mean > EQUAL_TOLERANCE * s.largest),
        )
    },
)
