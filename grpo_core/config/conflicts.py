"""Choices of the algorithm that do not go together, each with the reason and the way out. Loads no torch."""

from typing import TYPE_CHECKING

from grpo_core.config.engine_conflicts import ENGINE_RULES
from grpo_core.errors import Conflict

if TYPE_CHECKING:
    from grpo_core.config.algorithm import AlgorithmConfig
    from grpo_core.config.run import RunConfig

_PER_TOKEN = ("sequence_mean", "token_mean", "local_token_mean", "constant", "sequence_sum")

AGGREGATIONS: dict[str, tuple[str, ...]] = {
    "clip": _PER_TOKEN,
    "cispo": _PER_TOKEN,
    "sapo": _PER_TOKEN,
    "vespo": _PER_TOKEN,
    "dppo": _PER_TOKEN,
    "reinforce": _PER_TOKEN,
    "gspo": ("sequence_mean",),
    "gspo_token": ("sequence_mean",),
    "gmpo": ("sequence_mean",),
    "luspo": ("sequence_sum",),
    "sequence_ratio": ("sequence_total",),
}
"""Ways of averaging that each loss has a meaning with."""

SCALES: dict[str, tuple[str, ...]] = {
    "group": ("group_std", "batch_std", "none"),
    "rloo": ("none",),
    "reinforce": ("none",),
    "reinforce_baseline": ("none", "batch_std"),
    "reinforce_pp": ("batch_std",),
    "reinforce_pp_baseline": ("batch_std",),
    "maxrl": ("none",),
    "pass_at_k": ("group_std", "none"),
    "gae": ("batch_std", "none"),
}
"""Divisors that each advantage estimator has in its paper."""


def refusal(algorithm: "AlgorithmConfig") -> Conflict | None:
    """Why this algorithm cannot be run, with the fix; None when it can."""
    return next((conflict for rule in _RULES if (conflict := rule(algorithm)) is not None), None)


def _aggregation(a: "AlgorithmConfig") -> Conflict | None:
    allowed = AGGREGATIONS[a.loss]
    if a.aggregation in allowed:
        return None
    if a.aggregation == "sequence_total":
        return Conflict(
            "aggregation_needs_sequence_ratio",
            "aggregation sequence_total belongs to loss: sequence_ratio; choose token_mean or sequence_mean",
        )
    if len(allowed) == 1:
        why = {
            "luspo": "weighs each completion's loss by its length",
            "sequence_ratio": "sums over completions and divides by nothing",
        }.get(a.loss, "has one ratio for a whole completion, so every completion must count alike")
        return Conflict(
            "aggregation_not_with_loss", f"loss {a.loss} {why}: it needs aggregation: {allowed[0]}, not {a.aggregation}"
        )
    return Conflict(
        "aggregation_not_with_loss", f"loss {a.loss} goes with aggregation {', '.join(allowed)}, not {a.aggregation}"
    )


def _constant(a: "AlgorithmConfig") -> Conflict | None:
    if a.aggregation == "constant" and a.aggregation_constant is None:
        return Conflict(
            "needs_aggregation_constant",
            "aggregation constant (Dr. GRPO) needs aggregation_constant, in tokens; "
            "the paper used the longest completion allowed",
        )
    if a.aggregation != "constant" and a.aggregation_constant is not None:
        return Conflict(
            "aggregation_constant_unused", "aggregation_constant has a meaning only with aggregation: constant"
        )
    if a.aggregation == "local_token_mean" and a.local_batch is None:
        return Conflict(
            "needs_local_batch",
            "aggregation local_token_mean (BNPO) needs local_batch, the completions that are averaged together; "
            "in TRL that is the batch size of one device",
        )
    if a.aggregation != "local_token_mean" and a.local_batch is not None:
        return Conflict("local_batch_unused", "local_batch has a meaning only with aggregation: local_token_mean")
    return None


