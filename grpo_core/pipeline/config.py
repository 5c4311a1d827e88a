"""A pipeline as YAML: stages by name, each with its kind and the fields of that kind's config, and references between
them (`references`). Every fault is named with its path and the fix. Loads no torch.

What is checked here holds wherever a pipeline runs. Whether each stage's own fields are valid, `stages` checks for the
command; the platform, where names of rows stand in place of paths, checks them with its own forms.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self, get_args

from pydantic import Field, JsonValue

from grpo_core.config.messages import validated
from grpo_core.config.stage import Kind, RunName, config_text, yaml_content
from grpo_core.config.yaml_text import dump_yaml
from grpo_core.errors import ConfigError, FieldProblem
from grpo_core.pipeline.references import GIVES, OUTPUT_WORDS, Output, Reference, excluded_by, references
from grpo_core.specs.fields import Part

Slug = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$", max_length=40)]
"""Short name of a stage; also of its folder."""
MAX_STAGES = 100


class Stage(NamedTuple):
    slug: str
    kind: Kind
    fields: Mapping[str, Any]
    """As given, without `kind`."""

    @property
    def references(self) -> list[Reference]:
        return references(self.kind, self.fields)

    @property
    def gives(self) -> Output:
        return GIVES[self.kind]


class PipelineConfig(Part):
    """Of one pipeline."""

    name: RunName
    """What people call the pipeline."""
    stages: Annotated[dict[Slug, dict[str, JsonValue]], Field(max_length=MAX_STAGES)]
    """The stages by their names, in any order: which follows which, their references say."""

    @classmethod
    def from_dict(cls, data: Any, *, source: str = "pipeline") -> Self:
        """Check shape, kinds and references; raise ConfigError listing every fault with its path."""
        what = f"{source} is not a valid pipeline"
        if not isinstance(data, dict):
            raise ConfigError(f"{source}: a pipeline has a name and stages; this is {_content(data)}")
        config = validated(cls, data, what)
        if faults := list(config._faults()):
            raise ConfigError.listing(what, faults)
        return config

    @classmethod
    def from_text(cls, text: str, *, source: str = "pipeline") -> Self:
        return cls.from_dict(yaml_content(text, source), source=source)

    @classmethod
    def from_file(cls, path: Path) -> Self:
        return cls.from_text(config_text(path), source=str(path))

    def to_yaml(self) -> str:
        return dump_yaml(self.model_dump(mode="json"))

    # ------------------------------------------------------------------ the graph

    def stage(self, slug: str) -> Stage:
        """Raises ConfigError for a name that no stage has."""
        if slug not in self.stages:
            raise ConfigError(f"there is no stage {slug!r}; there are {', '.join(self.stages)}")
        fields = self.stages[slug]
        kind: Any = fields.get("kind", "grpo")
        return Stage(slug, kind, {name: value for name, value in fields.items() if name != "kind"})

    @cached_property
    def inputs(self) -> dict[str, tuple[str, ...]]:
        """Of each stage those that it names, each once."""
        return {
            slug: tuple(dict.fromkeys(reference.stage for reference in self.stage(slug).references))
            for slug in self.stages
        }

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Each stage after its inputs; of those that might come next, the one given first."""
        done: list[str] = []
        while len(done) < len(self.stages):
            done.append(next(slug for slug in self.stages if slug not in done and set(self.inputs[slug]) <= set(done)))
        return tuple(done)

    def below(self, slug: str) -> tuple[str, ...]:
        """The stage and all that hang on it, in order."""
        reached = {slug}
        for other in self.order:
            if reached & set(self.inputs[other]):
                reached.add(other)
        return tuple(other for other in self.order if other in reached)

    # ------------------------------------------------------------------ faults

    def _faults(self) -> Iterator[FieldProblem]:
        if not self.stages:
            yield FieldProblem("stages", "is empty: a pipeline needs a stage", "no_stages")
        for slug, fields in self.stages.items():
            if (kind := fields.get("kind", "grpo")) not in GIVES:
                message = f"{kind!r} is not one of {', '.join(get_args(Kind))}"
                yield FieldProblem(f"stages.{slug}.kind", message, "not_a_choice")
        known = [self.stage(slug) for slug, fields in self.stages.items() if fields.get("kind", "grpo") in GIVES]
        for stage in known:
            yield from _ill_formed(stage)
            for reference in stage.references:
                yield from self._misplaced(stage, reference)
        if len(known) == len(self.stages) and (cycle := self._cycle()):
            way = " → ".join(cycle)
            yield FieldProblem(
                f"stages.{cycle[-1]}",
                f"the stages go in a circle: {way}. Each would wait for the other; let one of them name another stage, "
                "or a path",
                "cycle",
            )
        yield from self._same_datasets()

    def _misplaced(self, stage: Stage, reference: Reference) -> Iterator[FieldProblem]:
        path = f"stages.{stage.slug}.{reference.path}"
        if others := excluded_by(stage.fields, reference):
            message = f"is given together with {', '.join(others)}: name a stage, or say where else it is, not both"
            yield FieldProblem(path, message, "stage_and_path")
        if reference.stage == stage.slug:
            yield FieldProblem(
                path,
                "the stage names itself, and would wait for its own end; name an earlier stage, or a path",
                "itself",
            )
            return
        if reference.stage not in self.stages:
            there = ", ".join(slug for slug in self.stages if slug != stage.slug) or "no other"
            yield FieldProblem(path, f"there is no stage {reference.stage!r}; there are {there}", "unknown_stage")
            return
        if self.stages[reference.stage].get("kind", "grpo") not in GIVES:
            return
        source = self.stage(reference.stage)
        if source.gives not in reference.takes:
            due = " or ".join(OUTPUT_WORDS[output] for output in reference.takes)
            kinds = ", ".join(kind for kind, gives in GIVES.items() if gives in reference.takes)
            yield FieldProblem(
                path,
                f"{source.slug} is of kind {source.kind} and gives {OUTPUT_WORDS[source.gives]}, where {due} is due: "
                f"name a stage of kind {kinds}",
                "wrong_output",
            )
        elif source.gives == "dataset":
            yield from _other_rows(path, stage, source)
        elif _switched_off(source):
            yield FieldProblem(
                path, f"{source.slug} keeps no weights at its end: leave its checkpoints.final on", "no_weights"
            )

    def _cycle(self) -> list[str]:
        """Names of the stages of one circle, the first again at its end; none where there is none."""
        graph = {
            slug: [name for name in names if name in self.stages and name != slug]
            for slug, names in self.inputs.items()
        }
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            return list(error.args[1])
        return []

    def _same_datasets(self) -> Iterator[FieldProblem]:
        first: dict[str, str] = {}
        for slug, fields in self.stages.items():
            name = fields.get("name")
            if fields.get("kind") != "sample" or not isinstance(name, str):
                continue
            if name in first:
                yield FieldProblem(
                    f"stages.{slug}.name",
                    f"{first[name]} writes the dataset {name!r} too; give each its own name, or leave it out",
                    "dataset_written_twice",
                )
            first.setdefault(name, slug)


