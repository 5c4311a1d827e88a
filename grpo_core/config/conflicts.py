"""Choices of the algorithm that do not go together, each with the reason and the way out. Loads no torch."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from grpo_core.advantages.settings import ESTIMATORS, IN_PLACE_OF_GROUP
from grpo_core.config.engine_conflicts import ENGINE_RULES
from grpo_core.config.evaluation_conflicts import EVALUATION_RULES
from grpo_core.config.optim_conflicts import OPTIM_RULES
from grpo_core.config.reward import reward_kinds
from grpo_core.errors import Conflict

if TYPE_CHECKING:
    from grpo_core.config.algorithm import AlgorithmConfig
    from grpo_core.config.run import RunConfig


def refusal(algorithm: "AlgorithmConfig") -> Conflict | None:
    """Why this algorithm cannot be run, with the fix; None when it can."""
    return next((conflict for rule in _RULES for conflict in rule(algorithm)), None)


def _aggregation(a: "AlgorithmConfig") -> Iterator[Conflict]:
    allowed = a.loss_spec.aggregations
    if a.aggregation in allowed:
        return
    if a.aggregation == "sequence_total":
        yield Conflict(
            "aggregation_needs_sequence_ratio",
            "aggregation sequence_total belongs to loss: sequence_ratio; choose token_mean or sequence_mean",
            field="aggregation",
        )
    if len(allowed) == 1:
        yield Conflict(
            "aggregation_not_with_loss",
            f"loss {a.loss} {a.loss_spec.aggregation_reason}: it needs aggregation: {allowed[0]}, not {a.aggregation}",
            field="aggregation",
        )
    yield Conflict(
        "aggregation_not_with_loss",
        f"loss {a.loss} goes with aggregation {', '.join(allowed)}, not {a.aggregation}",
        field="aggregation",
    )


_OF_AGGREGATIONS = {
    "constant": (
        "aggregation_constant",
        "(Dr. GRPO) needs aggregation_constant, in tokens; the paper used the longest completion allowed",
    ),
    "local_token_mean": (
        "local_batch",
        "(BNPO) needs local_batch, the completions that are averaged together; in TRL that is the batch size of one "
        "device",
    ),
}
"""Aggregation → the setting that it alone has and needs, and why."""


def _constant(a: "AlgorithmConfig") -> Iterator[Conflict]:
    for aggregation, (name, needs) in _OF_AGGREGATIONS.items():
        chosen, given = a.aggregation == aggregation, getattr(a, name) is not None
        if chosen and not given:
            yield Conflict(f"needs_{name}", f"aggregation {aggregation} {needs}", field=name)
        if given and not chosen:
            yield Conflict(f"{name}_unused", f"{name} has a meaning only with aggregation: {aggregation}", field=name)


def _scale(a: "AlgorithmConfig") -> Iterator[Conflict]:
    allowed = ESTIMATORS[a.advantage].scales
    if a.scale not in allowed:
        yield Conflict(
            "scale_not_with_advantage",
            f"advantage {a.advantage} goes with scale: {' or '.join(allowed)}, not {a.scale}",
            field="scale",
        )


def _advantage_settings(a: "AlgorithmConfig") -> Iterator[Conflict]:
    for spec in ESTIMATORS.values():
        if spec.needed is None:
            continue
        name, chosen = spec.needed.split(",")[0], spec.name == a.advantage
        if chosen and getattr(a, name) is None:
            yield Conflict(f"needs_{name}", f"advantage {spec.name} needs {spec.needed}", field=name)
        if not chosen and getattr(a, name) is not None:
            yield Conflict(f"{name}_unused", f"{name} has a meaning only with advantage: {spec.name}", field=name)
    chosen_instead = [spec for spec in IN_PLACE_OF_GROUP if getattr(a, spec.chosen_by) == spec.name]
    for spec in chosen_instead:
        if a.advantage != "group" or a.scale not in spec.scales:
            yield Conflict(
                f"{spec.name}_needs_group",
                f"{spec.chosen_by} {spec.name} takes the place of advantage: group and needs it, with scale: "
                f"{' or '.join(spec.scales)}",
                field=spec.chosen_by,
            )
    if len(chosen_instead) > 1:
        yield Conflict(
            "process_supervision_with_normalize_then_sum",
            "supervision process has one reward per step, so there is nothing for normalize_then_sum to do",
            field="supervision",
        )


def _token_level(a: "AlgorithmConfig") -> Iterator[Conflict]:
    """Losses with one ratio for a completion need one advantage for it."""
    kl_reward = a.kl.coef > 0 and a.kl.place == "reward"
    per_token = a.estimator.per_token == "always" or (a.estimator.per_token == "with_kl_reward" and kl_reward)
    if per_token and a.loss_spec.per_completion:
        yield Conflict(
            "one_advantage_per_completion",
            f"loss {a.loss} has one ratio and one advantage for a whole completion, but advantages here differ from "
            "token to token; use loss: gspo_token or clip",
            field="loss",
        )


def _kl(a: "AlgorithmConfig") -> Iterator[Conflict]:
    kl = a.kl
    if kl.place == "reward" and kl.coef == 0:
        yield Conflict(
            "kl_reward_without_coef",
            "kl.place reward with kl.coef 0 takes nothing off the reward; give kl.coef, or leave kl.place at loss",
            field="kl.place",
        )
    if kl.place == "reward" and kl.target == "old":
        yield Conflict(
            "kl_reward_against_old",
            "kl.target old with kl.place reward is always 0: when rewards are given, the policy is the old policy; "
            "use kl.place: loss or kl.target: reference",
            field="kl.target",
        )
    if kl.place == "reward" and kl.estimator == "k3_plus":
        yield Conflict(
            "kl_reward_with_k3_plus",
            "kl.estimator k3_plus differs from k3 in its gradient alone, and none passes through a penalty on the "
            "reward; use k1, whose policy gradient is that of the divergence there",
            field="kl.estimator",
        )
    if kl.controller == "adaptive" and kl.target == "old" and a.updates_per_batch == 1:
        yield Conflict(
            "adaptive_kl_against_old",
            "kl.controller adaptive has nothing to answer: with one update for a sampled batch the policy is the old "
            "policy and the divergence 0; raise inner_iterations or mini_batches, or use kl.target: reference",
            field="kl.controller",
        )
    if kl.place == "reward" and a.supervision == "process":
        yield Conflict(
            "kl_reward_with_process_supervision",
            "kl.place reward takes the penalty off one reward per completion; with supervision: process use loss",
            field="kl.place",
        )
    if kl.place == "reward" and a.multi_objective_aggregation == "normalize_then_sum":
        yield Conflict(
            "kl_reward_with_normalize_then_sum",
            "multi_objective_aggregation normalize_then_sum (GDPO) has no one reward to take a KL penalty off; use "
            "kl.place: loss",
            field="kl.place",
        )
    if kl.controller == "adaptive" and kl.coef == 0:
        yield Conflict(
            "adaptive_kl_without_coef",
            "kl.controller adaptive multiplies kl.coef, so it can never leave 0; give a kl.coef to start from",
            field="kl.controller",
        )
    if a.reference.refresh != "never" and not a.needs_reference:
        yield Conflict(
            "needs_reference_model",
            f"reference.refresh {a.reference.refresh} has no reference to refresh: none is loaded with kl.coef 0 or "
            "kl.target old",
            field="reference.refresh",
        )


def _bounds(a: "AlgorithmConfig") -> Iterator[Conflict]:
    if a.clip_delta is not None and "clip_delta" not in a.loss_spec.settings:
        yield Conflict(
            "clip_delta_unused", f"clip_delta has a meaning only with loss: clip, not {a.loss}", field="clip_delta"
        )
    if (conflict := a.loss_spec.conflict(a)) is not None:
        yield conflict
    if a.correction.low >= a.correction.high:
        yield Conflict(
            "correction_low_not_below_high", "correction.low must be below correction.high", field="correction.low"
        )
    if a.correction.stale == "weight" and a.correction.mode != "token_truncate":
        yield Conflict(
            "stale_weight_needs_token_truncate",
            "correction.stale weight weighs completions of an earlier policy as correction.mode: token_truncate does; "
            "choose that mode, or stale: ratio",
            field="correction.stale",
        )
    if a.correction.stale == "weight" and a.loss_spec.ratio == "sampler":
        yield Conflict(
            f"stale_weight_with_{a.loss}",
            f"loss {a.loss} has its ratio to the policy that sampled in any case; use correction.stale: ratio",
            field="correction.stale",
        )


def _tokens_apart(a: "AlgorithmConfig") -> Iterator[Conflict]:
    """Choosing tokens by entropy needs a separate loss for each token."""
    if a.top_entropy_share < 1 and a.loss_spec.per_completion:
        yield Conflict(
            "top_entropy_with_sequence_loss",
            f"loss {a.loss} is one number for a whole completion, so top_entropy_share cannot choose tokens of it; "
            "use loss: clip, or top_entropy_share 1",
            field="top_entropy_share",
        )


def _critic(a: "AlgorithmConfig") -> Iterator[Conflict]:
    if a.dynamic_sampling.enabled and ESTIMATORS[a.advantage].learns_from_equal:
        yield Conflict(
            "dynamic_sampling_with_advantage",
            f"dynamic_sampling leaves out groups of equal rewards, which advantage {a.advantage} learns from; "
            "switch it off",
            field="dynamic_sampling.enabled",
        )
    if a.dynamic_sampling.enabled and a.kl.coef > 0 and a.kl.place == "reward":
        yield Conflict(
            "dynamic_sampling_with_kl_reward",
            "dynamic_sampling leaves out groups of equal rewards before the KL penalty on the reward is known, which "
            "makes them differ; use kl.place: loss, or switch it off",
            field="kl.place",
        )
    if a.estimator.critic and a.denominator == "informative":
        yield Conflict(
            "informative_with_critic",
            f"denominator informative asks which groups carry a signal; with a critic (advantage: {a.advantage}) each "
            "does",
            field="denominator",
        )


_RULES = (_aggregation, _constant, _scale, _advantage_settings, _token_level, _kl, _bounds, _tokens_apart, _critic)


# ---------------------------------------------------------------------- with the rest of the run


def run_refusal(config: "RunConfig") -> Conflict | None:
    """Why the parts of this run do not go together, with the fix; None when they do."""
    return next((conflict for rule in _RUN_RULES for conflict in rule(config)), None)


_WHOLE_POLICY = {"top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}
"""Settings of sampling with the values at which tokens are drawn from the policy as it is."""


def _correction(c: "RunConfig") -> Iterator[Conflict]:
    mode = c.algorithm.correction.mode
    changed = [name for name, plain in _WHOLE_POLICY.items() if getattr(c.sampling, name) != plain]
    if mode != "none" and changed:
        field = f"sampling.{changed[0]}"
        yield Conflict(
            "correction_with_cut_sampling",
            f"{field} draws from another distribution than the policy's, so the ratio between sampler and trainer "
            f"would mean something else; with algorithm.correction.mode {mode} take "
            f"{', '.join(f'{name} {plain:g}' for name, plain in _WHOLE_POLICY.items())}, or set the mode to none",
            field=field,
        )


def _sizes(c: "RunConfig") -> Iterator[Conflict]:
    a, sampling = c.algorithm, c.sampling
    if a.pass_k is not None and a.pass_k >= sampling.group_size:
        yield Conflict(
            "pass_k_not_below_group_size",
            f"algorithm.pass_k {a.pass_k} must be below the {sampling.group_size} completions of a group: with all of "
            "them there is one choice only, and every advantage is 0",
            field="algorithm.pass_k",
        )
    if a.mini_batches > sampling.prompts_per_step:
        yield Conflict(
            "mini_batches_above_prompts",
            f"algorithm.mini_batches {a.mini_batches} is more than the {sampling.prompts_per_step} groups of a step, "
            "which are not torn apart; lower it or raise sampling.prompts_per_step",
            field="algorithm.mini_batches",
        )
    if a.overlong.buffer_tokens is not None and a.overlong.buffer_tokens >= sampling.max_completion_tokens:
        yield Conflict(
            "overlong_buffer_too_long",
            f"algorithm.overlong.buffer_tokens {a.overlong.buffer_tokens} must be less than "
            f"sampling.max_completion_tokens {sampling.max_completion_tokens}: it is the last part of it",
            field="algorithm.overlong.buffer_tokens",
        )


def _horizon(c: "RunConfig") -> Iterator[Conflict]:
    kl, samples = c.algorithm.kl, c.completions_per_step
    if kl.controller == "adaptive" and kl.horizon * 5 <= samples:
        yield Conflict(
            "kl_horizon_too_short",
            f"algorithm.kl.horizon {kl.horizon} is so short that one step of {samples} completions could take β to 0 "
            f"or below; give more than {samples // 5}",
            field="algorithm.kl.horizon",
        )


def _components(c: "RunConfig") -> Iterator[Conflict]:
    steps = [name for name, kind in reward_kinds().items() if kind.steps]
    if c.algorithm.supervision == "process" and not any(component.kind in steps for component in c.reward.components):
        yield Conflict(
            "needs_step_rewards",
            "algorithm.supervision process needs a reward component that scores steps (kind "
            f"{' or '.join(steps)}); with one reward for a completion use supervision: outcome",
            field="algorithm.supervision",
        )
    if c.algorithm.overlong.buffer_tokens is not None and any(
        component.name == "overlong" for component in c.reward.components
    ):
        yield Conflict(
            "component_named_overlong",
            "a reward component may not be named overlong with algorithm.overlong.buffer_tokens: the soft overlong "
            "punishment is recorded under that name",
            field="algorithm.overlong.buffer_tokens",
        )
    if c.algorithm.multi_objective_aggregation == "normalize_then_sum" and len(c.reward.components) < 2:
        yield Conflict(
            "normalize_then_sum_needs_two_components",
            "algorithm.multi_objective_aggregation normalize_then_sum (GDPO) needs two reward components or more",
            field="algorithm.multi_objective_aggregation",
        )


def _lora(c: "RunConfig") -> Iterator[Conflict]:
    if c.model.lora.rank and c.algorithm.reference.refresh != "never":
        yield Conflict(
            "lora_reference_refresh",
            "model.lora has no separate reference to refresh: it is the same model with the adapters off; "
            "set algorithm.reference.refresh to never",
            field="algorithm.reference.refresh",
        )


def _quantization(c: "RunConfig") -> Iterator[Conflict]:
    if c.model.quantization == "none":
        return
    if not c.model.lora.rank:
        yield Conflict(
            "quantization_without_lora",
            "model.quantization nf4 holds weights that cannot be trained, and without adapters nothing else is there; "
            "give model.lora.rank, or set quantization to none",
            field="model.quantization",
        )
    users = (
        (c.model.adapter == "merge", "model.adapter", "merge", "cannot add to weights of 4 bits; take continue"),
        (c.engine.rollout == "vllm", "engine.rollout", "vllm", "is sent whole weights; take local"),
        (c.engine.training == "deepspeed", "engine.training", "deepspeed", "divides weights it can train; take single"),
        (c.engine.device == "cpu", "engine.device", "cpu", "has no kernels for weights of 4 bits; take cuda or auto"),
        (c.engine.torch_compile, "engine.torch_compile", "true", "is not known to fuse such layers; switch it off"),
    )
    for used, field, value, why in users:
        if used:
            yield Conflict(
                "quantization_not_with_choice",
                f"{field} {value} {why}, or set model.quantization to none",
                field=field,
            )


_RUN_RULES = (
    *(_correction, _sizes, _horizon, _components, _lora, _quantization),
    *(*EVALUATION_RULES, *ENGINE_RULES, *OPTIM_RULES),
)
