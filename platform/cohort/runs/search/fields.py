"""What a name in a search, a column or an order of the list means: the short names, every setting of a config, scores
on suites, and metrics. Declared here once: the help on the page is made of it, and the guide's table compared with it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from cohort.accounts.models import Project
from cohort.base.storable import Refused
from cohort.runs.models import Run, RunValue
from grpo_core.config.kinds import CONFIGS
from grpo_core.config.messages import inner_model

Kind = Literal["number", "text", "time", "tag", "state", "archived"]
Source = Literal["value", "metric", "column"]


class UnknownField(Refused, code="unknown_field"):
    """No field has the name. The message says so, and which ones are near."""


@dataclass(frozen=True)
class Field:
    name: str
    """As people write it."""
    kind: Kind
    source: Source
    key: str
    """Of `RunValue`, of `Run.latest_metrics`, or a path of the ORM that begins at a run."""
    words: str = ""

    @property
    def scored(self) -> bool:
        """Whether it is a share right of a suite."""
        return self.source == "value" and self.key.startswith("evaluation.")


def _setting(name: str, path: str, words: str) -> Field:
    return Field(name, _settings()[path], "value", path, words)


def _column(name: str, kind: Kind, path: str, words: str) -> Field:
    return Field(name, kind, "column", path, words)


@cache
def short_names() -> dict[str, Field]:
    """By name, in the order of the help."""
    fields = (
        _column("name", "text", "name", "the run's name"),
        _column(
            "state",
            "state",
            "state",
            "draft, queued, training, succeeded, failed …; live, stalled, again (requeued)",
        ),
        _column("tag", "tag", "tags", "a tag that the run has"),
        _column("person", "text", "created_by__username", "who made the run"),
        _column("note", "text", "note", "text of the note"),
        _column("model", "text", "base_model__name", "base model"),
        _column("dataset", "text", "dataset__name", "what it trains on, by its name"),
        _column("kind", "text", "kind", "grpo, sft, reward_model, sample or distill"),
        _column("verifier", "text", "verifier_version__verifier__name", "reward, by its name"),
        _column("sweep", "text", "sweep__name", "sweep that launched the run"),
        _column("preset", "text", "preset", "dapo, dr_grpo …"),
        _column("step", "number", "step", "newest step"),
        _column("created", "time", "created_at", "day, as 2026-11-01, or moment, as 2026-11-01T14:30 (UTC)"),
        _column("started", "time", "started_at", "when a worker first took it"),
        _column("ended", "time", "ended_at", "when it ended"),
        _column("archived", "archived", "archived_at", "yes, no or any; without it archived runs are left out"),
        Field("reward", "number", "metric", "reward", "newest mean reward"),
        _setting("G", "sampling.group_size", "completions per prompt"),
        _setting("beta", "algorithm.kl.coef", "weight of the KL penalty, β"),
        _setting("epsilon", "algorithm.clip_low", "lower clip, ε"),
        _setting("epsilon_high", "algorithm.clip_high", "upper clip"),
        _setting("lr", "optim.lr", "learning rate"),
        _setting("steps", "optim.steps", "steps planned"),
        _setting("seed", "seed", "seed"),
        _setting("loss", "algorithm.loss", "loss: clip, gspo, cispo …; its value is metric.loss"),
        Field("variant", "text", "value", "variant", "advantage/scale/std_ddof, as group/none/0"),
        _setting("prompts", "sampling.prompts_per_step", "prompts per step"),
        _setting("temperature", "sampling.temperature", "of sampling"),
        _setting("max_tokens", "sampling.max_completion_tokens", "longest completion"),
        _setting("lora", "model.lora.rank", "LoRA rank; 0: all weights"),
        _setting("engine", "engine.rollout", "sampler: local or vllm"),
    )
    return {field.name: field for field in fields}


_ALSO = {"β": "beta", "ε": "epsilon", "by": "person", "author": "person", "tags": "tag", "group_size": "G"}
"""Other spellings, which no help lists."""
_PHASES = ("before", "after")
_NEAREST = 4
_RECENT = 200
"""Newest runs whose metrics are offered where a name is not known."""
_ORDINAL = re.compile(r"\.\d+(?=\.|$)")


@dataclass
class Fields:
    """The fields of one project. What is not declared is looked up among its runs, a name at most once."""

    project: Project

    def __post_init__(self) -> None:
        self._known: dict[str, Field] = {}

    def field(self, name: str) -> Field:
        """Raises UnknownField."""
        if name not in self._known:
            self._known[name] = self._resolved(name)
        return self._known[name]

    def _resolved(self, name: str) -> Field:
        short = short_names()
        name = _ALSO.get(name, name)
        if name not in short:  # as people write it, in whatever case
            name = next((known for known in short if known.casefold() == name.casefold()), name)
        if name in short:
            return short[name]
        kind = _settings().get(_ORDINAL.sub(".0", name))
        if kind is not None:
            return Field(name, kind, "value", name)
        if name.startswith("eval."):
            return self._score(name)
        metric = name.removeprefix("metric.")
        if Run.objects.filter(project=self.project, latest_metrics__has_key=metric).exists():
            return Field(name, "number", "metric", metric)
        parameter = RunValue.objects.filter(project=self.project, key=name)
        if (row := parameter.values_list("number", flat=True).first()) is not None or parameter.exists():
            return Field(name, "text" if row is None else "number", "value", name)
        raise self._unknown(name)

    def _score(self, name: str) -> Field:
        """eval.<suite>, eval.<suite>.before, eval.<suite>.after."""
        suite, _, phase = name.removeprefix("eval.").rpartition(".")
        if phase in _PHASES and suite:
            key, called = f"evaluation.{phase}.{suite}", f"{suite} {phase} training"
        else:
            suite = name.removeprefix("eval.")
            key, called = f"evaluation.newest.{suite}", suite
        if suite != "heldout" and not RunValue.objects.filter(project=self.project, key=key).exists():
            raise self._unknown(name)
        return Field(name, "number", "value", key, f"share right of {called}")

    def _unknown(self, name: str) -> UnknownField:
        near = get_close_matches(name, self.names(), n=_NEAREST, cutoff=0.5)
        offered = f"Near it: {', '.join(near)}." if near else "The list of fields is under the search."
        return UnknownField(f"No field, metric or suite of this project is called {name}. {offered}")

    def names(self) -> list[str]:
        """All that are known, those of suites and metrics from the newest runs."""
        newest = Run.objects.filter(project=self.project).order_by("-pk")[:_RECENT]
        reported: set[str] = set()
        for metrics in newest.values_list("latest_metrics", flat=True):
            reported.update(metrics)
        return [*short_names(), *self.scores(), *sorted(reported), *_settings()]

    def scores(self) -> list[str]:
        """eval.<suite> of each suite that a run of the project was evaluated on."""
        keys = RunValue.objects.filter(project=self.project, key__startswith="evaluation.newest.")
        suites = keys.order_by("key").values_list("key", flat=True).distinct()
        return [key.replace("evaluation.newest.", "eval.", 1) for key in suites]


@cache
def _settings() -> dict[str, Kind]:
    """Path → kind of every setting of a config of any kind of run that holds one value; in lists, of the first
    entry."""
    return {path: kind for config in CONFIGS.values() for path, kind in _leaves(config, "")}


def _leaves(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, Kind]]:
    for name, field in model.model_fields.items():
        inner = inner_model(field.annotation)
        if inner is not None:
            listed = get_origin(field.annotation) is tuple
            yield from _leaves(inner, f"{prefix}{name}.0." if listed else f"{prefix}{name}.")
        elif (kind := _kind(field.annotation)) is not None:
            yield f"{prefix}{name}", kind


def _kind(annotation: Any) -> Kind | None:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kind(get_args(annotation)[0])
    if origin in (Union, UnionType):
        kinds = {_kind(part) for part in get_args(annotation) if part is not type(None)}
        return kinds.pop() if len(kinds) == 1 else None
    if origin is Literal:
        return "number" if all(type(value) in (int, float) for value in get_args(annotation)) else "text"
    if annotation in (int, float):
        return "number"
    return "text" if annotation in (str, bool) else None