def _scale(a: "AlgorithmConfig") -> Conflict | None:
    allowed = SCALES[a.advantage]
    if a.scale not in allowed:
        return Conflict(
            "scale_not_with_advantage",
            f"advantage {a.advantage} goes with scale: {' or '.join(allowed)}, not {a.scale}",
        )
    return None


def _advantage_settings(a: "AlgorithmConfig") -> Conflict | None:
    if a.advantage == "pass_at_k" and a.pass_k is None:
        return Conflict(
            "needs_pass_k", "advantage pass_at_k needs pass_k, the number of tries of which one must succeed"
        )
    if a.advantage != "pass_at_k" and a.pass_k is not None:
        return Conflict("pass_k_unused", "pass_k has a meaning only with advantage: pass_at_k")
    if a.multi_objective_aggregation == "normalize_then_sum" and (a.advantage, a.scale) != ("group", "group_std"):
        return Conflict(
            "normalize_then_sum_needs_group_std",
            "multi_objective_aggregation normalize_then_sum (GDPO) divides each reward by its group's spread: it "
            "needs advantage: group and scale: group_std",
        )
    if a.supervision == "process" and (a.advantage != "group" or a.scale == "batch_std"):
        return Conflict(
            "process_supervision_needs_group",
            "supervision process needs advantage: group with scale: group_std or none",
        )
    if a.supervision == "process" and a.multi_objective_aggregation == "normalize_then_sum":
        return Conflict(
            "process_supervision_with_normalize_then_sum",
            "supervision process has one reward per step, so there is nothing for normalize_then_sum to do",
        )
    return None


def _token_level(a: "AlgorithmConfig") -> Conflict | None:
    """Losses with one ratio for a completion need one advantage for it."""
    per_token = (
        a.supervision == "process"
        or a.advantage == "gae"
        or (a.advantage.startswith("reinforce_pp") and a.kl.coef > 0 and a.kl.place == "reward")
    )
    if per_token and a.loss in ("gspo", "gmpo", "luspo", "sequence_ratio"):
        return Conflict(
            "one_advantage_per_completion",
            f"loss {a.loss} has one ratio and one advantage for a whole completion, but advantages here differ from "
            "token to token; use loss: gspo_token or clip",
        )
    return None


def _kl(a: "AlgorithmConfig") -> Conflict | None:
    kl = a.kl
    if kl.place == "reward" and kl.coef == 0:
        return Conflict(
            "kl_reward_without_coef",
            "kl.place reward with kl.coef 0 takes nothing off the reward; give kl.coef, or leave kl.place at loss",
        )
    if kl.place == "reward" and kl.target == "old":
        return Conflict(
            "kl_reward_against_old",
            "kl.target old with kl.place reward is always 0: when rewards are given, the policy is the old policy; "
            "use kl.place: loss or kl.target: reference",
        )
    if kl.place == "reward" and kl.estimator == "k3_plus":
        return Conflict(
            "kl_reward_with_k3_plus",
            "kl.estimator k3_plus differs from k3 in its gradient alone, and none passes through a penalty on the "
            "reward; use k1, whose policy gradient is that of the divergence there",
        )
    if kl.controller == "adaptive" and kl.target == "old" and a.updates_per_batch == 1:
        return Conflict(
            "adaptive_kl_against_old",
            "kl.controller adaptive has nothing to answer: with one update for a sampled batch the policy is the old "
            "policy and the divergence 0; raise inner_iterations or mini_batches, or use kl.target: reference",
        )
    if kl.place == "reward" and a.supervision == "process":
        return Conflict(
            "kl_reward_with_process_supervision",
            "kl.place reward takes the penalty off one reward per completion; with supervision: process use loss",
        )
    if kl.place == "reward" and a.multi_objective_aggregation == "normalize_then_sum":
        return Conflict(
            "kl_reward_with_normalize_then_sum",
            "multi_objective_aggregation normalize_then_sum (GDPO) has no one reward to take a KL penalty off; use "
            "kl.place: loss",
        )
    if kl.controller == "adaptive" and kl.coef == 0:
        return Conflict(
            "adaptive_kl_without_coef",
            "kl.controller adaptive multiplies kl.coef, so it can never leave 0; give a kl.coef to start from",
        )
    if a.reference.refresh != "never" and not a.needs_reference:
        return Conflict(
            "needs_reference_model",
            f"reference.refresh {a.reference.refresh} has no reference to refresh: none is loaded with kl.coef 0 or "
            "kl.target old",
        )
    return None


