"""Configs of all kinds of run, and how one is read whose kind is not known before. Loads no torch."""

from pathlib import Path
from typing import Any, get_args

from grpo_core.config.reward import RewardConfig
from grpo_core.config.reward_model import RewardModelConfig
from grpo_core.config.run import RunConfig
from grpo_core.config.sample import SampleConfig
from grpo_core.config.sft import DistillConfig, SftConfig
from grpo_core.config.stage import Kind, config_text, yaml_content
from grpo_core.errors import ConfigError

AnyConfig = RunConfig | SftConfig | RewardModelConfig | SampleConfig
"""DistillConfig is a SftConfig."""
AnsweringConfig = RunConfig | SftConfig | SampleConfig
"""Of the kinds whose model answers prompts."""
LearningConfig = RunConfig | SftConfig | RewardModelConfig
"""Of the kinds that change weights."""
ScoredConfig = RunConfig | SampleConfig
"""Of the kinds whose completions a reward scores."""
CONFIGS: dict[Kind, type[AnyConfig]] = {
    config.kind: config for config in (RunConfig, SftConfig, RewardModelConfig, SampleConfig, DistillConfig)
}


def reward_of(config: AnyConfig) -> RewardConfig | None:
    """What scores the completions that the run samples; None of the kinds that score none."""
    return config.reward if isinstance(config, ScoredConfig) else None


def judge_of(config: AnyConfig) -> RewardConfig | None:
    """What held-out problems are judged by; None where the run can have none."""
    return None if isinstance(config, RewardModelConfig) else config.heldout_reward


def steps_of(config: AnyConfig, rows: int) -> int:
    """Steps of the run, on a dataset of `rows` rows: sampling takes each problem once."""
    if not isinstance(config, SampleConfig):
        return config.steps
    return config.steps_for(min(rows, config.data.limit or rows))


def samples_per_step(config: AnyConfig) -> int:
    """Completions sampled in a step, or rows learned from."""
    return config.completions_per_step if isinstance(config, ScoredConfig) else config.optim.batch_size


def kind_of(data: Any, *, source: str = "config") -> Kind:
    """Which kind a config's fields say; `grpo` where they say none. Raises ConfigError."""
    kind = data.get("kind", "grpo") if isinstance(data, dict) else "grpo"
    if kind not in CONFIGS:
        raise ConfigError(f"{source}: kind {kind!r} is not one of {', '.join(get_args(Kind))}")
    return kind


def config_from_dict(data: Any, *, source: str = "config") -> AnyConfig:
    """As `StageConfig.from_dict`, of the kind that `data` says."""
    return CONFIGS[kind_of(data, source=source)].from_dict(data, source=source)


def config_from_whole(data: Any, *, source: str = "config") -> AnyConfig:
    """Read what `to_dict` of any kind returned. Raises ConfigError."""
    return CONFIGS[kind_of(data, source=source)].from_whole(data, source=source)


def config_from_text(text: str, *, source: str = "config") -> AnyConfig:
    """Read YAML, of which JSON is a part. Raises ConfigError."""
    return config_from_dict(yaml_content(text, source), source=source)


def config_from_file(path: Path) -> AnyConfig:
    """Raises ConfigError."""
    return config_from_text(config_text(path), source=str(path))
