"""An algorithm's choices in sentences that hold for that config and say no more. Reads a config, nothing else.

The sentences stand in records; the choices themselves stand beside them, for machines.
"""

from cohort.records.answers import count, number
from grpo_core.config.algorithm import AlgorithmConfig
from grpo_core.config.run import RunConfig

_METHODS = {
    "group": ("GRPO", "Group Relative Policy Optimization (GRPO)"),
    "pass_at_k": ("GRPO", "Group Relative Policy Optimization (GRPO) with pass@k advantages"),
    "maxrl": ("MaxRL", "Maximum Likelihood Reinforcement Learning (MaxRL)"),
    "rloo": ("RLOO", "REINFORCE leave-one-out (RLOO)"),
    "reinforce": ("REINFORCE", "REINFORCE"),
    "reinforce_baseline": ("REINFORCE", "REINFORCE with a baseline"),
    "reinforce_pp": ("REINFORCE++", "REINFORCE++"),
    "reinforce_pp_baseline": ("REINFORCE++", "REINFORCE++ with the group's mean"),
    "gae": ("PPO", "Proximal Policy Optimization (PPO) with a learned critic"),
}
_LOSSES = {
    "clip": "clipped policy gradient",
    "gspo": "clipped ratio of whole completions (GSPO)",
    "gspo_token": "clipped ratio of whole completions with token advantages (GSPO-token)",
    "gmpo": "geometric mean of clipped token ratios (GMPO)",
    "cispo": "policy gradient weighed by a bounded ratio (CISPO)",
    "sapo": "softly gated policy gradient (SAPO)",
    "vespo": "policy gradient with a smooth weight on each completion's ratio (VESPO)",
    "luspo": "clipped ratio of whole completions, times their length (LUSPO)",
    "dppo": "policy gradient that stops at a divergence (DPPO)",
    "sequence_ratio": "unclipped ratio of whole completions",
    "reinforce": "policy gradient without a ratio (REINFORCE)",
}
_AGGREGATIONS = {
    "sequence_mean": "mean over tokens, then over completions (GRPO)",
    "token_mean": "mean over all tokens of {update} (as in DAPO)",
    "local_token_mean": "mean over the tokens of {batch} completions, then over those batches (BNPO)",
    "constant": "sum over tokens divided by completions times {constant} tokens (Dr. GRPO)",
    "sequence_sum": "sum over tokens, mean over completions",
    "sequence_total": "one number for each completion, summed",
}
_MEANS = ("sequence_mean", "token_mean", "local_token_mean", "constant", "sequence_sum")


def training_method(algorithm: AlgorithmConfig) -> tuple[str, str]:
    """(short name, in words)."""
    name, words = _METHODS[algorithm.advantage]
    if algorithm.loss in ("clip", "reinforce") and (algorithm.loss == "clip" or name in ("REINFORCE", "RLOO")):
        return name, words
    return name, f"{words}, with the loss {algorithm.loss}"


def loss(algorithm: AlgorithmConfig) -> str:
    update = "the step" if algorithm.mini_batches == 1 else "the mini-batch"
    averaged = _AGGREGATIONS[algorithm.aggregation].format(
        update=update, batch=algorithm.local_batch, constant=algorithm.aggregation_constant
    )
    parts = [_LOSSES[algorithm.loss], averaged, f"μ {algorithm.inner_iterations}"]
    if algorithm.mini_batches > 1:
        parts[-1] += f", {algorithm.mini_batches} mini-batches"
    if algorithm.denominator == "informative" and algorithm.aggregation in _MEANS:
        parts.append("groups without a signal are in no denominator")
    if algorithm.entropy_coef:
        parts.append(f"entropy bonus {number(algorithm.entropy_coef)}")
    if algorithm.top_entropy_share < 1:
        parts.append(f"only the {number(100 * algorithm.top_entropy_share)} % of tokens with the highest entropy")
    if algorithm.off_policy_threshold is not None:
        parts.append(
            f"without completions of negative advantage that fell by over {number(algorithm.off_policy_threshold)} "
            "nats a token since they were sampled"
        )
    if algorithm.advantage == "gae":
        critic = algorithm.critic
        parts.append(
            f"critic of its own, learning rate {number(critic.lr)}, values clipped at {number(critic.value_clip)}"
        )
    return "; ".join(parts)


