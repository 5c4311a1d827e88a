"""The section about the method: loss, normalization, clipping, KL, sampling, optimiser."""

from cohort.records.answers import count, declared, number, short
from cohort.records.facts import Facts
from cohort.records.fields import Method
from cohort.records.schema_types import Answer
from cohort.records.sections import method_text
from cohort.records.sections.by_kind import absent_section
from cohort.records.sections.from_statements import stated_or_asked
from grpo_core.advantages.settings import AdvantageSettings
from grpo_core.config.kinds import AnyConfig, LearningConfig, ScoredConfig
from grpo_core.config.preset_differences import diff
from grpo_core.config.presets import PRESETS
from grpo_core.config.reward_model import RewardModelConfig
from grpo_core.config.run import RunConfig
from grpo_core.config.sft import SftConfig

_LOSS_FIELDS = {
    "aggregation",
    "aggregation_constant",
    "local_batch",
    "denominator",
    "inner_iterations",
    "mini_batches",
    "entropy_coef",
    "top_entropy_share",
    "off_policy_threshold",
}


def method(facts: Facts) -> Method:
    config = facts.config
    if isinstance(config, RunConfig):
        own = _policy_gradient(config)
    else:
        own = dict(absent_section(config.kind, Method))
        if isinstance(config, SftConfig):
            own["loss"] = declared({"loss": "cross_entropy"}, method_text.given_answers_loss(config))
        elif isinstance(config, RewardModelConfig):
            value = {"loss": config.objective, "center": config.center}
            own["loss"] = declared(value, method_text.preference_loss(config))
    if isinstance(config, ScoredConfig):
        own |= _sampled(config)
    if isinstance(config, LearningConfig):
        model = {"lora": config.model.lora.model_dump(), "quantization": config.model.quantization}
        own["optimiser"] = declared({**config.optim.model_dump(), **model}, method_text.optimiser(config))
    return Method(
        **own,
        preset=_preset(config),
        config=declared(
            {"sha256": facts.run.config_digest},
            f"config.yaml; {short(facts.run.config_digest)}",
            evidence="recomputable",
            note="The digest is of the config's canonical JSON.",
        ),
        rationale=stated_or_asked(facts.statements, "method.rationale"),
    )


def _policy_gradient(config: RunConfig) -> dict[str, Answer]:
    """What GRPO alone has."""
    algorithm = config.algorithm
    bounds = {"loss", "clip_low", "clip_high", "clip_delta", *algorithm.loss_spec.settings}
    estimator = {*AdvantageSettings.model_fields} - {"critic"}
    critic = {"critic"} if algorithm.estimator.critic else set()
    return {
        "loss": declared(
            {"loss": algorithm.loss, **algorithm.model_dump(mode="json", include=_LOSS_FIELDS | critic)},
            method_text.loss(algorithm),
        ),
        "normalization": declared(
            algorithm.model_dump(mode="json", include=estimator | critic),
            method_text.normalization(algorithm),
        ),
        "clipping": declared(
            algorithm.model_dump(mode="json", include=bounds),
            method_text.clipping(algorithm),
            note=method_text.clipping_note(algorithm),
        ),
        "kl": declared(
            algorithm.kl.model_dump() | {"reference": algorithm.reference.model_dump()}, method_text.kl(config)
        ),
    }


def _sampled(config: ScoredConfig) -> dict[str, Answer]:
    sampling = config.sampling
    controls = method_text.sampling_controls(config.algorithm) if isinstance(config, RunConfig) else []
    of_learning = config.algorithm.model_dump(include={"dynamic_sampling", "overlong", "correction"})
    return {
        "group_size": declared(sampling.group_size, f"{sampling.group_size} completions a problem"),
        "sampling": declared(
            {**sampling.model_dump(mode="json"), **(of_learning if isinstance(config, RunConfig) else {})},
            "; ".join(
                [
                    f"temperature {number(sampling.temperature)}, top-p {number(sampling.top_p)}, "
                    f"top-k {sampling.top_k or 'off'}, at most {count(sampling.max_completion_tokens)} tokens",
                    *controls,
                ]
            ),
        ),
    }


def _preset(config: AnyConfig) -> Answer:
    name = config.preset if isinstance(config, LearningConfig) else None
    if name is None or not isinstance(config, LearningConfig):
        return declared(None, "none")
    differences = diff(config)
    listed = ", ".join(map(str, differences))
    value = {
        "preset": name,
        "differences": [
            {"path": difference.path, "preset": difference.paper, "run": difference.yours} for difference in differences
        ],
    }
    return declared(value, f"{name} ({PRESETS[name].paper}): {listed or 'no differences'}", note=PRESETS[name].citation)
