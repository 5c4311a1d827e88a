"""The form's fields, read off RunConfig: path, kind of input, limits, help. A field added to the config appears here
by itself, in the Advanced group of its part.

Knows nothing of values, requests or the database.
"""

import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from grpo_core.config.run import RunConfig

Kind = Literal["integer", "number", "text", "lines", "choice", "switch", "yaml"]

FROM_CATALOG = frozenset(
    {
        *("name", "preset", "model.path", "model.revision", "data.path", "data.format", "reward"),
        *("eval.path", "eval.format", "eval.suites"),
    }
)
"""Parts of a config that the form's own choices decide: base model, datasets, reward source, suites."""

FROM_VARIANT = frozenset({"algorithm.advantage", "algorithm.scale", "algorithm.std_ddof"})
"""Decided together by the one choice called normalization."""

LABELS = {
    "sampling.group_size": "Group size G",
    "algorithm.kl.coef": "KL weight β",
    "algorithm.clip_low": "Clip low ε",
    "algorithm.clip_high": "Clip high ε",
    "optim.steps": "Steps",
    "eval.holdout": "Or hold out",
    "optim.lr": "Learning rate",
    "optim.beta1": "AdamW β₁",
    "optim.beta2": "AdamW β₂",
    "algorithm.inner_iterations": "Inner iterations μ",
    "algorithm.kl.estimator": "KL estimator",
    "algorithm.kl.target": "KL target",
    "algorithm.kl.place": "KL penalty goes into",
    "algorithm.kl.controller": "KL controller",
    "algorithm.kl.target_nats": "Adaptive KL aims at, nats per completion",
    "algorithm.kl.horizon": "Adaptive KL horizon, completions",
    "algorithm.reference.refresh": "Reference refresh",
    "algorithm.reference.every": "Refresh every, steps",
    "algorithm.reference.weight": "Weight of the policy in the average",
    "algorithm.advantage_eps": "Advantage ε (added to the std)",
    "algorithm.pass_k": "k of Pass@k",
    "algorithm.multi_objective_aggregation": "Several reward components",
    "algorithm.loss": "Policy loss",
    "algorithm.clip_delta": "Ratio bound δ (two-sided clip, dual clip)",
    "algorithm.cispo_bound": "CISPO bound",
    "algorithm.sapo.tau_positive": "SAPO τ, positive advantages",
    "algorithm.sapo.tau_negative": "SAPO τ, negative advantages",
    "algorithm.vespo.k_positive": "VESPO k, positive advantages",
    "algorithm.vespo.lambda_positive": "VESPO λ, positive advantages",
    "algorithm.vespo.k_negative": "VESPO k, negative advantages",
    "algorithm.vespo.lambda_negative": "VESPO λ, negative advantages",
    "algorithm.dppo.divergence": "DPPO divergence",
    "algorithm.dppo.threshold": "DPPO threshold",
    "algorithm.off_policy_threshold": "Off-policy mask, nats per token",
    "algorithm.top_entropy_share": "Share of tokens with the highest entropy",
    "algorithm.entropy_coef": "Entropy bonus",
    "algorithm.aggregation": "Averaging (aggregation)",
    "algorithm.aggregation_constant": "Constant of Dr. GRPO, tokens",
    "algorithm.local_batch": "Local batch of BNPO, completions",
    "algorithm.denominator": "Groups in the denominator",
    "algorithm.mini_batches": "Mini-batches",
    "algorithm.correction.mode": "Sampler correction",
    "algorithm.correction.cap": "Largest weight of a token",
    "algorithm.correction.low": "Smallest mean ratio",
    "algorithm.correction.high": "Largest mean ratio",
    "algorithm.correction.stale": "Completions of an earlier policy",
    "algorithm.dynamic_sampling.enabled": "Dynamic sampling",
    "algorithm.dynamic_sampling.max_batches": "Batches for one step, at most",
    "algorithm.overlong.mask_truncated": "Leave truncated completions out",
    "algorithm.overlong.buffer_tokens": "Soft overlong punishment, last tokens",
    "algorithm.overlong.penalty": "Overlong penalty at the limit",
    "algorithm.critic.lr": "Critic's learning rate",
    "algorithm.critic.gamma": "Discount γ",
    "algorithm.critic.gae_lambda": "GAE λ",
    "algorithm.critic.value_clip": "Value clip range",
    "model.dtype": "Number format of the policy",
    "model.lora.rank": "LoRA rank",
    "model.lora.alpha": "LoRA alpha",
    "model.lora.targets": "LoRA layers",
    "data.template": "Prompt template",
    "data.limit": "First problems only",
    "eval.limit": "First held-out problems only",
    "eval.before": "Evaluate before training",
    "eval.after": "Evaluate after training",
    "eval.temperature": "Evaluation temperature",
    "eval.max_completion_tokens": "Longest evaluated completion, tokens",
    "eval.success_component": "Component that decides right or wrong",
    "eval.margin": "Margin of regression",
    "sampling.max_completion_tokens": "Longest completion, tokens",
    "traces.groups_per_step": "Groups kept per step",
    "checkpoints.every": "Checkpoint every, steps",
    "checkpoints.cost": "Time for checkpoints, share",
    "checkpoints.keep": "Newest checkpoints kept",
    "checkpoints.best": "Keep the best checkpoint",
    "checkpoints.final": "Keep the trained weights",
    "engine.device": "Device",
    "engine.devices": "Devices on each machine",
    "engine.nodes": "Machines",
    "engine.threads": "CPU threads",
    "engine.rollout": "Sampler",
    "engine.rollout_batch": "Completions sampled side by side, at most",
    "engine.rollout_tokens": "Tokens held while sampling, at most",
    "engine.vllm.place": "vLLM stands",
    "engine.vllm.devices": "GPUs of a vLLM server",
    "engine.vllm.memory_share": "vLLM’s share of GPU memory",
    "engine.vllm.tolerance": "Tolerance of pushed weights, nats",
    "engine.vllm.eager": "vLLM without CUDA graphs",
    "engine.training": "Trainer",
    "engine.deepspeed.zero_stage": "ZeRO stage",
    "engine.deepspeed.offload": "Offload to host memory",
    "engine.one_step_off": "Sample while learning (one step off)",
    "engine.micro_batch_tokens": "Tokens of a micro-batch, at most",
    "engine.layout": "Layout of micro-batches",
    "engine.skip_zero_advantage": "Skip completions without gradient",
    "engine.gradient_checkpointing": "Gradient checkpointing",
    "engine.torch_compile": "Compile the layers of the update",
    "engine.autocast": "Autocast of the update",
    "engine.watchdog_seconds": "Warn when silent for, seconds",
}
MULTILINE = frozenset({"data.template"})