def normalization(algorithm: AlgorithmConfig) -> str:
    std = ("population" if algorithm.std_ddof == 0 else "sample") + " standard deviation"
    eps = number(algorithm.advantage_eps)
    if algorithm.supervision == "process":
        divided = f", divided by their {std} + {eps}" if algorithm.scale == "group_std" else ", not divided"
        return (
            f"each step's reward minus the mean over all steps of its group{divided}; a token's advantage is the sum "
            "over the steps that end at it or later (process supervision)"
        )
    if algorithm.multi_objective_aggregation == "normalize_then_sum":
        return (
            f"each reward component minus its group's mean, divided by its group's {std} + {eps}; their weighted sum "
            f"minus its mean over the step, divided by its {std} + {eps} (GDPO)"
        )
    match algorithm.advantage:
        case "group":
            return f"reward minus the group's mean, {_divided(algorithm, std, eps)}"
        case "rloo":
            return "reward minus the mean of the group's other completions, not divided (RLOO)"
        case "maxrl":
            return "reward minus the group's mean, divided by that mean (MaxRL)"
        case "pass_at_k":
            divided = f", divided by its standard deviation + {eps}" if algorithm.scale == "group_std" else ""
            return (
                f"what a completion adds to the mean best reward of {algorithm.pass_k} of its group{divided} (pass@k)"
            )
        case "reinforce":
            return "the reward itself: compared with nothing, not divided (REINFORCE)"
        case "reinforce_baseline":
            divided = f"divided by the step's {std} + {eps}" if algorithm.scale == "batch_std" else "not divided"
            return f"reward minus the mean of the whole step, {divided}"
        case "reinforce_pp" | "reinforce_pp_baseline":
            first = "the group's mean, then minus " if algorithm.advantage.endswith("baseline") else ""
            return (
                f"reward minus {first}the mean over all tokens of the step, divided by their {std} + {eps} "
                "(REINFORCE++)"
            )
        case "gae":
            critic = algorithm.critic
            whitened = f", minus their mean and divided by their {std} + {eps} over all tokens of the step"
            return (
                f"generalised advantage estimation with a learned critic, γ {number(critic.gamma)}, "
                f"λ {number(critic.gae_lambda)}" + (whitened if algorithm.scale == "batch_std" else ", not divided")
            )


def _divided(algorithm: AlgorithmConfig, std: str, eps: str) -> str:
    if algorithm.scale == "none":
        return "not divided (Dr. GRPO)"
    whose = "group's" if algorithm.scale == "group_std" else "whole batch's"
    return f"divided by the {whose} {std} + {eps}"


def clipping(algorithm: AlgorithmConfig) -> str:
    """Where the loss holds the ratio; that it does not, for a loss without a bound."""
    low, high = number(algorithm.clip_low), number(algorithm.clip_high)
    match algorithm.loss:
        case "clip":
            text = f"ratio kept between 1 − {low} and 1 + {high}"
            if algorithm.clip_delta is not None:
                text += f"; where the advantage is negative it counts as at most {number(algorithm.clip_delta)}"
            return text
        case "gspo" | "gspo_token" | "luspo":
            return f"each completion's ratio (geometric mean over tokens) kept between 1 − {low} and 1 + {high}"
        case "gmpo":
            return f"each token's log-ratio kept between −{low} and {high}"
        case "cispo" if algorithm.cispo_bound == "absolute":
            return f"each token's weight kept at or below {high}; no token loses its gradient"
        case "cispo":
            return f"each token's weight kept between 1 − {low} and 1 + {high}; no token loses its gradient"
        case "sapo":
            sapo = algorithm.sapo
            return f"no clip: a soft gate with τ {number(sapo.tau_positive)} and {number(sapo.tau_negative)}"
        case "vespo":
            return "no clip: a smooth weight"
        case "dppo":
            far = "divergence" if algorithm.dppo.divergence == "kl" else "difference of probabilities"
            return f"no clip of the ratio: no gradient beyond a {far} of {number(algorithm.dppo.threshold)}"
        case "sequence_ratio":
            return "none: the ratio is not clipped"
        case "reinforce":
            return "none: the loss has no ratio"


def clipping_note(algorithm: AlgorithmConfig) -> str:
    if algorithm.loss in ("sequence_ratio", "reinforce"):
        return ""
    if algorithm.updates_per_batch > 1:
        return ""
    if algorithm.dynamic_sampling.enabled:
        return (
            "One update follows each sampled batch, so the ratio is 1, except for groups left over from an earlier "
            "step."
        )
    if algorithm.loss == "clip":
        return "At μ 1 with one mini-batch the ratio is 1 and clipping never acts."
    return "At μ 1 with one mini-batch the ratio is 1 and nothing is held back."


