"""From a stage's fields to the config that its run is given, and the digest by which a run is known to be out of date.
Loads no torch."""

import hashlib
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import rfc8785

from grpo_core.config.builtin_suites import PREFIX
from grpo_core.config.kinds import AnyConfig, config_from_dict
from grpo_core.errors import ConfigError, FieldProblem
from grpo_core.pipeline.config import PipelineConfig, Stage
from grpo_core.pipeline.references import fill


def check_stages(pipeline: PipelineConfig) -> dict[str, AnyConfig]:
    """The config of every stage, with `stage:NAME` where the path of an output will be. Raises ConfigError that lists
    the faults of all stages, each with its path in the pipeline."""
    configs: dict[str, AnyConfig] = {}
    faults: list[FieldProblem] = []
    for slug in pipeline.order:
        stage = pipeline.stage(slug)
        try:
            configs[slug] = resolve(pipeline, stage, {name: f"stage:{name}" for name in pipeline.inputs[slug]})
        except ConfigError as error:
            problems = error.problems or (FieldProblem("", str(error)),)
            faults += (
                FieldProblem(f"stages.{slug}.{problem.path}".rstrip("."), problem.message, problem.code)
                for problem in problems
            )
    if faults:
        raise ConfigError.listing("this pipeline is not valid", faults)
    return configs


def resolve(pipeline: PipelineConfig, stage: Stage, paths: Mapping[str, str], *, base: Path | None = None) -> AnyConfig:
    """The complete config of a stage's run, in which each reference is the path of that stage's output. With `base`,
    the folder of the pipeline's file, relative paths to files of people are made absolute. Raises ConfigError."""
    fields = stage.fields if base is None else from_folder(stage.fields, base)
    named = {"name": f"{pipeline.name[:79]} {stage.slug}", **fill(stage.kind, fields, paths)}
    return config_from_dict({"kind": stage.kind, **named}, source=f"stage {stage.slug}")


def stage_digest(pipeline: PipelineConfig, stage: Stage, given: Mapping[str, str]) -> str:
    """SHA-256, as hex, over the stage's config without its name and the digests of what it is given, by the names of
    the stages that give it. Where outputs lie and what people call a run changes nothing of it."""
    config = resolve(pipeline, stage, {name: f"stage:{name}" for name in given}).to_dict()
    content = {"kind": stage.kind, "config": config | {"name": ""}, "given": dict(given)}
    return hashlib.sha256(rfc8785.dumps(content)).hexdigest()


def from_folder(fields: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """A copy of the fields in which relative paths to files start at `base`, and those to models too where there is
    such a folder; another model is looked for as every run does (GRPO_MODELS)."""
    moved = deepcopy(dict(fields))

    def file(part: Any, *names: str) -> None:
        if isinstance(part, dict) and part.get("hub") is None:
            for name in names:
                if isinstance(part.get(name), str) and not part[name].startswith(PREFIX):
                    part[name] = str(base / Path(part[name]).expanduser())

    def model(part: Any) -> None:
        if isinstance(part, dict) and isinstance(part.get("path"), str) and part.get("revision") is None:
            folder = base / Path(part["path"]).expanduser()
            part["path"] = str(folder) if folder.is_dir() else part["path"]

    data, evaluation = moved.get("data"), moved.get("eval")
    model(moved.get("model"))
    file(data, "path", "heldout_path", "replay_path")
    if isinstance(data, dict) and isinstance(data.get("more"), list):
        data["more"] = [str(base / entry) if isinstance(entry, str) else entry for entry in data["more"]]
    file(evaluation, "path")
    within = evaluation if isinstance(evaluation, dict) else {}
    for suite in within.get("suites") or ():
        file(suite, "path")
    for reward in (moved.get("reward"), within.get("reward")):
        for component in (reward.get("components") or ()) if isinstance(reward, dict) else ():
            if isinstance(component, dict):
                model(component.get("params"))
    return moved
