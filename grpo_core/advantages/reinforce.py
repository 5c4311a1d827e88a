"""reinforce: the reward itself, compared with nothing. Source: Williams 1992, REINFORCE without a baseline.

A_i = r_i; 0 where not scored. Equal rewards do not give 0 here: with nothing to compare, every reward above 0 makes its
completion likelier. A single scored sample counts too.
"""

from grpo_core.advantages.base import Estimator, Scaling, Terms

SPEC = Estimator(
    "reinforce",
    ("REINFORCE", "REINFORCE"),
    "step",
    source="Williams 1992",
    help="nothing",
    scales={
        "none": Scaling(
            "the reward itself (REINFORCE)",
            "REINFORCE",
            "Compared with nothing, so groups of equal rewards teach too. Noisy.",
            "the reward itself: compared with nothing, not divided (REINFORCE)",
            "r",
            lambda s, a: Terms(0),
        )
    },
    equal_rewards="They are learned from all the same: rewards are compared with nothing.",
    zero_when_equal="never",
)