def _ill_formed(stage: Stage) -> Iterator[FieldProblem]:
    """A `stage` that is no name, where a reference may stand."""
    model, data = stage.fields.get("model"), stage.fields.get("data")
    for part, content in (("model", model), ("data", data)):
        for name in ("stage", "heldout_stage", "replay_stage"):
            if isinstance(content, Mapping) and name in content and not isinstance(content[name], str):
                yield FieldProblem(f"stages.{stage.slug}.{part}.{name}", "must be the name of a stage", "string_type")
    if stage.kind in ("grpo", "sample") and isinstance(data, Mapping) and isinstance(data.get("stage"), str):
        yield FieldProblem(
            f"stages.{stage.slug}.data.stage",
            f"a stage of kind {stage.kind} takes problems, which no stage gives: give data.path",
            "no_problems",
        )


def _other_rows(path: str, stage: Stage, source: Stage) -> Iterator[FieldProblem]:
    """The rows that the source samples are not those that the stage learns from."""
    rows = source.fields.get("rows", "conversations")
    if stage.kind in ("sft", "distill"):
        due = "conversations"
    elif stage.kind == "reward_model":
        due = "scores" if stage.fields.get("objective") == "regression" else "pairs"
    else:
        return  # refused whatever they are
    if rows != due:
        yield FieldProblem(
            path, f"{source.slug} gives {rows}, and {stage.slug} learns from {due}: set rows: {due} there", "wrong_rows"
        )


def _switched_off(source: Stage) -> bool:
    checkpoints = source.fields.get("checkpoints")
    return isinstance(checkpoints, Mapping) and checkpoints.get("final") is False


def _content(data: Any) -> str:
    return "a list" if isinstance(data, list) else "empty" if data is None else "a single value"