FIRST = (
    "sampling.group_size",
    "algorithm.kl.coef",
    "algorithm.clip_low",
    "algorithm.clip_high",
    "optim.steps",
    "eval.holdout",
)
"""Fields of the first screen; all others stand under Advanced."""


@dataclass(frozen=True)
class Group:
    """A folded part of Advanced."""

    id: str
    title: str
    prefixes: tuple[str, ...]
    headline: tuple[tuple[str, str], ...]
    """(path, phrase with {}) of the values that the folded line shows."""


GROUPS = (
    Group(
        "sampling",
        "Sampling",
        ("sampling.", "data."),
        (
            ("sampling.temperature", "temperature {}"),
            ("sampling.prompts_per_step", "{} prompts a step"),
            ("sampling.max_completion_tokens", "at most {} tokens"),
        ),
    ),
    Group(
        "control",
        "Dynamic sampling, overlong, correction",
        ("algorithm.dynamic_sampling.", "algorithm.overlong.", "algorithm.correction."),
        (
            ("algorithm.dynamic_sampling.enabled", "dynamic sampling {}"),
            ("algorithm.overlong.buffer_tokens", "overlong {}"),
            ("algorithm.correction.mode", "correction {}"),
        ),
    ),
    Group(
        "advantage",
        "Advantage",
        (
            "algorithm.advantage_eps",
            "algorithm.pass_k",
            "algorithm.multi_objective_aggregation",
            "algorithm.supervision",
        ),
        (("algorithm.supervision", "{}"), ("algorithm.pass_k", "k {}"), ("algorithm.advantage_eps", "ε {}")),
    ),
    Group(
        "loss",
        "Loss, clipping and updates",
        ("algorithm.",),
        (
            ("algorithm.loss", "{}"),
            ("algorithm.inner_iterations", "μ {}"),
            ("algorithm.mini_batches", "mini-batches {}"),
        ),
    ),
    Group(
        "averaging",
        "Averaging",
        ("algorithm.aggregation", "algorithm.local_batch", "algorithm.denominator"),
        (
            ("algorithm.aggregation", "{}"),
            ("algorithm.aggregation_constant", "{}"),
            ("algorithm.local_batch", "{}"),
            ("algorithm.denominator", "{} groups"),
        ),
    ),
    Group(
        "kl",
        "KL and reference",
        ("algorithm.kl.", "algorithm.reference."),
        (
            ("algorithm.kl.estimator", "{}"),
            ("algorithm.kl.target", "to {}"),
            ("algorithm.kl.place", "in the {}"),
            ("algorithm.kl.controller", "{}"),
        ),
    ),
    Group(
        "critic",
        "PPO's critic",
        ("algorithm.critic.",),
        (("algorithm.critic.lr", "lr {}"), ("algorithm.critic.gae_lambda", "λ {}")),
    ),
    Group(
        "model",
        "Model and LoRA",
        ("model.",),
        (("model.dtype", "{}"), ("model.lora.rank", "LoRA rank {}")),
    ),
    Group(
        "optim",
        "Optimiser",
        ("optim.",),
        (("optim.lr", "lr {}"), ("optim.schedule", "{}")),
    ),
    Group(
        "engine",
        "Engine",
        ("engine.",),
        (
            ("engine.device", "device {}"),
            ("engine.rollout", "sampler {}"),
            ("engine.training", "trainer {}"),
            ("engine.vllm.place", "vLLM {}"),
            ("engine.deepspeed.zero_stage", "ZeRO {}"),
        ),
    ),
    Group(
        "eval",
        "Evaluation and margins",
        ("eval.",),
        (
            ("eval.temperature", "temperature {}"),
            ("eval.samples_per_problem", "{} a problem"),
            ("eval.margin", "margin {}, locked at launch"),
        ),
    ),
    Group(
        "checkpoints",
        "Checkpoints",
        ("checkpoints.",),
        (
            ("checkpoints.every", "every {} steps"),
            ("checkpoints.keep", "newest {} kept"),
            ("checkpoints.best", "best {}"),
        ),
    ),
    Group("rest", "Traces, seed", ("",), (("traces.groups_per_step", "{} groups kept"), ("seed", "seed {}"))),
)


