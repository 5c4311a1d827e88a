"""Operations of a run as far as it has run, by its architecture and by hardware time. Reads alone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Avg, FloatField
from django.db.models.fields.json import KT
from django.db.models.functions import Cast

from cohort.evidence.canonical import dig
from cohort.runs.models import EvalResult, Run
from cohort.runs.transitions import current_steps
from grpo_core.compute.flop import Flop, Work, learned_share, training_flop
from grpo_core.compute.hardware import Hardware, dtype_of, hardware
from grpo_core.compute.shape import Shape
from grpo_core.config.kinds import AnyConfig


@dataclass(frozen=True)
class RunCompute:
    shape: Shape
    work: Work
    flop: Flop
    hardware: Hardware


def run_compute(
    config: AnyConfig,
    manifest: Mapping[str, Any] | None,
    *,
    tokens: float,
    sums: Mapping[str, float],
    evaluated: float,
    device_seconds: float,
    utilisation: float | None,
    measured: float | None,
) -> RunCompute | None:
    """None where the trainer did not describe its model. `tokens`: of all steps, superseded ones too; `sums`: of the
    current steps, as an outcome's totals; `evaluated`: tokens of evaluations; `utilisation`: mean share of the time in
    which the device was busy; `measured`: rate of products that a calibration reached on the device."""
    parameters = dig(manifest, "model", "parameters")
    if not parameters:
        return None
    shape = Shape.read(dig(manifest, "model", "shape")) or Shape(parameters=int(parameters))
    scale = tokens / sums["tokens"] if sums.get("tokens") else 0.0
    work = Work(
        tokens=tokens,
        completion_tokens=sums["completion_tokens"] * scale if scale and "completion_tokens" in sums else None,
        completions=sums["samples"] * scale if scale and "samples" in sums else None,
        learned_share=learned_share(config, sums),
        evaluated_tokens=evaluated,
    )
    device = str(dig(manifest, "platform", "device") or "a device not reported")
    used = hardware(
        device, device_seconds=device_seconds, dtype=dtype_of(config), utilisation=utilisation, measured=measured
    )
    return RunCompute(shape, work, training_flop(config, shape, work), used)


def evaluated_tokens(results: Iterable[EvalResult], manifest: Mapping[str, Any] | None) -> float:
    """Tokens that went through the model in these evaluations, as far as prompts' lengths were reported."""
    total = 0.0
    for result in results:
        sampled = result.problems * int(result.protocol.get("samples_per_problem") or 1)
        facts = dig(manifest, "data", "suites", result.suite) or dig(manifest, "data", "eval")
        total += sampled * (float(result.mean_tokens) + float(dig(facts, "prompt_tokens", "mean") or 0.0))
    return total


def mean_utilisation(run: Run) -> float | None:
    """Of the current steps; None where no device reported it."""
    share = Cast(KT("metrics__device_utilisation"), FloatField())
    mean: float | None = current_steps(run).order_by().aggregate(mean=Avg(share))["mean"]
    return mean
