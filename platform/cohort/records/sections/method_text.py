"""An algorithm's choices in sentences that hold for that config. Reads a config, nothing else.

Records contain the sentences next to the machine-readable choices.
"""

from collections.abc import Iterable

from cohort.records.answers import count, number
from grpo_core.advantages.settings import ESTIMATORS
from grpo_core.config.algorithm import AlgorithmConfig
from grpo_core.config.kinds import AnyConfig, LearningConfig
from grpo_core.config.optim import OptimConfig
from grpo_core.config.reward_model import RewardModelConfig
from grpo_core.config.run import RunConfig
from grpo_core.config.sample import SampleConfig
from grpo_core.config.sft import SftConfig

_AGGREGATIONS = {
    "sequence_mean": "mean over tokens, then over completions (GRPO)",
    "token_mean": "mean over all tokens of {update} (as in DAPO)",
    "local_token_mean": "mean over the tokens of {batch} completions, then over those batches (BNPO)",
    "constant": "sum over tokens divided by completions times {constant} tokens (Dr. GRPO)",
    "sequence_sum": "sum over tokens, mean over completions",
    "sequence_total": "one number for each completion, summed",
}
_MEANS = ("sequence_mean", "token_mean", "local_token_mean", "constant", "sequence_sum")


def training_method(config: AnyConfig) -> tuple[str, str]:
    """(short name, in words)."""
    if isinstance(config, RunConfig):
        return policy_gradient(config)
    if isinstance(config, RewardModelConfig):
        how = "pairwise comparisons" if config.objective == "bradley_terry" else "scores"
        return "reward model", f"a reward model learned from {how}"
    if isinstance(config, SampleConfig):
        return "sampling", "completions were sampled and filtered into a dataset; nothing was learned"
    if config.kind == "distill":
        return "distillation", "supervised fine-tuning on answers that another model sampled"
    return "SFT", "supervised fine-tuning on given answers"


def policy_gradient(config: RunConfig) -> tuple[str, str]:
    algorithm = config.algorithm
    name, words = ESTIMATORS[algorithm.advantage].method
    if config.optim.method == "trpo":
        return "TRPO", f"Trust Region Policy Optimization (TRPO), with the advantages of {words}"
    implied = algorithm.loss == "clip" or name in algorithm.loss_spec.implied_by
    return name, words if implied else f"{words}, with the loss {algorithm.loss}"


def given_answers_loss(config: SftConfig) -> str:
    """Of fine-tuning, with its formula."""
    of = "every turn of the assistant" if config.data.turns == "all" else "the last turn of each conversation"
    return f"cross-entropy, −log π(token | text before it), mean over all answer tokens of the step; of {of}"


def preference_loss(config: RewardModelConfig) -> str:
    """Of a reward model, with its formula."""
    if config.objective == "regression":
        return "squared error, (r − score)², mean over the rows of the step"
    text = "Bradley–Terry, −log σ(r(chosen) − r(rejected) − margin), mean over the pairs of the step"
    if config.center:
        text += f"; plus {number(config.center)} · (r(chosen) + r(rejected))², which keeps rewards around 0"
    return text


def optimiser(config: LearningConfig) -> str:
    optim, trained = config.optim, adapters(config)
    if isinstance(optim, OptimConfig) and optim.method == "trpo":
        region = optim.trpo
        text = (
            f"TRPO, mean KL of a step at most {number(region.max_kl)} nats a token; conjugate gradient, at most "
            f"{region.cg_iterations} iterations, damping {number(region.cg_damping)}; line search, at most "
            f"{region.line_search_steps} lengths, each {number(region.shrink)} of the one before"
        )
    else:
        warm_up = f" after {optim.warmup_steps} steps of warm-up" if optim.warmup_steps else ""
        bound = f"gradient norm at most {number(optim.max_grad_norm)}"
        text = f"AdamW, learning rate {number(optim.lr)}, {optim.schedule}{warm_up}, {bound}"
    return text + (f"; {trained}" if trained else "")


def loss(algorithm: AlgorithmConfig) -> str:
    update = "the step" if algorithm.mini_batches == 1 else "the mini-batch"
    averaged = _AGGREGATIONS[algorithm.aggregation].format(
        update=update, batch=algorithm.local_batch, constant=algorithm.aggregation_constant
    )
    parts = [algorithm.loss_spec.words, averaged, f"μ {algorithm.inner_iterations}"]
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
    if algorithm.estimator.critic:
        critic = algorithm.critic
        parts.append(
            f"critic of its own, learning rate {number(critic.lr)}, values clipped at {number(critic.value_clip)}"
        )
    return "; ".join(parts)


def normalization(algorithm: AlgorithmConfig) -> str:
    std = ("population" if algorithm.std_ddof == 0 else "sample") + " standard deviation"
    settings = _numbers(algorithm, ("advantage_eps", *ESTIMATORS[algorithm.advantage].settings))
    return algorithm.scaling.words.format(**settings, std=std, eps=settings["advantage_eps"])


def clipping(algorithm: AlgorithmConfig) -> str:
    """The bound of the ratio, or that the loss has none."""
    spec = algorithm.loss_spec
    text = spec.bound if isinstance(spec.bound, str) else spec.bound(algorithm)
    return text.format(**_numbers(algorithm, spec.settings))


def _numbers(algorithm: AlgorithmConfig, settings: Iterable[str]) -> dict[str, str]:
    """Settings, nested ones flattened, by name, with numbers formatted as in records."""
    given = algorithm.model_dump(include=set(settings))
    leaves = {name: value for name, value in given.items() if not isinstance(value, dict)}
    for part in given.values():
        leaves |= part if isinstance(part, dict) else {}
    return {name: number(value) if isinstance(value, int | float) else str(value) for name, value in leaves.items()}


def clipping_note(algorithm: AlgorithmConfig) -> str:
    if not algorithm.loss_spec.bounded:
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
    return "At μ 1 with one mini-batch the ratio is 1 and nothing is clipped."


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
    where = "added to the loss" if penalty.place == "loss" else "taken off the reward"
    return f"{beta}, estimator {penalty.estimator}, to {target}, {where}"


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
    """The penalty added to the reward components; empty without one."""
    last = algorithm.overlong.buffer_tokens
    if last is None:
        return ""
    return (
        f"up to {number(algorithm.overlong.penalty)} taken off in a straight line over the last {count(last)} tokens "
        "before the limit (soft overlong punishment)"
    )


def adapters(config: LearningConfig) -> str:
    lora = config.model.lora
    if lora.rank == 0:
        return ""
    where = "all linear layers" if lora.targets == "all_linear" else "attention"
    base = ", those of the base model's linear layers in 4 bits (NF4)" if config.model.quantization == "nf4" else ""
    return (
        f"LoRA adapters of rank {lora.rank}, alpha {number(lora.alpha)}, on {where}; all other weights are frozen{base}"
    )


def silent_groups(algorithm: AlgorithmConfig, *, remaining: bool) -> str:
    """How groups with equal rewards or fewer than two are handled; `remaining`: whether any were trained on."""
    if not remaining:
        return ""
    if algorithm.estimator.critic:
        return algorithm.estimator.equal_rewards
    parts = [algorithm.estimator.equal_rewards]
    if algorithm.kl.coef and algorithm.kl.place == "reward":
        parts = ["Their rewards are equal before the KL penalty; with it their advantages need not be 0."]
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


def _joined(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