def kl(config: RunConfig) -> str:
    penalty = config.algorithm.kl
    if penalty.coef == 0:
        return "none (β 0)"
    beta = f"β {number(penalty.coef)}"
    if penalty.controller == "adaptive":
        beta += (
            f" at the start, moved towards {number(penalty.target_nats)} nats a completion "
            f"(horizon {count(penalty.horizon)} completions)"
        )
    target = "the old policy" if penalty.target == "old" else "the reference"
    place = "added to the loss" if penalty.place == "loss" else "taken off the reward"
    return f"{beta}, estimator {penalty.estimator}, to {target}, {place}"


def reference(config: RunConfig) -> str:
    """Which policy the penalty pulls back to."""
    algorithm = config.algorithm
    if algorithm.kl.coef == 0:
        return "none (β 0)"
    if not algorithm.needs_reference:
        return "none: the KL penalty is to the old policy"
    if config.model.lora.rank:
        return "the base model: the trained model with its adapters off"
    follow = algorithm.reference
    match follow.refresh:
        case "never":
            return "the base model, frozen; same weights as above"
        case "replace":
            return f"at first the base model; replaced by the policy every {count(follow.every)} steps"
        case "average":
            return (
                f"at first the base model; every {count(follow.every)} steps {number(100 * follow.weight)} % of the "
                "policy's weights and the rest of its own"
            )


def sampling_controls(algorithm: AlgorithmConfig) -> list[str]:
    """What is done between sampling and the update, beyond scoring."""
    parts = []
    if algorithm.dynamic_sampling.enabled:
        parts.append(
            "groups with equal rewards are replaced by further ones, from at most "
            f"{count(algorithm.dynamic_sampling.max_batches)} batches for a step (dynamic sampling)"
        )
    correction = algorithm.correction
    if correction.mode == "token_truncate":
        parts.append(f"tokens weighed by trainer over sampler probability, at most {number(correction.cap)}")
    elif correction.mode == "sequence_mask":
        parts.append(
            "completions whose mean trainer-over-sampler ratio is outside "
            f"{number(correction.low)} to {number(correction.high)} left out"
        )
    return parts


def overlong(algorithm: AlgorithmConfig) -> str:
    """The punishment that the reward carries besides its components; empty without one."""
    last = algorithm.overlong.buffer_tokens
    if last is None:
        return ""
    return (
        f"up to {number(algorithm.overlong.penalty)} taken off in a straight line over the last {count(last)} tokens "
        "before the limit (soft overlong punishment)"
    )


def adapters(config: RunConfig) -> str:
    lora = config.model.lora
    if lora.rank == 0:
        return ""
    where = "all linear layers" if lora.targets == "all_linear" else "attention"
    return f"LoRA adapters of rank {lora.rank}, alpha {number(lora.alpha)}, on {where}; all other weights stand still"


def silent_groups(algorithm: AlgorithmConfig, *, remaining: bool) -> str:
    """What becomes of groups with equal rewards, or with fewer than two; `remaining`: whether some were trained on."""
    if not remaining:
        return ""
    parts = [_their_advantages(algorithm)]
    if algorithm.advantage == "gae":
        return parts[0]
    counted = []
    if algorithm.denominator == "all" and algorithm.aggregation in _MEANS:
        counted.append("in the loss's mean")
    if algorithm.kl.coef and algorithm.kl.place == "loss":
        counted.append("in the KL penalty")
    if algorithm.entropy_coef:
        counted.append("in the entropy bonus")
    if counted:
        parts.append(f"What was scored of them still counts {_joined(counted)}.")
    elif algorithm.denominator == "informative":
        parts.append("They are in no denominator of the loss.")
    return " ".join(parts)


def _their_advantages(algorithm: AlgorithmConfig) -> str:
    if algorithm.advantage == "gae":
        return "The critic's advantages are not 0 for them, so they are learned from."
    if algorithm.kl.coef and algorithm.kl.place == "reward":
        return "Their rewards are equal before the KL penalty; with it their advantages need not be 0."
    if algorithm.supervision == "process":
        return (
            "Their summed rewards are equal; the rewards of their steps may differ, and are learned from where they do."
        )
    if algorithm.multi_objective_aggregation == "normalize_then_sum":
        return "Their summed rewards are equal; single components may differ, and are learned from where they do."
    match algorithm.advantage:
        case "reinforce":
            return "They are learned from all the same: rewards are compared with nothing."
        case "reinforce_baseline" | "reinforce_pp":
            return "They are learned from all the same, where they did better or worse than the step's mean."
        case "reinforce_pp_baseline":
            return "They carry only what normalising over the tokens of the whole step takes off."
        case _:
            return "Their advantages are 0."


def _joined(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