@dataclass(frozen=True)
class FieldSpec:
    path: str
    label: str
    help: str
    kind: Kind
    choices: tuple[str, ...]
    optional: bool
    """Empty is a value of its own (None)."""
    default: Any
    limits: str
    """The allowed range in words; empty when there is none."""

    @property
    def id(self) -> str:
        return "f-" + self.path.replace(".", "-").replace("_", "-")


@cache
def fields() -> dict[str, FieldSpec]:
    """Every leaf of RunConfig that the form itself asks for, by dotted path, in the config's order."""
    left_out = FROM_CATALOG | FROM_VARIANT
    return {path: _spec(path, info) for path, info in _leaves(RunConfig, "") if path not in left_out}


@cache
def group_of(path: str) -> str | None:
    """Id of the Advanced group that holds the field, the one with the longest prefix of its path; None when it stands
    on the first screen."""
    if path in FIRST:
        return None
    fitting = [(len(prefix), group.id) for group in GROUPS for prefix in group.prefixes if path.startswith(prefix)]
    return max(fitting, key=lambda pair: pair[0])[1]


def _leaves(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, info in model.model_fields.items():
        path = prefix + name
        inner = info.annotation
        if path not in FROM_CATALOG and isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _leaves(inner, path + ".")
        else:
            yield path, info


def _spec(path: str, info: FieldInfo) -> FieldSpec:
    inner, optional, metadata = _unwrap(info.annotation, list(info.metadata))
    choices: tuple[str, ...] = ()
    kind: Kind
    if get_origin(inner) is Literal:
        kind, choices = "choice", tuple(str(choice) for choice in get_args(inner))
    elif inner is bool:
        kind = "switch"
    elif inner is int:
        kind = "integer"
    elif inner is float:
        kind = "number"
    elif inner is str:
        kind = "lines" if path in MULTILINE else "text"
    else:
        kind = "yaml"
    leaf = path.rsplit(".", 1)[-1]
    return FieldSpec(
        path=path,
        label=LABELS.get(path) or leaf.replace("_", " ").capitalize(),
        help=" ".join((info.description or "").replace("`", "").split()),
        kind=kind,
        choices=choices,
        optional=optional,
        default=None if info.default is PydanticUndefined else info.default,
        limits=_limits(metadata),
    )


def _unwrap(annotation: Any, metadata: list[Any]) -> tuple[Any, bool, list[Any]]:
    """The plain type inside Optional and Annotated, whether None is allowed, and the limits found on the way."""
    optional = False
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation, *extra = get_args(annotation)
            for item in extra:
                metadata += item.metadata if isinstance(item, FieldInfo) else [item]
        elif origin in (Union, types.UnionType) and type(None) in get_args(annotation):
            (annotation, *others) = [one for one in get_args(annotation) if one is not type(None)]
            optional = True
            if others:
                return object, optional, metadata
        else:
            return annotation, optional, metadata


def _limits(metadata: list[Any]) -> str:
    low = high = ""
    above = below = False
    for item in metadata:
        match item:
            case annotated_types.Ge(ge=bound):
                low = _bound(bound)
            case annotated_types.Gt(gt=bound):
                low, above = _bound(bound), True
            case annotated_types.Le(le=bound):
                high = _bound(bound)
            case annotated_types.Lt(lt=bound):
                high, below = _bound(bound), True
    if low and high:
        return f"{'above ' if above else ''}{low} to {'below ' if below else ''}{high}"
    if low:
        return f"above {low}" if above else f"{low} or more"
    return f"{'below' if below else 'at most'} {high}" if high else ""


def _bound(bound: object) -> str:
    """Empty for a bound that only stops slips: a million or more."""
    assert isinstance(bound, int | float), "RunConfig bounds numbers only"
    return "" if bound >= 1e6 else f"{bound:g}"
