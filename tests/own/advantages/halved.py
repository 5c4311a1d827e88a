"""halved: half of what the reward is above its group's mean."""

from grpo_core.advantages.base import Estimator, Scaling, Terms

SPEC = Estimator(
    "halved",
    ("Halved", "policy gradient with halved advantages (Halved)"),
    "group",
    source="nobody",
    help="its group's mean, halved",
    scales={
        "none": Scaling(
            "half of mean only",
            "halved",
            "Half of each reward minus its group's mean.",
            "half of the reward minus the group's mean",
            "(r − {mean}) / 2",
            lambda s, a: Terms(s.mean, divisor=2),
        )
    },
)
