"""What most decides a run of another kind than GRPO, in a few words: for its header."""

from cohort.base.formatting import exact, num
from grpo_core.config.kinds import AnyConfig
from grpo_core.config.reward_model import RewardModelConfig
from grpo_core.config.run import RunConfig
from grpo_core.config.sample import SampleConfig

_OBJECTIVES = {"bradley_terry": "Bradley–Terry", "regression": "regression"}


def facts_of(config: AnyConfig) -> tuple[str, ...]:
    """Empty of GRPO, whose header has facts of its own."""
    if isinstance(config, RunConfig):
        return ()
    if isinstance(config, SampleConfig):
        keeps = config.filter.per_problem
        return (
            f"{num(config.sampling.group_size)} a problem",
            f"temperature {exact(config.sampling.temperature)}",
            f"keeps {config.filter.choose} {num(keeps)}" if keeps else "keeps all that pass",
            f"writes {config.rows}",
        )
    rank = config.model.lora.rank
    objective = (_OBJECTIVES[config.objective],) if isinstance(config, RewardModelConfig) else ()
    return (
        *objective,
        f"batch {num(config.optim.batch_size)}",
        f"lr {exact(config.optim.lr)}",
        f"LoRA rank {rank}" if rank else "all weights",
    )
