"""Which trainer does which kind of run."""

from typing import Any

from grpo_core.config.kinds import AnyConfig
from grpo_core.config.stage import Kind
from grpo_core.trainer.grpo import GrpoTrainer
from grpo_core.trainer.reward_model import RewardModelTrainer
from grpo_core.trainer.sample import SampleTrainer
from grpo_core.trainer.sft import SftTrainer
from grpo_core.trainer.trainer import Trainer

TRAINERS: dict[Kind, type[Trainer[Any]]] = {
    "grpo": GrpoTrainer,
    "sample": SampleTrainer,
    "sft": SftTrainer,
    "distill": SftTrainer,
    "reward_model": RewardModelTrainer,
}


def trainer_of(config: AnyConfig) -> type[Trainer[Any]]:
    """Made with the arguments of `Trainer`."""
    return TRAINERS[config.kind]
