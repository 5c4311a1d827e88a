"""How much work a calibration does, as a function of the config alone. Loads no torch."""

import math

from grpo_core.config.run import RunConfig

LEAST_ROWS = 16
"""Completions that the larger size samples at least, where a step has as many: lengths vary."""


def sizes(config: RunConfig) -> tuple[int, ...]:
    """Problems of each measured piece, rising. Together no more than a step, or than two where a step is of few
    completions, and no more than about two waves of the sampler."""
    step, samples = config.sampling.prompts_per_step, config.sampling.group_size
    wave = math.ceil(config.engine.rollout_batch / samples)
    large = max(step // 2, math.ceil(LEAST_ROWS / samples), config.algorithm.mini_batches)
    large = min(step, max(large if large <= wave else wave, config.algorithm.mini_batches))
    small = max(large // 2, min(step, config.algorithm.mini_batches))
    return (small, large) if small < large else (large,)


def measured_config(config: RunConfig) -> RunConfig:
    """The config that is calibrated with: on one process, and so that no weight moves: with a rate of 0 AdamW does all
    its work and adds nothing. Every row is run through the model, so that a row's cost is known."""
    engine = config.engine.model_copy(
        update={"devices": 1, "nodes": 1, "one_step_off": False, "skip_zero_advantage": False}
    )
    algorithm = config.algorithm
    algorithm = algorithm.model_copy(
        update={
            "critic": algorithm.critic.model_copy(update={"lr": 0.0}),
            "dynamic_sampling": algorithm.dynamic_sampling.model_copy(update={"enabled": False}),
            "kl": algorithm.kl.model_copy(update={"controller": "fixed"}),
            "reference": algorithm.reference.model_copy(update={"refresh": "never"}),
        }
    )
    optim = config.optim.model_copy(update={"lr": 0.0})
    return config.model_copy(update={"engine": engine, "algorithm": algorithm, "optim": optim})