def _bounds(a: "AlgorithmConfig") -> Conflict | None:
    if a.clip_delta is not None and a.loss != "clip":
        return Conflict("clip_delta_unused", f"clip_delta has a meaning only with loss: clip, not {a.loss}")
    if a.clip_delta is not None and a.clip_delta <= 1 + a.clip_high:
        return Conflict(
            "clip_delta_too_low",
            f"clip_delta must be above 1 + clip_high = {1 + a.clip_high:g}, or the upper clip never acts",
        )
    if a.loss == "cispo" and a.cispo_bound == "absolute" and a.clip_high < 1:
        return Conflict(
            "cispo_bound_below_one",
            f"cispo_bound absolute would hold every weight at {a.clip_high:g}, below the ratio 1 of an unchanged "
            "policy; give clip_high as the largest weight (ScaleRL used 5), or use cispo_bound: relative",
        )
    if a.loss == "dppo" and a.dppo.divergence == "tv" and a.dppo.threshold >= 1:
        return Conflict(
            "dppo_threshold_too_high",
            f"dppo.threshold {a.dppo.threshold:g} can never be passed: two probabilities differ by less than 1 (tv); "
            "the paper used 0.15",
        )
    if a.correction.low >= a.correction.high:
        return Conflict("correction_low_not_below_high", "correction.low must be below correction.high")
    if a.correction.stale == "weight" and a.correction.mode != "token_truncate":
        return Conflict(
            "stale_weight_needs_token_truncate",
            "correction.stale weight weighs completions of an earlier policy as correction.mode: token_truncate does; "
            "choose that mode, or stale: ratio",
        )
    if a.correction.stale == "weight" and a.loss == "dppo":
        return Conflict(
            "stale_weight_with_dppo",
            "loss dppo has its ratio to the policy that sampled in any case; use correction.stale: ratio",
        )
    return None


def _tokens_apart(a: "AlgorithmConfig") -> Conflict | None:
    """Choosing tokens by entropy asks for a loss that each token has of its own."""
    if a.top_entropy_share < 1 and a.loss in ("gspo", "gmpo", "luspo", "sequence_ratio"):
        return Conflict(
            "top_entropy_with_sequence_loss",
            f"loss {a.loss} is one number for a whole completion, so top_entropy_share cannot choose tokens of it; "
            "use loss: clip, or top_entropy_share 1",
        )
    return None


def _critic(a: "AlgorithmConfig") -> Conflict | None:
    if a.dynamic_sampling.enabled and a.advantage.startswith(("gae", "reinforce")):
        return Conflict(
            "dynamic_sampling_with_advantage",
            f"dynamic_sampling leaves out groups of equal rewards, which advantage {a.advantage} learns from; "
            "switch it off",
        )
    if a.dynamic_sampling.enabled and a.kl.coef > 0 and a.kl.place == "reward":
        return Conflict(
            "dynamic_sampling_with_kl_reward",
            "dynamic_sampling leaves out groups of equal rewards before the KL penalty on the reward is known, which "
            "makes them differ; use kl.place: loss, or switch it off",
        )
    if a.advantage == "gae" and a.denominator == "informative":
        return Conflict(
            "informative_with_critic",
            "denominator informative asks which groups carry a signal; with a critic (advantage: gae) each does",
        )
    return None


_RULES = (_aggregation, _constant, _scale, _advantage_settings, _token_level, _kl, _bounds, _tokens_apart, _critic)


# ---------------------------------------------------------------------- with the rest of the run


