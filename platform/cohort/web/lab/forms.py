"""Forms of the reward lab: what is tried, on what. Each makes the arguments of `lab.services.job_ask`; bounds and
defaults are those of grpo_core.lab.job, whose words stand beside the fields."""

import json
from collections.abc import Mapping
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from pydantic import BaseModel as Model

from cohort.accounts.models import Project
from cohort.catalog.models import BaseModel, PromptDataset
from cohort.web.catalog.forms import CatalogForm
from grpo_core.errors import ConfigError
from grpo_core.lab.job import MAX_TEXT_CHARS, LabKind, ProbeOptions, SampleOptions, TryOptions

_NUMBER = {"inputmode": "numeric", "autocomplete": "off"}
_DECIMAL = {"inputmode": "decimal", "autocomplete": "off"}
ROWS = 20
_OTHER_WORDS = {"top_p": "Top p", "group_size": "Group size G", "max_completion_tokens": "Longest completion, tokens"}


def _about(model: type[Model], name: str) -> str:
    return " ".join((model.model_fields[name].description or "").replace("`", "").split())


def _number(model: type[Model], name: str, *, whole: bool = True, initial: Any = None, about: str = "") -> forms.Field:
    kind = forms.IntegerField if whole else forms.FloatField
    return kind(
        label=_OTHER_WORDS.get(name, name.replace("_", " ").capitalize()),
        initial=model.model_fields[name].default if initial is None else initial,
        help_text=about or _about(model, name),
        widget=forms.TextInput(attrs=_NUMBER if whole else _DECIMAL),
        localize=False,
    )


class TryForm(CatalogForm):
    """One pasted answer."""

    kind: LabKind = "try"
    prompt = forms.CharField(max_length=MAX_TEXT_CHARS, widget=forms.Textarea(attrs={"rows": 2}), required=False)
    answer = forms.CharField(
        max_length=MAX_TEXT_CHARS,
        label="Reference answer",
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
        strip=False,
        required=False,
    )
    completion = forms.CharField(
        max_length=MAX_TEXT_CHARS, strip=False, required=False, widget=forms.Textarea(attrs={"rows": 4})
    )
    meta = forms.CharField(
        max_length=MAX_TEXT_CHARS,
        strip=False,
        required=False,
        label="Further fields of the problem",
        help_text='As JSON, such as {"tests": ["assert add(2, 3) == 5"]}.',
        widget=forms.Textarea(attrs={"rows": 3, "spellcheck": "false"}),
    )

    def clean_meta(self) -> dict[str, Any]:
        text = self.cleaned_data["meta"].strip()
        try:
            value = json.loads(text) if text else {}
        except (ValueError, RecursionError) as error:
            raise ValidationError(f"This is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise ValidationError('Give an object: {"field": value}.')
        return value

    def text(self) -> dict[str, Any]:
        return {name: self.cleaned_data[name] for name in ("prompt", "answer", "completion", "meta")}

    def asked(self) -> dict[str, Any]:
        return {"options": {"texts": [self.text()]}}


class _Job(CatalogForm):
    """A job over a dataset of the project."""

    kind: LabKind
    dataset = forms.ModelChoiceField(PromptDataset.objects.none(), empty_label="choose")

    def __init__(self, project: Project, data: Any = None, *, initial: Mapping[str, Any] | None = None) -> None:
        super().__init__(data, prefix=self.kind_name, initial=dict(initial or {}))
        chosen: Any = self.fields["dataset"]
        chosen.queryset = PromptDataset.objects.filter(project=project).order_by("-id")
        chosen.label_from_instance = _named

    kind_name = ""
    options: tuple[str, ...] = ()

    def asked(self) -> dict[str, Any]:
        given = {name: self.cleaned_data[name] for name in self.options}
        return {"dataset": self.cleaned_data.get("dataset"), "options": given}

    def take_config(self, error: ConfigError) -> None:
        """Each fault beside the field that its path names."""
        for problem in error.problems:
            name = problem.path.removeprefix("options.")
            self.add_error(
                name if name in self.fields else None, str(problem) if name not in self.fields else problem.message
            )
        if not error.problems:
            self.add_error(None, str(error))


def _named(row: PromptDataset) -> str:
    return f"{row.name} · {row.problems:,} problems"


class RowsForm(_Job):
    kind: LabKind = "try"
    kind_name = "rows"
    options = ("rows",)
    rows = _number(TryOptions, "rows", initial=ROWS, about="The first so many problems of the file.")


class SampleForm(_Job):
    kind: LabKind = "sample"
    kind_name = "sample"
    options = ("problems", "group_size", "temperature", "top_p", "max_completion_tokens", "template", "seed")
    base_model = forms.ModelChoiceField(BaseModel.objects.none(), empty_label="choose")
    problems = _number(SampleOptions, "problems")
    group_size = _number(SampleOptions, "group_size")
    temperature = _number(SampleOptions, "temperature", whole=False)
    top_p = _number(SampleOptions, "top_p", whole=False)
    max_completion_tokens = _number(SampleOptions, "max_completion_tokens")
    template = forms.CharField(
        strip=False,
        max_length=20_000,
        initial=SampleOptions.model_fields["template"].default,
        help_text=_about(SampleOptions, "template"),
        widget=forms.Textarea(attrs={"rows": 2, "spellcheck": "false"}),
    )
    seed = _number(SampleOptions, "seed")

    def __init__(self, project: Project, data: Any = None, *, initial: Mapping[str, Any] | None = None) -> None:
        super().__init__(project, data, initial=initial)
        models: Any = self.fields["base_model"]
        models.queryset = BaseModel.objects.filter(project=project).order_by("-id")

    @property
    def advanced(self) -> list[forms.BoundField]:
        return [self[name] for name in ("top_p", "template", "seed")]

    @property
    def advanced_faults(self) -> bool:
        return any(field.errors for field in self.advanced)

    def asked(self) -> dict[str, Any]:
        return {**super().asked(), "base_model": self.cleaned_data["base_model"]}


class ProbeForm(_Job):
    kind: LabKind = "probe"
    kind_name = "probe"
    options = ("problems", "seed")
    dataset = forms.ModelChoiceField(
        PromptDataset.objects.none(), required=False, empty_label="the probe’s own problems"
    )
    problems = _number(ProbeOptions, "problems")
    seed = _number(ProbeOptions, "seed")


FORMS: dict[str, type[_Job]] = {"rows": RowsForm, "sample": SampleForm, "probe": ProbeForm}
"""By the name that their button sends."""
