"""`grpo estimate`: what a run will cost, from a short calibration. Imports what is heavy only when it runs."""

import argparse
import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_core.cli.eval import write
from grpo_core.runtime.signals import Stop
from grpo_core.text import format_bytes, format_duration

if TYPE_CHECKING:
    from grpo_core.config.run import RunConfig
    from grpo_core.records.estimate import Estimate


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand `estimate`."""
    parser = commands.add_parser(
        "estimate",
        help="measure a little and say what a run will cost",
        description="Sample, score and learn from a few problems, without changing weights, and say what the run will "
        "cost in time and memory.",
    )
    parser.add_argument("config", type=Path, metavar="CONFIG", help="YAML or JSON file")
    parser.add_argument("--json", action="store_true", help="print the estimate as JSON")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write it there, for grpo train --estimate")
    parser.set_defaults(handler=_estimate)


def _estimate(options: argparse.Namespace) -> int:
    import sys

    from grpo_core.config.kinds import config_from_file
    from grpo_core.config.run import RunConfig
    from grpo_core.errors import ConfigError, DataError
    from grpo_core.runtime.progress import Progress

    config = config_from_file(options.config)
    if not isinstance(config, RunConfig):
        raise ConfigError(
            f"{options.config}: runs of kind {config.kind} cannot be estimated, only those of kind grpo; a run of one "
            "step (optim.steps: 1) shows its time and memory"
        )
    with Stop() as stop, closing(Progress(out=sys.stderr)) as progress:
        from grpo_core.estimate.calibrate import estimate

        base = options.config.resolve().parent
        estimated = estimate(config, base=base, progress=progress, check=stop.raise_if_requested)
    text = json.dumps(estimated.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"
    if options.out is not None:
        write(options.out, text, error_class=DataError)
    print(text if options.json else table(estimated, config), end="")
    return 0


def read_estimate(path: Path) -> "Estimate":
    """What `--out` wrote. Raises ConfigError."""
    from pydantic import ValidationError

    from grpo_core.errors import ConfigError
    from grpo_core.records.estimate import Estimate

    try:
        return Estimate.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read the estimate {path}: {error.strerror}") from None
    except ValidationError:
        raise ConfigError(f"{path} is no estimate; `grpo estimate CONFIG --out {path}` makes one") from None


def table(estimate: "Estimate", config: "RunConfig") -> str:
    """For a person."""
    from grpo_core.files.token_size import size_text, token_size

    low, high = estimate.spread["seconds_per_step"]
    _, most = estimate.spread["peak_memory_bytes"]
    lines = [
        f"{'phase':<12} {'s a step':>10}",
        *(f"{name:<12} {seconds:>10.2f}" for name, seconds in estimate.parts.items()),
        f"{'step':<12} {estimate.seconds_per_step:>10.2f}   between {low:.2f} and {high:.2f}",
        "",
        f"whole run    {format_duration(estimate.seconds_total)} ({config.optim.steps} steps, start and evaluations)",
        f"memory       {format_bytes(estimate.peak_memory_bytes)}, at most about {format_bytes(most)} "
        f"({'resident' if estimate.device == 'cpu' else estimate.device_name})",
        f"arrays       {size_text(token_size(config))}",
        f"measured     {estimate.prompts} problems in {format_duration(estimate.calibration_seconds)}; completions of "
        f"{estimate.completion_tokens:.0f} tokens on average"
        + (", all at the limit" if estimate.length_from == "limit" else ""),
        *_compute(estimate, config),
        *(f"note         {words}" for words in estimate.warnings),
    ]
    return "\n".join(lines) + "\n"


def _compute(estimate: "Estimate", config: "RunConfig") -> list[str]:
    """Operations by both methods, and how far from the guidelines' indications."""
    from grpo_core.compute.base_models import published
    from grpo_core.compute.flop import training_flop
    from grpo_core.compute.hardware import dtype_of, hardware
    from grpo_core.compute.thresholds import GUIDELINES, thresholds
    from grpo_core.compute.words import (
        architecture_lines,
        difference_text,
        format_flop,
        hardware_text,
        threshold_text,
    )

    if estimate.shape is None or estimate.work is None:
        return []
    flop = training_flop(config, estimate.shape, estimate.work)
    used = hardware(
        estimate.device_name,
        device_seconds=estimate.seconds_total * config.engine.devices * config.engine.nodes,
        dtype=dtype_of(config),
        measured=estimate.product_rate,
    )
    row = published(config.model.path) if config.model.revision else None
    rows = thresholds(flop.total, original=row.flop if row else None)
    return [
        "",
        f"compute      about {format_flop(flop.total)} by architecture",
        *(f"             - {line}" for line in architecture_lines(flop, estimate.shape, estimate.work)),
        f"hardware     {hardware_text(used)}",
        f"             {difference_text(flop, used)}",
        f"guidelines   {GUIDELINES}; an indication is no judgement",
        *(f"             - {threshold_text(row)}" for row in rows),
        "",
    ]
