"""A reward kind's parameters as fields of a form, read off the kind's own pydantic model.

A parameter added to a kind appears in the form by itself, with its docstring as help. Values stay what the kind takes:
what equals the default and was never given is left out, so that a form that is saved unchanged is the same reward.
"""

from collections.abc import Mapping
from typing import Any

from cohort.web.fields import FieldSpec, field_spec
from grpo_core.rewards import KINDS

PREFIX = "p_"
"""Before a parameter's name in the names of the form's fields, so that none is taken for kind, name or weight."""


def param_specs(kind: str) -> tuple[FieldSpec, ...]:
    """Of a kind that exists; none of one that does not."""
    params = KINDS[kind].params if kind in KINDS else None
    return tuple(field_spec(params, name) for name in params.model_fields) if params else ()


def given_params(
    kind: str, cleaned: Mapping[str, Any], *, sent: frozenset[str], before: frozenset[str]
) -> dict[str, Any]:
    """Parameters as the kind takes them. `sent`: names of fields that the page had; `before`: parameters that the
    reward which the form began with had written out, and which stay written out."""
    given: dict[str, Any] = {}
    for spec in param_specs(kind):
        value = cleaned.get(PREFIX + spec.path)
        if value is None:
            if spec.optional and spec.default is not None and PREFIX + spec.path in sent:
                given[spec.path] = None
        elif value != spec.default or spec.path in before:
            given[spec.path] = value
    return given


KIND_GROUPS: tuple[tuple[str, frozenset[str]], ...] = (
    ("Rules of the text", frozenset({"inline", "subprocess"})),
    ("Code, in the sandbox", frozenset({"sandbox"})),
    ("Models", frozenset({"model"})),
    ("Asks a server", frozenset({"judge"})),
)
PLACES = {
    "inline": "A rule of Cohort’s own: microseconds a completion, in any process.",
    "subprocess": "A rule of Cohort’s own that a text can make slow: in a process that is killed at its deadline.",
    "sandbox": "Runs code that a person or a model wrote: only in the sandbox of a worker.",
    "model": "Runs a model’s weights in the trainer’s process, on its device.",
    "judge": "Asks a server from the worker; calls cost time, and may cost money.",
}
"""Where a kind runs, for forms."""


def kind_choices() -> list[tuple[str, list[tuple[str, str]]]]:
    """Every kind under the heading of the place where it runs."""
    groups = []
    for heading, places in KIND_GROUPS:
        held = [(name, f"{name}: {kind.summary}") for name, kind in KINDS.items() if kind.mode in places]
        if held:
            groups.append((heading, held))
    return groups


def place_of(kind: str) -> str:
    return PLACES[KINDS[kind].mode] if kind in KINDS else ""
