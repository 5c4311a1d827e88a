"""The form of one question. Long text is refused by the service, so that it comes back in the form with the reason."""

from typing import Any

from django import forms

from cohort.records.models import Audience, Statement
from cohort.records.statements.answers import MAX_CHARS
from cohort.records.statements.questions import Question

_TEXT_LABELS = {
    "choice": "In words",
    "several": "In words",
    "text": "Answer",
    "link": "Link, or words",
    "number": "Number, and its source",
    "stages": "Stages",
}


class StatementForm(forms.Form):
    """Fields: `chosen` where the question has choices, `text`, `audience`."""

    audience = forms.ChoiceField(label="Who may see it", choices=Audience.choices)

    def __init__(self, question: Question, data: Any = None, *, holds: Statement | None = None) -> None:
        super().__init__(data, auto_id=f"{question.name}-%s", initial=_initial(question, holds))
        self.question = question
        self.fields["text"] = forms.CharField(
            label=_TEXT_LABELS[question.kind],
            required=not question.choices,
            widget=forms.Textarea(attrs={"rows": 5 if question.kind in ("text", "stages") else 2}),
            help_text=f"At most {MAX_CHARS:,} characters.",
        )
        if question.choices:
            widget = forms.RadioSelect if question.kind == "choice" else forms.CheckboxSelectMultiple
            field = forms.ChoiceField if question.kind == "choice" else forms.MultipleChoiceField
            self.fields["chosen"] = field(label=question.label, choices=question.choices, widget=widget)
        self.order_fields(["chosen", "text", "audience"])

    @property
    def chosen_field(self) -> forms.BoundField:
        return self["chosen"]

    @property
    def text_field(self) -> forms.BoundField:
        return self["text"]

    @property
    def audience_field(self) -> forms.BoundField:
        return self["audience"]

    @property
    def chosen(self) -> list[str]:
        """What was picked, checked; none for a question without choices."""
        picked = self.cleaned_data.get("chosen", [])
        return [picked] if isinstance(picked, str) else list(picked)


def _initial(question: Question, holds: Statement | None) -> dict[str, Any]:
    """The form as the statement that holds was made."""
    if holds is None:
        return {"audience": question.audience}
    value = holds.value if isinstance(holds.value, dict) else {}
    text = value.get("words", "") if question.choices else holds.text
    return {
        "audience": holds.audience,
        "text": text,
        "chosen": value.get("choice") if question.kind == "choice" else value.get("choices"),
    }
