"""The form of a reward: its own fields, any number of components of any kind, and what scoring may cost.

A component's fields are those of its kind (param_specs). Without JavaScript the form is the same: a kind that was
changed is sent, and comes back with the fields of the new one before anything is saved.
"""

import re
from collections.abc import Mapping
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.http import QueryDict

from cohort.catalog.services import SpecInvalid
from cohort.web.fields import FieldSpec, ServiceForm, field_spec
from grpo_core.config.reward import RewardComponent, RewardConfig, RewardLimits, RowFilter
from grpo_core.rewards import KINDS
from grpo_core.rewards.python.python_check import SourceFault, check_source

# A reward kind's parameters as fields of a form, read off the kind's own pydantic model.
#
# A parameter added to a kind appears in the form by itself, with its docstring as help. Values stay what the kind
# takes: what equals the default and was never given is left out, so that a form that is saved unchanged is the same
# reward.

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
MODE_TEXTS = {
    "inline": "A rule of Cohort’s own: microseconds a completion, in any process.",
    "subprocess": "A rule of Cohort’s own that a text can make slow: in a process that is killed at its deadline.",
    "sandbox": "Runs code that a person or a model wrote: only in the sandbox of a worker.",
    "model": "Runs a model’s weights in the trainer’s process, on its device.",
    "judge": "Asks a server from the worker; calls cost time, and may cost money.",
}
"""Where a kind runs, for forms."""


def kind_choices() -> list[tuple[str, list[tuple[str, str]]]]:
    """Every kind under the heading of the place where it runs."""
    groups = [
        (heading, [(name, f"{name}: {kind.summary}") for name, kind in KINDS.items() if kind.mode in modes])
        for heading, modes in KIND_GROUPS
    ]
    return [group for group in groups if group[1]]


def mode_text(kind: str) -> str:
    return MODE_TEXTS[KINDS[kind].mode] if kind in KINDS else ""


_ROW_NUMBER = re.compile(r"[0-9]{1,6}")
_ON_ERROR = [
    ("mask", "mask: leave the sample out of its group"),
    ("zero", "zero: score 0"),
    ("fail", "fail: end the run"),
]
LIMITS = ("deadline_seconds", "retries", "workers")


class VerifierForm(ServiceForm):
    name = forms.CharField(max_length=120, help_text="What the run form lists it as, such as r1-format + numeric.")
    description = forms.CharField(
        required=False, widget=forms.TextInput(), help_text="What it rewards and what it cannot see."
    )
    on_error = forms.ChoiceField(
        choices=_ON_ERROR,
        label="If a component fails",
        help_text="What a sample gets that could not be scored. Trouble of a sandbox or a server is never given 0.",
    )
    success = field_spec(RewardConfig, "success").form_field()
    deadline_seconds = field_spec(RewardLimits, "deadline_seconds").form_field()
    retries = field_spec(RewardLimits, "retries").form_field()
    workers = field_spec(RewardLimits, "workers").form_field(label="Side by side")

    @property
    def limits(self) -> list[forms.BoundField]:
        return [self[name] for name in LIMITS]

    @property
    def limits_changed(self) -> bool:
        """Whether they differ from the usual ones, or one is wrong."""
        return any(
            name in self.errors
            or str(self[name].value() or "") not in ("", field_spec(RewardLimits, name).default_text)
            for name in LIMITS
        )


class ComponentForm(ServiceForm):
    kind = forms.ChoiceField(choices=kind_choices)
    name = forms.CharField(max_length=40, help_text="Small letters, digits, _; names a metric.")
    weight = field_spec(RewardComponent, "weight").form_field(required=True, help_text="Factor in the sum.")
    only_column = forms.CharField(
        max_length=100,
        required=False,
        label="Only rows by column",
        help_text="Field of the problem, such as data_source; empty scores every row.",
    )
    only_values = field_spec(RowFilter, "values").form_field(label="Values of the column")

    def __init__(self, data: QueryDict | None = None, *, prefix: str, initial: Mapping[str, Any] | None = None) -> None:
        given = dict(initial or {})
        params = given.pop("params", None) or {}
        only = given.pop("only", None)
        if only:
            given |= {f"only_{name}": value for name, value in only.items()}
        if data is None:
            self.shown_kind = str(given.get("kind", "exact"))
            self.given = frozenset(params)
        else:
            self.shown_kind = str(data.get(f"{prefix}-shown_kind", data.get(f"{prefix}-kind", "")))
            self.given = frozenset(str(data.get(f"{prefix}-given", "")).split())
        shown = {**{PREFIX + name: value for name, value in params.items()}, **given}
        super().__init__(data, prefix=prefix, initial=shown)
        for spec in param_specs(self.shown_kind):
            self.fields[PREFIX + spec.path] = spec.form_field()

    @property
    def params(self) -> list[tuple[Any, forms.BoundField]]:
        """(spec, field) of each parameter of the kind that is shown."""
        return [(spec, self[PREFIX + spec.path]) for spec in param_specs(self.shown_kind)]

    @property
    def source_faults(self) -> list[SourceFault]:
        """What is wrong with the program text that was sent; it is parsed and never run. None before it is sent."""
        code = [PREFIX + spec.path for spec in param_specs(self.shown_kind) if spec.kind == "code"]
        if not code or not self.is_bound:
            return []
        self.is_valid()
        given = self.cleaned_data
        packages = [str(package) for package in given.get(PREFIX + "packages") or ()]
        # As it was sent: a field that is too long has no cleaned value, and is reported here, with the limit.
        source = str(self.data.get(self.add_prefix(code[0]), "")).replace("\r\n", "\n")
        return check_source(source, packages)

    @property
    def given_names(self) -> str:
        return " ".join(sorted(self.given))

    @property
    def place(self) -> str:
        return mode_text(self.shown_kind)

    @property
    def number(self) -> str:
        """The row's number, as in the names of its fields."""
        return str(self.prefix).split("-")[1]

    @property
    def ordinal(self) -> str:
        """What people call the row: its number, counted from 1."""
        return str(int(self.number) + 1) if self.number.isdecimal() else "__place__"

    @property
    def other_kind(self) -> bool:
        """Whether another kind was chosen than the one whose parameters the form shows."""
        return self.is_bound and self.data.get(self.add_prefix("kind"), "") != self.shown_kind

    def of_kind(self, kind: str) -> "ComponentForm":
        """The same row with the fields of another kind; what both kinds have by the same name is kept."""
        known = {spec.path for spec in param_specs(kind)}
        kept = {
            spec.path: self.data.get(self.add_prefix(PREFIX + spec.path), "")
            for spec in param_specs(self.shown_kind)
            if spec.path in known and spec.kind in ("choice", "text", "number", "integer")
        }
        initial = {
            "kind": kind,
            "name": self.data.get(self.add_prefix("name"), ""),
            "weight": self.data.get(self.add_prefix("weight"), "1.0"),
            "params": {name: text for name, text in kept.items() if text != ""},
            **{name: self.data.get(self.add_prefix(name), "") for name in ("only_column", "only_values")},
        }
        fresh = ComponentForm(prefix=str(self.prefix), initial=initial)
        fresh.given = frozenset()
        return fresh

    def as_component(self) -> dict[str, Any]:
        fields = ("name", "kind", "weight")
        sent = frozenset(field for field in self.fields if self.add_prefix(field) in self.data)
        params = given_params(self.shown_kind, self.cleaned_data, sent=sent, before=self.given)
        component = {**{field: self.cleaned_data[field] for field in fields}, "params": params}
        only = {name: self.cleaned_data[f"only_{name}"] for name in ("column", "values")}
        if any(only.values()):
            component["only"] = {"column": only["column"], "values": only["values"] or []}
        return component


