"""rloo: the reward minus the mean of the others in its group (REINFORCE leave-one-out).

A_i = r_i − mean of the group's other scored rewards = n/(n−1) · (r_i − mean of all n). The second form is the one
computed: it has no difference of large sums. Exactly 0 where not scored, and throughout a group with equal rewards or
n < 2. Source: Ahmadian et al. 2024, arXiv 2402.14740; Kool et al. 2019.
"""

from grpo_core.advantages.base import Estimator, Scaling, Terms

SPEC = Estimator(
    "rloo",
    ("RLOO", "REINFORCE leave-one-out (RLOO)"),
    "group",
    source="arXiv 2402.14740",
    help="the mean of the others in the group",
    scales={
        "none": Scaling(
            "leave one out (RLOO)",
            "RLOO",
            "RLOO: each reward minus the mean of the others in its group. Not divided.",
            "reward minus the mean of the group's other completions, not divided (RLOO)",
            "{count}/({count} − 1) · (r − {mean})",
            lambda s, a: Terms(s.mean, factor=s.count / (s.count - 1)),
        )
    },
)
