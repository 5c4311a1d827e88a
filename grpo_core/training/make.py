"""The training engine that a run's config names."""

from collections.abc import Callable

from grpo_core.config.kinds import LearningConfig
from grpo_core.distributed.ranks import Ranks
from grpo_core.model.load import LoadedModel
from grpo_core.training.critic import Critic
from grpo_core.training.single import SingleTraining
from grpo_core.training.trainable import TrainableWeights


def make_training(
    config: LearningConfig,
    policy: LoadedModel,
    *,
    reference: LoadedModel | None,
    critic: Critic | None,
    ranks: Ranks,
    check: Callable[[], None],
) -> SingleTraining:
    """What learns, on all ranks together. `check` may raise Interrupted before a micro-batch; it does so only where a
    rank may stop alone. Raises ConfigError."""
    weights: TrainableWeights | None = None
    if config.engine.training == "deepspeed":
        from grpo_core.training.deepspeed import DeepSpeedWeights

        weights = ranks.together(lambda: DeepSpeedWeights(policy, config, ranks=ranks))
    return SingleTraining(policy, reference, config, check=check, ranks=ranks, critic=critic, weights=weights)
