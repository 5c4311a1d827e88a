"""What the token arrays of a run will take, from its config alone. Loads no torch."""

from dataclasses import dataclass

from grpo_core.config.run import RunConfig
from grpo_core.files.token_file import estimated_bytes
from grpo_core.records.types import MAX_TOKEN_FILE_BYTES
from grpo_core.text import format_bytes


@dataclass(frozen=True)
class TokenSize:
    """Most that can come, before compression."""

    samples: int
    """A step."""
    step_bytes: int
    """Of a step in which every stored completion is as long as it may be."""
    run_bytes: int


def token_size(config: RunConfig) -> TokenSize:
    """Of each step and of the run; zeros where nothing is stored."""
    traces, sampling = config.traces, config.sampling
    kept = min(traces.groups_per_step, sampling.prompts_per_step) * sampling.group_size
    choices = [choice for choice in traces.tokens if choice != "none"]
    samples = kept if "all" in choices else min(kept, len(choices) * traces.tokens_per_choice)
    step_bytes = estimated_bytes(columns_of(config), samples * sampling.max_completion_tokens)
    return TokenSize(samples, step_bytes, step_bytes * config.optim.steps)


def size_text(size: TokenSize) -> str:
    """In words, for the terminal and the run form."""
    if not size.samples:
        return "no sample is stored token by token"
    step, run = format_bytes(size.step_bytes), format_bytes(size.run_bytes)
    text = f"{size.samples:,} samples a step token by token, at most {step} a step and {run} for the run"
    if size.step_bytes > MAX_TOKEN_FILE_BYTES:
        text += f"; a step of more than {format_bytes(MAX_TOKEN_FILE_BYTES)} is not stored"
    return text


def columns_of(config: RunConfig) -> list[str]:
    """Columns that a sample can have under these settings."""
    algorithm = config.algorithm
    columns = ["token_id", "piece", "policy_logprob", "sampler_logprob", "in_loss", "advantage"]
    if algorithm.loss_spec.ratio != "none":
        columns += ["old_logprob", "ratio", "clipped"]
    if algorithm.needs_reference:
        columns.append("reference_logprob")
    if algorithm.entropy_coef > 0 or algorithm.top_entropy_share < 1:
        columns.append("entropy")
    if algorithm.estimator.critic:
        columns.append("value")
    if algorithm.supervision == "process":
        columns.append("step_reward")
    return columns
