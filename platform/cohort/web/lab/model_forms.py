"""Forms of what is done with a base model: evaluate it, and talk to it. Bounds and defaults are those of
grpo_core.lab.job, whose docstrings are the fields' help."""

from collections.abc import Iterable
from typing import Any

from django import forms

from cohort.accounts.models import Project
from cohort.catalog.models import BaseModel, EvalSuiteVersion, PromptDataset, VerifierVersion
from cohort.lab.chat import SIDES
from cohort.web.catalog import selectors as catalog
from cohort.web.catalog.selectors import Offered, base_models_offered
from cohort.web.fields import ServiceForm, field_spec
from grpo_core.errors import ConfigError
from grpo_core.lab.job import ChatOptions, EvaluateOptions, TurnSettings

_OPTIONS = ("samples", "temperature", "max_completion_tokens", "limit", "seed")
_PROMPT = ("template", "chat", "system", "prefill", "stop")
SETTINGS = tuple(TurnSettings.model_fields)
_MODELS = {"base_model", "reference"}
"""Chosen before, where a form has no field for them."""


class ConfigForm(ServiceForm):
    """A form for a service that raises ConfigError."""

    def take_config(self, error: ConfigError) -> None:
        for problem in error.problems:
            if problem.path in _MODELS - self.fields.keys():
                self.add_error(None, problem.message)
                continue
            self.add_problem(problem, problem.path.removeprefix("options.").split("."))
        if not error.problems:
            self.add_error(None, str(error))

    def given(self, names: Iterable[str]) -> dict[str, Any]:
        """What was filled in of these fields."""
        return {name: value for name in names if (value := self.cleaned_data[name]) is not None}


class EvaluateForm(ConfigForm):
    suites = forms.ModelMultipleChoiceField(
        EvalSuiteVersion.objects.none(), required=False, widget=forms.CheckboxSelectMultiple
    )
    dataset = forms.ModelChoiceField(
        PromptDataset.objects.none(), required=False, empty_label="none", label="Held-out problems"
    )
    version = forms.ModelChoiceField(
        VerifierVersion.objects.none(), required=False, empty_label="none", label="Reward that judges them"
    )

    def __init__(self, project: Project, data: Any = None, *, find: str = "") -> None:
        """`find`: part of a name, to choose from lists that are too long to be offered whole."""
        super().__init__(data)
        fields: dict[str, Any] = self.fields
        newest = catalog.newest_suite_versions(catalog.suites(project))
        suites = fields["suites"]
        suites.queryset = EvalSuiteVersion.objects.filter(pk__in=[version.pk for _, version in newest])
        suites.choices = [(version.pk, _suite_label(version)) for _, version in newest]
        datasets: Offered[Any] = Offered(PromptDataset.objects.filter(project=project), find)
        versions: Offered[Any] = Offered(
            VerifierVersion.objects.filter(verifier__project=project).select_related("verifier"),
            find,
            name="verifier__name",
        )
        self.more = datasets.more or versions.more
        """Whether a list is too long to be offered whole."""
        for name, offered in (("dataset", datasets), ("version", versions)):
            fields[name].queryset = offered.every
            rows = offered.rows_with(offered.row(str(self[name].value())))
            fields[name].choices = [("", fields[name].empty_label), *((row.pk, _label(row)) for row in rows)]
        for name in (*_OPTIONS, *_PROMPT):
            required = name in _OPTIONS and name != "limit"
            fields[name] = field_spec(EvaluateOptions, name).form_field(required=required)

    @property
    def advanced(self) -> list[forms.BoundField]:
        return [self[name] for name in _PROMPT]

    @property
    def advanced_faults(self) -> bool:
        return any(field.errors for field in self.advanced)

    def arguments(self) -> dict[str, Any]:
        """Of `lab.services.evaluation_request`."""
        return {
            "versions": list(self.cleaned_data["suites"]),
            "dataset": self.cleaned_data["dataset"],
            "verifier_version": self.cleaned_data["version"],
            "options": self.given((*_OPTIONS, *_PROMPT)),
        }


def _suite_label(version: EvalSuiteVersion) -> str:
    sensitive = ", sensitive" if version.sensitive else ""
    return f"{version.title} · {version.suite.name} v{version.number}, {version.items:,} items{sensitive}"


def _label(row: PromptDataset | VerifierVersion) -> str:
    return f"{row.name} · {row.problems:,} problems" if isinstance(row, PromptDataset) else str(row)


class MessageForm(ConfigForm):
    """The next message of a conversation."""

    text = forms.CharField(label="Message", widget=forms.Textarea({"rows": 4, "data-send": ""}), strip=True)
    sides = forms.MultipleChoiceField(
        choices=[(side, side) for side in SIDES], widget=forms.CheckboxSelectMultiple, label="Who answers"
    )

    def __init__(self, data: Any = None, *, initial: dict[str, Any] | None = None) -> None:
        super().__init__(data, initial=initial or {})
        for name in SETTINGS:
            self.fields[name] = field_spec(TurnSettings, name).form_field(required=True)

    @property
    def sampling(self) -> list[forms.BoundField]:
        return [self[name] for name in SETTINGS]

    def arguments(self) -> dict[str, Any]:
        """Of `lab.chat.message_send`."""
        sides = {"sides": self.cleaned_data["sides"]} if "sides" in self.fields else {}
        return {"text": self.cleaned_data["text"], "sampling": self.given(SETTINGS), **sides}


class ChatForm(MessageForm):
    """A new conversation with its first message."""

    base_model = forms.ModelChoiceField(BaseModel.objects.none(), label="Model", empty_label="choose")
    reference = forms.ModelChoiceField(
        BaseModel.objects.none(), required=False, label="Next to it", empty_label="no other model"
    )
    system = field_spec(ChatOptions, "system").form_field()
    field_order = ("base_model", "reference", "system", "text")

    def __init__(
        self, project: Project, data: Any = None, *, initial: dict[str, Any] | None = None, find: str = ""
    ) -> None:
        """`find`: as of EvaluateForm."""
        super().__init__(data, initial=initial)
        del self.fields["sides"]  # a conversation begins with both
        fields: dict[str, Any] = self.fields
        offered: Offered[Any] = Offered(base_models_offered(project).select_related("project"), find)
        self.more = offered.more
        """Whether there are too many models to be offered."""
        for name in ("base_model", "reference"):
            fields[name].queryset = offered.every
            rows = offered.rows_with(offered.row(str(self[name].value())))
            fields[name].choices = [("", fields[name].empty_label), *((row.pk, row.name) for row in rows)]

    def arguments(self) -> dict[str, Any]:
        """Of `lab.chat.conversation_begin`."""
        own = {name: self.cleaned_data[name] for name in ("base_model", "reference")}
        return {**super().arguments(), **own, "system": self.cleaned_data["system"] or ""}


class SuiteRowForm(ServiceForm):
    """A person's message as an item of a suite."""

    suite = forms.ModelChoiceField(EvalSuiteVersion.objects.none(), label="Suite", empty_label="choose")
    target = forms.CharField(label="Right answer", max_length=10_000)

    def __init__(self, versions: list[EvalSuiteVersion], data: Any = None) -> None:
        super().__init__(data)
        field: Any = self.fields["suite"]
        field.queryset = EvalSuiteVersion.objects.filter(pk__in=[version.pk for version in versions])
        field.choices = [("", "choose"), *((version.pk, _suite_label(version)) for version in versions)]
