"""The section about the method: loss, normalization, clipping, KL, sampling, optimiser."""

from cohort.records.answers import count, declared, number, short
from cohort.records.facts import Facts
from cohort.records.fields import Method
from cohort.records.schema_types import Answer
from cohort.records.sections import method_text
from cohort.records.sections.from_statements import stated_or_asked
from grpo_core.advantages.settings import AdvantageSettings
from grpo_core.config.preset_differences import diff
from grpo_core.config.presets import PRESETS

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
    algorithm, sampling, optim = config.algorithm, config.sampling, config.optim
    bounds = {"loss", "clip_low", "clip_high", "clip_delta", *algorithm.loss_spec.settings}
    estimator = {*AdvantageSettings.model_fields} - {"critic"}
    critic = {"critic"} if algorithm.estimator.critic else set()
    controls = method_text.sampling_controls(algorithm)
    trained = method_text.adapters(config)
    return Method(
        loss=declared(
            {"loss": algorithm.loss, **algorithm.model_dump(mode="json", include=_LOSS_FIELDS | critic)},
            method_text.loss(algorithm),
        ),
        normalization=declared(
            algorithm.model_dump(mode="json", include=estimator | critic),
            method_text.normalization(algorithm),
        ),
        clipping=declared(
            algorithm.model_dump(mode="json", include=bounds),
            method_text.clipping(algorithm),
            note=method_text.clipping_note(algorithm),
        ),
        kl=declared(
            algorithm.kl.model_dump() | {"reference": algorithm.reference.model_dump()}, method_text.kl(config)
        ),
        group_size=declared(sampling.group_size, f"{sampling.group_size} completions a problem"),
        sampling=declared(
            {
                **sampling.model_dump(mode="json"),
                **algorithm.model_dump(include={"dynamic_sampling", "overlong", "correction"}),
            },
            "; ".join(
                [
                    f"temperature {number(sampling.temperature)}, top-p {number(sampling.top_p)}, "
                    f"top-k {sampling.top_k or 'off'}, at most {count(sampling.max_completion_tokens)} tokens",
                    *controls,
                ]
            ),
        ),
        optimiser=declared(
            {**optim.model_dump(), "lora": config.model.lora.model_dump(), "quantization": config.model.quantization},
            method_text.optimiser(config) + (f"; {trained}" if trained else ""),
        ),
        preset=_preset(facts),
        config=declared(
            {"sha256": facts.run.config_digest},
            f"config.yaml; {short(facts.run.config_digest)}",
            evidence="recomputable",
            note="The digest is of the config's canonical JSON.",
        ),
        rationale=stated_or_asked(facts.statements, "method.rationale"),
    )


def _preset(facts: Facts) -> Answer:
    name = facts.config.preset
    if name is None:
        return declared(None, "none")
    differences = diff(facts.config)
    listed = ", ".join(map(str, differences))
    value = {
        "preset": name,
        "differences": [
            {"path": difference.path, "preset": difference.paper, "run": difference.yours} for difference in differences
        ],
    }
    return declared(value, f"{name} ({PRESETS[name].paper}): {listed or 'no differences'}", note=PRESETS[name].citation)