class RewardForm:
    """The whole reward: its own fields and any number of component rows, which come and go in the browser.

    Rows are numbered by their fields' names (`component-3-kind`); the numbers need not be contiguous.
    """

    MAX_ROWS = 20

    def __init__(self, data: QueryDict | None = None, *, initial: dict[str, Any] | None = None) -> None:
        given = initial or {}
        self.head = VerifierForm(data, initial={**given, **(given.get("limits") or {})})
        if data is None:
            rows = given.get("components") or [{"name": "answer", "kind": "exact", "weight": 1.0}]
            self.rows = [self._row(number, None, component) for number, component in enumerate(rows)]
        else:
            self.rows = [self._row(number, data) for number in self._numbers(data)]

    @classmethod
    def blank(cls) -> ComponentForm:
        """The template that the browser copies; `__n__` becomes the row's number, `__place__` its position."""
        return ComponentForm(prefix="component-__n__", initial={"weight": 1.0})

    def _row(self, number: int, data: QueryDict | None, initial: dict[str, Any] | None = None) -> ComponentForm:
        return ComponentForm(data, prefix=f"component-{number}", initial=initial)

    def remove_row(self, number: str) -> None:
        self.rows = [row for row in self.rows if row.number != number]

    def add_row(self) -> None:
        self.rows.append(self._row(max((int(row.number) for row in self.rows), default=-1) + 1, None, {"weight": 1.0}))

    @property
    def other_kinds(self) -> bool:
        """Whether a row was sent whose kind is not the one that its fields are of."""
        return any(row.other_kind for row in self.rows)

    def show_kinds(self) -> None:
        """Give such rows the fields of the kind that was chosen."""
        self.rows = [
            row.of_kind(row.data.get(row.add_prefix("kind"), "")) if row.other_kind else row for row in self.rows
        ]

    def _numbers(self, data: QueryDict) -> list[int]:
        pieces = [name.split("-") for name in data if name.startswith("component-") and name.endswith("-kind")]
        return sorted({int(piece[1]) for piece in pieces if len(piece) == 3 and _ROW_NUMBER.fullmatch(piece[1])})

    def is_valid(self) -> bool:
        valid = [form.is_valid() for form in (*self.rows, self.head)]
        count, most = len(self.rows), self.MAX_ROWS
        if 1 <= count <= most:
            return all(valid)
        fault = "A reward needs at least one component. Add one."
        if count:
            fault = f"A reward has at most {most} components; these are {count}. Remove {count - most}."
        self.head.add_error(None, fault)
        return False

    @property
    def errors(self) -> bool:
        return bool(self.head.errors) or any(row.errors for row in self.rows)

    def spec(self) -> dict[str, Any]:
        head = self.head.cleaned_data
        limits = {name: head[name] for name in LIMITS if head.get(name) is not None}
        return {
            "components": [row.as_component() for row in self.rows],
            "on_error": head["on_error"],
            **({"success": head["success"]} if head["success"] else {}),
            **({"limits": limits} if limits else {}),
        }

    def take(self, error: ValidationError) -> None:
        """Add each fault of the spec to the row and field that its path names."""
        if not isinstance(error, SpecInvalid):
            self.head.take(error)
            return
        for problem in error.problems:
            match problem.path.split("."):
                case ["components", number, "params", name, *inner] if number.isdecimal():
                    self.rows[int(number)].add_problem(problem, [PREFIX + name, *inner])
                case ["components", number, "only", name, *inner] if number.isdecimal():
                    self.rows[int(number)].add_problem(problem, [f"only_{name}", *inner])
                case ["components", number, *path] if number.isdecimal():
                    self.rows[int(number)].add_problem(problem, path)
                case ["limits", *path]:
                    self.head.add_problem(problem, path)
                case path:
                    self.head.add_problem(problem, path)
