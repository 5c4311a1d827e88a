"""Which arithmetic a run's own estimator is; or a sentence about it, where rewards alone do not tell its advantages."""

from dataclasses import dataclass

from cohort.web.review.arithmetic import (
    BATCH,
    GROUP_POPULATION,
    GROUP_SAMPLE,
    LEAVE_ONE_OUT,
    MAX_RL,
    MEAN_ONLY,
    REWARD,
    STEP_MEAN,
    STEP_Z,
    VARIANTS,
    Variant,
    best_of,
)
from grpo_core.config.algorithm import AlgorithmConfig


@dataclass(frozen=True)
class Own:
    """How a run made its advantages."""

    variant: Variant
    sentence: str
    """Said in place of a calculation, where rewards alone do not give one; empty where they do."""

    @property
    def offered(self) -> tuple[Variant, ...]:
        """What the page lets a person choose from."""
        return VARIANTS if self.variant in VARIANTS else (self.variant, *VARIANTS)


def own_of(algorithm: AlgorithmConfig) -> Own:
    if algorithm.supervision == "process":
        return _told(
            "process",
            "process supervision",
            "DeepSeekMath's process supervision: each step of a completion has a reward, compared with all steps of "
            "the group, and a token's advantage is the sum over the steps that end at it or later. Below stands each "
            "completion's mean over its tokens, as the trainer stored it.",
        )
    if algorithm.multi_objective_aggregation == "normalize_then_sum":
        return _told(
            "gdpo",
            "each reward by itself",
            "GDPO: each reward component is divided by its own spread in the group, and their weighted sum by the "
            "spread of the whole step. The summed rewards do not tell that; below stands what the trainer stored.",
        )
    match algorithm.advantage:
        case "group":
            return Own(_group_variant(algorithm), "")
        case "rloo":
            return Own(LEAVE_ONE_OUT, "")
        case "maxrl":
            return Own(MAX_RL, "")
        case "pass_at_k":
            assert algorithm.pass_k is not None, "the config was checked"
            return Own(best_of(algorithm.pass_k, divided=algorithm.scale == "group_std"), "")
        case "reinforce":
            return Own(REWARD, "")
        case "reinforce_baseline":
            return Own(STEP_Z if algorithm.scale == "batch_std" else STEP_MEAN, "")
        case "reinforce_pp" | "reinforce_pp_baseline":
            first = "the group's mean is taken off, then " if algorithm.advantage.endswith("baseline") else ""
            return _told(
                "reinforcepp",
                "REINFORCE++",
                f"REINFORCE++: {first}each reward is compared with the mean and the spread over all tokens of the "
                "step, so that a completion counts by its length. One group does not tell that; below stands what the "
                "trainer stored, the mean over a completion's tokens where they differ.",
            )
        case "gae":
            return _told(
                "gae",
                "critic (GAE)",
                "PPO: a learned critic says after each token what reward it expects, and a token's advantage is how "
                "the expectation changed from there on. The rewards do not tell that; below stands each completion's "
                "mean over its tokens, as the trainer stored it.",
            )


def _group_variant(algorithm: AlgorithmConfig) -> Variant:
    if algorithm.scale == "none":
        return MEAN_ONLY
    if algorithm.scale == "batch_std":
        return BATCH
    return GROUP_SAMPLE if algorithm.std_ddof == 1 else GROUP_POPULATION


def _told(id: str, label: str, sentence: str) -> Own:
    return Own(Variant(id, label, ""), sentence)
