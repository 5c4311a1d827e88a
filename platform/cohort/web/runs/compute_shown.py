"""Operations as pages show them: before a launch from its config, and of a run from what it reported, by both methods
with their reasoning, next to the guidelines' indications."""

from dataclasses import dataclass, replace

from cohort.catalog.models import BaseModel
from cohort.catalog.pretraining import Original, origin_of, original_of, published_row
from cohort.runs.compute import RunCompute, evaluated_tokens, mean_utilisation, run_compute
from cohort.runs.models import Run
from grpo_core.compute.flop import Flop, Work, training_flop
from grpo_core.compute.hardware import Hardware, dtype_of, hardware
from grpo_core.compute.shape import Shape
from grpo_core.compute.thresholds import GUIDELINES, READ, thresholds
from grpo_core.compute.words import (
    architecture_lines,
    difference_text,
    format_flop,
    hardware_text,
    indications_text,
    threshold_text,
)
from grpo_core.config.kinds import AnyConfig
from grpo_core.config.run import RunConfig
from grpo_core.records.estimate import Estimate


@dataclass(frozen=True)
class ComputeShown:
    title: str
    """`about 1.2 × 10¹⁵ FLOP`."""
    basis: str
    """What it rests on."""
    lines: list[str]
    hardware: str
    difference: str
    indications: str
    thresholds: list[str]
    original: str
    guidelines: str = f"{GUIDELINES}, as read on {READ}"


def _shown(
    flop: Flop, shape: Shape, work: Work, used: Hardware, original: Original | None, *, title: str, basis: str
) -> ComputeShown:
    rows = thresholds(flop.total, original=original.flop if original else None)
    return ComputeShown(
        title=f"{title} {format_flop(flop.total)}",
        basis=basis,
        lines=architecture_lines(flop, shape, work),
        hardware=hardware_text(used),
        difference=difference_text(flop, used),
        indications=indications_text(rows),
        thresholds=[threshold_text(row) for row in rows],
        original=original.words if original else "",
    )


def compute_before(config: RunConfig, model: BaseModel, estimate: Estimate | None) -> ComputeShown | None:
    """What a launch would take: by a worker's estimate of this config, else at most, as if every prompt and completion
    were as long as the limits let it be. None where the model's size is not known."""
    original = original_of(origin_of(model))
    seconds = 0.0
    if estimate is not None and estimate.shape is not None and estimate.work is not None:
        shape, work, title = estimate.shape, estimate.work, "about"
        basis = "by architecture, with lengths as a worker measured them of these settings"
        seconds = estimate.seconds_total * config.engine.devices * config.engine.nodes
    else:
        known = _known_shape(model)
        if known is None:
            return None
        shape, work, title = known, _at_most(config), "at most"
        basis = "by architecture, were every prompt and completion as long as the limits let it be"
    flop = training_flop(config, shape, work)
    device = estimate.device_name if estimate is not None else "a device not chosen yet"
    rate = estimate.product_rate if estimate is not None else None
    used = hardware(device, device_seconds=seconds, dtype=dtype_of(config), measured=rate)
    shown = _shown(flop, shape, work, used, original, title=title, basis=basis)
    return shown if seconds else replace(shown, hardware="not known yet: it takes an estimate of time and memory")


def _known_shape(model: BaseModel) -> Shape | None:
    """From its folder; of a Hub repository the number of parameters that its makers published."""
    if (shape := Shape.read(model.shape)) is not None:
        return shape
    row = published_row(model)
    parameters = model.parameters if model.adapter is None and model.parameters else row.parameters if row else None
    return Shape(parameters=int(parameters)) if parameters else None


def _at_most(config: RunConfig) -> Work:
    dynamic = config.algorithm.dynamic_sampling
    batches = dynamic.max_batches if dynamic.enabled else 1
    completions = config.optim.steps * config.completions_per_step * batches
    longest = config.sampling.max_completion_tokens
    return Work(
        tokens=completions * (config.data.max_prompt_tokens + longest),
        completion_tokens=completions * longest,
        completions=completions,
        learned_share=1 / batches,
    )


def compute_so_far(run: Run, config: AnyConfig) -> ComputeShown | None:
    """What the current steps of the run took. None before the trainer described its model and ended a step."""
    attempts = list(run.attempts.order_by("-fence"))
    manifest = next((attempt.manifest for attempt in attempts if attempt.manifest is not None), None)
    outcome = next((attempt.outcome for attempt in attempts if attempt.outcome), None) or {}
    sums = outcome.get("totals") or {}
    tokens = float(run.latest_metrics.get("num_tokens") or sums.get("tokens") or 0.0)
    if manifest is None or not tokens or run.base_model is None:
        return None
    held = 0.0
    for attempt in attempts:
        if attempt.ended_at is not None:
            held += (attempt.ended_at - attempt.claimed_at).total_seconds() * max(1, attempt.gpus)
    estimate = run.launch_estimates.values_list("estimate", flat=True).first() or {}
    counted: RunCompute | None = run_compute(
        config,
        manifest,
        tokens=tokens,
        sums=sums if sums.get("tokens") else {},
        evaluated=evaluated_tokens(run.eval_results.all(), manifest),
        device_seconds=held,
        utilisation=mean_utilisation(run),
        measured=estimate.get("product_rate"),
    )
    if counted is None:
        return None
    basis = "by architecture, of the current steps; the record adds superseded steps and earlier runs of the lineage"
    original = original_of(origin_of(run.base_model))
    return _shown(counted.flop, counted.shape, counted.work, counted.hardware, original, title="about", basis=basis)
