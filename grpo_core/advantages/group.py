"""group: the reward compared with the mean of its own group (GRPO, Dr. GRPO, Lite-PPO).

A_i = (r_i − mean(r)) / (std + eps), the mean over the sample's own group. Divided by

group_std  std of the group (GRPO: DeepSeekMath, arXiv 2402.03300, section 4.1.2)
batch_std  std of all scored rewards of the step (Lite-PPO, arXiv 2508.08221)
none       nothing (Dr. GRPO, arXiv 2503.20783)

Exactly 0 where not scored, and throughout a group with equal rewards or fewer than two scored samples.
"""

from grpo_core.advantages.base import Estimator, Scaling, Terms

SPEC = Estimator(
    "group",
    ("GRPO", "Group Relative Policy Optimization (GRPO)"),
    "group",
    source="arXiv 2402.03300, 2503.20783, 2508.08221",
    help="its group's mean (GRPO, Dr. GRPO, DAPO)",
    scales={
        "group_std": Scaling(
            "z-score in the group{std}",
            "{std}",
            "GRPO: each reward minus its group's mean, divided by the group's {std}.",
            "reward minus the group's mean, divided by the group's {std} + {eps}",
            "(r − {mean}) / ({std} + {eps})",
            lambda s, a: Terms(s.mean, divisor=s.std + a.advantage_eps),
        ),
        "batch_std": Scaling(
            "group mean, batch std{std} (Lite-PPO)",
            "batch std",
            "Lite-PPO: minus the group's mean, divided by the whole step's {std}, which is steadier when groups agree.",
            "reward minus the group's mean, divided by the whole batch's {std} + {eps}",
            "(r − {mean}) / ({step_std} + {eps})",
            lambda s, a: Terms(s.mean, divisor=s.step_std + a.advantage_eps),
        ),
        "none": Scaling(
            "mean only (Dr. GRPO)",
            "mean only",
            "Dr. GRPO drops the division: with it, very easy and very hard problems weigh too much.",
            "reward minus the group's mean, not divided (Dr. GRPO)",
            "r − {mean}",
            lambda s, a: Terms(s.mean),
        ),
    },
)
