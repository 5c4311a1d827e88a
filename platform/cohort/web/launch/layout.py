"""What of a config of each kind is on the run form's first screen, what its row choices decide, and in which folded
groups the rest is. A field that is declared nowhere here is in the last group of its kind.
"""

import re
from dataclasses import dataclass

from cohort.launch.configs import CHOSEN
from grpo_core.config.presets import PRESETS
from grpo_core.config.stage import Kind

FROM_CATALOG: dict[Kind, frozenset[str]] = {kind: frozenset({*paths, "preset"}) for kind, paths in CHOSEN.items()}
"""Parts of a config that the form's own choices decide: base model, datasets, reward source, suites."""

_REFUSED = frozenset({"eval.holdout", "data.prefill"})
_EVALUATED = ("path", "hub", "format", "columns", "suites", "reward", "holdout")
WITHOUT_USE: dict[Kind, frozenset[str]] = {
    "grpo": frozenset(),
    "sft": _REFUSED,
    "distill": _REFUSED,
    "reward_model": frozenset(f"eval.{name}" for name in _EVALUATED),
    "sample": frozenset(),
}
"""Fields that the kind's config has, and refuses any value but the default of."""

FROM_VARIANT = ("algorithm.advantage", "algorithm.scale", "algorithm.std_ddof")
"""What the value of the one choice called normalization is made of, in order. Of GRPO."""

_FINE_TUNING = ("optim.steps", "optim.batch_size", "optim.lr", "data.holdout", "data.max_tokens", "model.lora.rank")
FIRST: dict[Kind, tuple[str, ...]] = {
    "grpo": (
        "sampling.group_size",
        "algorithm.kl.coef",
        "algorithm.clip_low",
        "algorithm.clip_high",
        "optim.steps",
        "eval.holdout",
    ),
    "sft": _FINE_TUNING,
    "distill": _FINE_TUNING,
    "reward_model": (
        *("objective", "optim.steps", "optim.batch_size", "optim.lr", "data.holdout", "data.max_tokens"),
        "data.replay_share",
    ),
    "sample": (
        *("sampling.group_size", "sampling.prompts_per_step", "sampling.temperature"),
        *("sampling.max_completion_tokens", "rows", "filter.per_problem"),
    ),
}
"""Fields of the first screen; all others are under Advanced."""


@dataclass(frozen=True)
class Group:
    """A folded part of Advanced."""

    id: str
    title: str
    prefixes: str
    """Of the paths of its fields, with spaces between them."""
    line: str
    """What the folded line shows: phrases with a path in braces."""

    @property
    def headline(self) -> list[tuple[str, str]]:
        """(path, phrase with {}) of each."""
        split = [re.split(r"[{}]", phrase) for phrase in self.line.split(" · ")]
        return [(path, f"{before}{{}}{after}") for before, path, after in split]


_GRPO = (
    Group(
        "sampling",
        "Sampling",
        "sampling. data.",
        "temperature {sampling.temperature} · {sampling.prompts_per_step} prompts a step · "
        "at most {sampling.max_completion_tokens} tokens",
    ),
    Group(
        "control",
        "Signal, dynamic sampling, overlong, correction",
        "algorithm.signal_gate algorithm.dynamic_sampling. algorithm.overlong. algorithm.correction.",
        "{algorithm.signal_gate} must vary · dynamic sampling {algorithm.dynamic_sampling.enabled} · "
        "overlong {algorithm.overlong.buffer_tokens} · "
        "correction {algorithm.correction.mode}",
    ),
    Group(
        "advantage",
        "Advantage",
        "algorithm.advantage_eps algorithm.pass_k algorithm.multi_objective_aggregation algorithm.supervision",
        "{algorithm.supervision} · k {algorithm.pass_k} · ε {algorithm.advantage_eps}",
    ),
    Group(
        "loss",
        "Loss, clipping and updates",
        "algorithm.",
        "{algorithm.loss} · μ {algorithm.inner_iterations} · mini-batches {algorithm.mini_batches}",
    ),
    Group(
        "averaging",
        "Loss aggregation",
        "algorithm.aggregation algorithm.local_batch algorithm.denominator",
        "{algorithm.aggregation} · {algorithm.aggregation_constant} · {algorithm.local_batch} · "
        "{algorithm.denominator} groups",
    ),
    Group(
        "kl",
        "KL and reference",
        "algorithm.kl. algorithm.reference.",
        "{algorithm.kl.estimator} · to {algorithm.kl.target} · in the {algorithm.kl.place} · {algorithm.kl.controller}",
    ),
    Group("critic", "PPO's critic", "algorithm.critic.", "lr {algorithm.critic.lr} · λ {algorithm.critic.gae_lambda}"),
    Group("model", "Model and LoRA", "model.", "{model.dtype} · LoRA rank {model.lora.rank}"),
    Group("optim", "Optimiser", "optim.", "lr {optim.lr} · {optim.schedule}"),
    Group(
        "engine",
        "Engine",
        "engine.",
        "device {engine.device} · sampler {engine.rollout} · trainer {engine.training} · "
        "vLLM {engine.vllm.place} · ZeRO {engine.deepspeed.zero_stage}",
    ),
    Group(
        "eval",
        "Evaluation and margins",
        "eval.",
        "temperature {eval.temperature} · {eval.samples_per_problem} a problem · "
        "every {eval.every} steps · margin {eval.margin}, locked at launch",
    ),
    Group(
        "checkpoints",
        "Checkpoints",
        "checkpoints.",
        "every {checkpoints.every} steps · newest {checkpoints.keep} kept · best {checkpoints.best}",
    ),
    Group("rest", "Traces, seed", "", "{traces.groups_per_step} groups kept · tokens of {traces.tokens} · seed {seed}"),
)
_SHARED = {group.id: group for group in _GRPO}
_CONVERSATIONS = Group(
    "data", "Conversations", "data.", "longer ones {data.long} · learned from {data.turns} answers · first {data.limit}"
)
_SEED = Group("rest", "Seed", "", "seed {seed}")
_TRAINED = (*(_SHARED[name] for name in ("model", "optim", "engine", "eval", "checkpoints")), _SEED)
GROUPS: dict[Kind, tuple[Group, ...]] = {
    "grpo": _GRPO,
    "sft": (_CONVERSATIONS, *_TRAINED),
    "distill": (_CONVERSATIONS, *_TRAINED),
    "reward_model": (
        Group("data", "Preferences", "data.", "longer ones {data.long} · first {data.limit}"),
        Group("objective", "Objective", "objective center", "centring {center}"),
        *_TRAINED,
    ),
    "sample": (
        Group(
            "filter",
            "Filter",
            "filter. rows",
            "right only {filter.passed} · finished only {filter.finished} · duplicates {filter.duplicates}",
        ),
        Group("sampling", "Sampling", "sampling. data.", "top-p {sampling.top_p} · first {data.limit} problems"),
        *(_SHARED[name] for name in ("model", "engine")),
        Group("rest", "Traces, seed", "", "{traces.groups_per_step} groups kept · seed {seed}"),
    ),
}
"""In the order of the page."""

PRESET_PARTS = ("sampling.", "algorithm.", "optim.")
PRESET_PATHS = frozenset(path for preset in PRESETS.values() for path, _ in preset.leaves())
"""Choosing a preset resets these parts, and whatever any preset sets: the form is then the same whatever was there
before, another preset too."""


def of_presets(path: str) -> bool:
    """Whether choosing a preset sets this input, so that nothing of the preset before is left in it."""
    return path == "variant" or path.startswith(PRESET_PARTS) or path in PRESET_PATHS