def run_refusal(config: "RunConfig") -> Conflict | None:
    """Why the parts of this run do not go together, with the fix; None when they do."""
    return next((conflict for rule in _RUN_RULES if (conflict := rule(config)) is not None), None)


def _correction(c: "RunConfig") -> Conflict | None:
    sampling, mode = c.sampling, c.algorithm.correction.mode
    if mode != "none" and (sampling.top_p < 1 or sampling.top_k > 0):
        cut = f"sampling.top_p {sampling.top_p:g}" if sampling.top_p < 1 else f"sampling.top_k {sampling.top_k}"
        return Conflict(
            "correction_with_cut_sampling",
            f"{cut} draws from fewer tokens than the policy has, so the ratio between sampler and trainer would "
            f"mean something else; with algorithm.correction.mode {mode} take top_p 1 and top_k 0, or set the mode "
            "to none",
        )
    return None


def _sizes(c: "RunConfig") -> Conflict | None:
    a, sampling = c.algorithm, c.sampling
    if a.pass_k is not None and a.pass_k >= sampling.group_size:
        return Conflict(
            "pass_k_not_below_group_size",
            f"algorithm.pass_k {a.pass_k} must be below the {sampling.group_size} completions of a group: with all of "
            "them there is one choice only, and every advantage is 0",
        )
    if a.mini_batches > sampling.prompts_per_step:
        return Conflict(
            "mini_batches_above_prompts",
            f"algorithm.mini_batches {a.mini_batches} is more than the {sampling.prompts_per_step} groups of a step, "
            "which are not torn apart; lower it or raise sampling.prompts_per_step",
        )
    if a.overlong.buffer_tokens is not None and a.overlong.buffer_tokens >= sampling.max_completion_tokens:
        return Conflict(
            "overlong_buffer_too_long",
            f"algorithm.overlong.buffer_tokens {a.overlong.buffer_tokens} must be less than "
            f"sampling.max_completion_tokens {sampling.max_completion_tokens}: it is the last part of it",
        )
    return None


def _horizon(c: "RunConfig") -> Conflict | None:
    kl, samples = c.algorithm.kl, c.completions_per_step
    if kl.controller == "adaptive" and kl.horizon * 5 <= samples:
        return Conflict(
            "kl_horizon_too_short",
            f"algorithm.kl.horizon {kl.horizon} is so short that one step of {samples} completions could take β to 0 "
            f"or below; give more than {samples // 5}",
        )
    return None


STEP_KINDS = ("equations", "process", "python")
"""Reward kinds that score a completion step by step."""


def _components(c: "RunConfig") -> Conflict | None:
    if c.algorithm.supervision == "process" and not any(one.kind in STEP_KINDS for one in c.reward.components):
        return Conflict(
            "needs_step_rewards",
            "algorithm.supervision process needs a reward component that scores steps (kind "
            f"{' or '.join(STEP_KINDS)}); with one reward for a completion use supervision: outcome",
        )
    if c.algorithm.overlong.buffer_tokens is not None and any(one.name == "overlong" for one in c.reward.components):
        return Conflict(
            "component_named_overlong",
            "a reward component may not be named overlong with algorithm.overlong.buffer_tokens: the soft overlong "
            "punishment is recorded under that name",
        )
    if c.algorithm.multi_objective_aggregation == "normalize_then_sum" and len(c.reward.components) < 2:
        return Conflict(
            "normalize_then_sum_needs_two_components",
            "algorithm.multi_objective_aggregation normalize_then_sum (GDPO) needs two reward components or more",
        )
    return None


def _lora(c: "RunConfig") -> Conflict | None:
    if c.model.lora.rank and c.algorithm.reference.refresh != "never":
        return Conflict(
            "lora_reference_refresh",
            "model.lora has no reference of its own to refresh: it is the same model with the adapters off; "
            "set algorithm.reference.refresh to never",
        )
    return None


_RUN_RULES = (_correction, _sizes, _horizon, _components, _lora, *ENGINE_RULES)
