"""Where a stage's fields name another stage, and what each place takes. Loads no torch.

`stage: NAME` stands where `path` would: of a model, of data, of a reward model's parameters. `heldout_stage` and
`replay_stage` stand for `heldout_path` and `replay_path`; in `data.more` an entry is `{stage: NAME}`.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

from grpo_core.config.stage import Kind

Output = Literal["weights", "reward_model", "dataset"]
GIVES: Mapping[Kind, Output] = {
    "grpo": "weights",
    "sft": "weights",
    "distill": "weights",
    "reward_model": "reward_model",
    "sample": "dataset",
}
"""What a finished run of each kind leaves for later stages."""
OUTPUT_WORDS: Mapping[Output, str] = {"weights": "weights", "reward_model": "a reward model", "dataset": "a dataset"}
Location = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Reference:
    """One place in a stage's fields that names another stage."""

    location: Location
    """Of the name, below the stage's fields."""
    stage: str
    takes: tuple[Output, ...]
    """What the named stage may give here."""
    fills: Location
    """Field that the path of the output goes to."""

    @property
    def path(self) -> str:
        return ".".join(map(str, self.location))


def references(kind: Kind, fields: Mapping[str, Any]) -> list[Reference]:
    """Every reference of a stage, in the order of its parts. A part of another shape is for the check to report."""
    return list(_references(kind, fields))


def _references(kind: Kind, fields: Mapping[str, Any]) -> Iterator[Reference]:
    weights: tuple[Output, ...] = ("weights", "reward_model") if kind == "reward_model" else ("weights",)
    yield from _named(fields, ("model",), "stage", "path", weights)
    for name in ("stage", "heldout_stage", "replay_stage"):
        yield from _named(fields, ("data",), name, name.replace("stage", "path"), ("dataset",))
    more = _at(fields, ("data", "more"))
    for index, entry in enumerate(more if isinstance(more, (list, tuple)) else ()):
        if isinstance(entry, Mapping) and isinstance(entry.get("stage"), str):
            location: Location = ("data", "more", index)
            yield Reference((*location, "stage"), entry["stage"], ("dataset",), location)
    for reward in (("reward",), ("eval", "reward")):
        components = _at(fields, (*reward, "components"))
        for index, _ in enumerate(components if isinstance(components, (list, tuple)) else ()):
            where = (*reward, "components", index, "params")
            yield from _named(fields, where, "stage", "path", ("reward_model",))


def _named(fields: Any, part: Location, name: str, fills: str, takes: tuple[Output, ...]) -> Iterator[Reference]:
    value = _at(fields, (*part, name))
    if isinstance(value, str):
        yield Reference((*part, name), value, takes, (*part, fills))


def _at(fields: Any, location: Location) -> Any:
    """The value there; None where there is none."""
    for piece in location:
        if isinstance(fields, Mapping):
            fields = fields.get(piece)
        elif isinstance(fields, (list, tuple)) and isinstance(piece, int) and piece < len(fields):
            fields = fields[piece]
        else:
            return None
    return fields


def excluded_by(fields: Mapping[str, Any], reference: Reference) -> list[str]:
    """Fields next to a reference that say where the same thing is in another way, and so exclude it."""
    part = _at(fields, reference.location[:-1])
    others = (str(reference.fills[-1]), "hub", "revision")
    return [name for name in others if isinstance(part, Mapping) and part.get(name) is not None]


def fill(kind: Kind, fields: Mapping[str, Any], paths: Mapping[str, str]) -> dict[str, Any]:
    """A copy of the fields in which each reference is the path of that stage's output."""
    filled = deepcopy(dict(fields))
    for reference in references(kind, fields):
        path = paths[reference.stage]
        *parents, leaf = reference.fills
        part = _at(filled, tuple(parents))
        part[leaf] = path
        if reference.location[:-1] == tuple(parents):
            del part[reference.location[-1]]
    return filled
