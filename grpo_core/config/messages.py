"""Pydantic's errors, reworded for people who write configs. Loads no torch."""

import json
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from grpo_core.errors import ConfigError, FieldProblem

M = TypeVar("M", bound=BaseModel)


def validated(model: type[M], content: Any, what: str, *, prefix: str = "") -> M:
    """The content as a model. Raises ConfigError that begins with `what` and lists every fault."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise ConfigError.listing(what, field_problems(error, model=model, prefix=prefix)) from None


def field_problems(error: ValidationError, *, model: type[BaseModel], prefix: str = "") -> tuple[FieldProblem, ...]:
    """Pydantic's errors, reworded: dotted path, what is wrong, what is allowed.

    `model` is the one that was checked, `prefix` its path in the whole config.
    """
    problems = []
    faults = error.errors()
    for fault in faults:
        if fault["type"] == "too_short" and any(_beneath(other["loc"], fault["loc"]) for other in faults):
            continue  # pydantic counts only the items without faults
        context, code, given = fault.get("ctx", {}), fault["type"], fault["input"]
        field = getattr(context.get("error"), "field", "")
        path = ".".join(filter(None, [prefix, *map(str, fault["loc"]), field]))
        match fault["type"]:
            case "extra_forbidden":
                parent = model_at(model, fault["loc"][:-1])
                allowed = f"; allowed here: {', '.join(parent.model_fields)}" if parent else ""
                code, message = "unknown_field", f"unknown field{allowed}"
            case "missing":
                message = "is needed and not given"
            case "literal_error":
                code = "not_a_choice"
                message = f"{_shown(given)} is not one of {context['expected']}{_meant(path, given)}"
            case "value_error":
                code, message = getattr(context["error"], "code", code), str(context["error"])
            case _ if given is None or given == "":
                message = "must not be empty"
            case _:
                words = _WORDS.get(code.partition("_")[0]) or _WORDS.get(code)
                takes_value = "{" in (words or "").replace("{{", "")
                if takes_value and any(isinstance(value, str) for value in context.values()):  # a limit that is a date
                    words = None
                message = f"{words.format(**context) if words else fault['msg']}; given {_shown(given)}"
        problems.append(FieldProblem(path, message, code))
    return tuple(problems)


_WORDS = {
    "greater_than_equal": "must be {ge:,.15g} or more",
    "greater_than": "must be more than {gt:,.15g}",
    "less_than_equal": "must be at most {le:,.15g}",
    "less_than": "must be less than {lt:,.15g}",
    "int": "must be a whole number",
    "float": "must be a number",
    "finite": "must be a finite number",
    "bool": "must be yes or no",
    "string_type": "must be text",
    "string_unicode": "must be text; a part of it is no character",
    "model": "must be fields with values",
    "invalid_key": "must have a name that is text",
    "dict": "must be names with values, such as {{ignore_case: true}}",
    "string_too_long": "must have at most {max_length:,} characters",
}
"""By pydantic's name of the fault, or by its first word."""

_LOSSES = {
    "grpo": "loss: clip with aggregation: sequence_mean, or preset: deepseekmath",
    "bnpo": "loss: clip with aggregation: local_token_mean and local_batch, or preset: bnpo",
    "dapo": "loss: clip with aggregation: token_mean, or preset: dapo",
    "dr_grpo": "loss: clip with scale: none and aggregation: constant, or preset: dr_grpo",
}
"""What TRL calls a loss is here a loss and a way of averaging it."""


def _meant(path: str, given: Any) -> str:
    write = _LOSSES.get(given) if path == "algorithm.loss" and isinstance(given, str) else None
    return f"; for {given} write {write}" if write else ""


def _beneath(location: tuple[int | str, ...], above: tuple[int | str, ...]) -> bool:
    return len(location) > len(above) and location[: len(above)] == above


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"


def model_at(root: type[BaseModel], location: Sequence[int | str]) -> type[BaseModel] | None:
    """The model at a path below `root`, through lists and Optional; None where there is none."""
    model: type[BaseModel] | None = root
    for piece in location:
        if isinstance(piece, int):
            continue
        if model is None or piece not in model.model_fields:
            return None
        model = inner_model(model.model_fields[piece].annotation)
    return model


def inner_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        if (model := inner_model(argument)) is not None:
            return model
    return None
