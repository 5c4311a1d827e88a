"""Which trainer does which kind of run."""

from typing import Any

from grpo_core.config.kinds import AnyConfig
from grpo_core.config.stage import Kind
from grpo_core.trainer.grpo import GrpoTrainer
from grpo_core.trainer.sft import SftTrainer
from grpo_core.trainer.trainer import Trainer

TRAINERS: dict[Kind, type[Trainer[Any]]] = {
    "grpo": GrpoTrainer,
    "sft": SftTrainer,
    "distill": SftTrainer,
}


def trainer_of(config: AnyConfig) -> type[Trainer[Any]]:
    """Made with the arguments of `Trainer`."""
    return TRAINERS[config.kind]
