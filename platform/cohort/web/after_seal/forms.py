"""The forms for entries added to a record after sealing. They parse the input; `services` decides.

No field has a maxlength: a browser would truncate pasted text silently. A text that is too long comes back whole, with
its error.
"""

from collections.abc import Sequence
from datetime import UTC
from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from cohort.records.after_seal.rules import SEVERITIES, Decision, SignRole
from cohort.records.after_seal.services import SHORT_CHARS, TEXT_CHARS
from cohort.records.models import RecordEntry
from cohort.web.fields import ServiceForm

CORRECTABLE = 100
"""Entries that are suggested for correction, of those not yet corrected; others are named by their number."""
_MOST = f"At most {TEXT_CHARS:,} characters."


def _text(label: str, help_text: str, *, rows: int = 4) -> forms.CharField:
    return forms.CharField(
        label=label, help_text=f"{help_text} {_MOST}", strip=False, widget=forms.Textarea(attrs={"rows": rows})
    )


def _line(label: str, help_text: str, **attrs: str) -> forms.CharField:
    about = f"{help_text} At most {SHORT_CHARS} characters."
    return forms.CharField(label=label, help_text=about, widget=forms.TextInput(attrs))


class LifeForm(ServiceForm):
    """With a field for the entry of the same kind that it corrects, where there is one to correct."""

    def __init__(self, *args: Any, correctable: Sequence[RecordEntry] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.correctable = [(entry.pk, _named(entry)) for entry in correctable[:CORRECTABLE]]
        """Number and name of the entries that the page suggests."""
        if correctable:
            self.fields["corrects"] = forms.IntegerField(
                label="Corrects entry",
                required=False,
                min_value=1,
                widget=forms.NumberInput({"list": f"{self.auto_id}-list" % "corrects"}),
                help_text="Its number in the timeline; empty for a new entry. Nothing is edited. An entry that was "
                "wrong stays, marked as corrected by this one.",
            )

    def given(self) -> dict[str, Any]:
        """The service's arguments."""
        return {name: value for name, value in self.cleaned_data.items() if name != "corrects" or value is not None}


class SignOffForm(LifeForm):
    role = forms.ChoiceField(
        label="You sign as",
        help_text="Two different people sign: the operator answers for the run; the reviewer has looked at the "
        "record and did not launch the run.",
    )
    decision = forms.ChoiceField(label="You decide")
    reason = _text("Reason", "What you looked at, and why it is enough, or is not. It is kept in the audit log.")

    def __init__(self, *args: Any, roles: Sequence[SignRole], signed: bool, **kwargs: Any) -> None:
        """`roles`: those that this person may sign in; `signed`: whether they have signed in one of them."""
        super().__init__(*args, **kwargs)
        fields: dict[str, Any] = self.fields
        fields["role"].choices = [(role.value, role.label) for role in roles]
        decisions = [decision for decision in Decision if signed or decision != Decision.WITHDRAWN]
        fields["decision"].choices = [("", "choose"), *((decision.value, decision.label) for decision in decisions)]


class RevokeForm(LifeForm):
    """Asks once more, in the form itself, so that it does so without JavaScript too."""

    reason = _text(
        "Reason",
        "Why nobody may rely on this record any more. Shown in red wherever the record is, on its public page and "
        "in every card downloaded from then on. It cannot be undone.",
    )
    sure = forms.BooleanField(
        label="Revoke for good",
        help_text="Tick that nobody may rely on this record any more, and that this cannot be undone.",
        error_messages={"required": "Tick it to revoke the record for good; nothing was revoked yet."},
    )

    def given(self) -> dict[str, Any]:
        return {"reason": self.cleaned_data["reason"]}


class IncidentForm(LifeForm):
    severity = forms.ChoiceField(choices=[("", "choose"), *SEVERITIES.items()])
    when = forms.DateTimeField(
        label="When it happened, UTC",
        help_text="Year, month, day, hour and minute; in UTC.",
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
        error_messages={"invalid": "This is no time. Write it like 2026-11-22 14:05, in UTC."},
    )
    what = _text("What happened", "What the model did, who was touched by it, and what was done about it.")

    def clean_when(self) -> Any:
        return self.cleaned_data["when"].astimezone(UTC)


class FeedbackForm(LifeForm):
    source = _line("From whom", "A user, a customer, a channel. Name a person only if you may.")
    text = _text("What they said", "In their words where you can.")


class MonitoringForm(LifeForm):
    first = forms.DateField(label="First day", widget=forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d"))
    until = forms.DateField(label="Last day", widget=forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d"))
    figures = forms.CharField(
        required=False,
        help_text="One a line, as name: value. For example refusals: 12 of 480.",
        widget=forms.Textarea(attrs={"rows": 3}),
    )
    text = _text("Note", "What was watched, and what it means.")

    def clean_figures(self) -> list[tuple[str, str]]:
        figures = []
        for number, line in enumerate(self.cleaned_data["figures"].splitlines(), start=1):
            if not line.strip():
                continue
            name, colon, value = line.partition(":")
            if not colon or not name.strip() or not value.strip():
                raise ValidationError(f"Line {number} is not a name and a value: write it like refusals: 12 of 480.")
            figures.append((name.strip(), value.strip()))
        return figures

    def given(self) -> dict[str, Any]:
        given = super().given()
        period = (given.pop("first"), given.pop("until"))
        return {**given, "period": period}


class OverrideForm(LifeForm):
    what = _line("Which flag", "As the record names it.", list="life-flags")
    reason = _text("Reason", "Why the flag does not count against this record. The flag itself stays in it.")


def _named(entry: RecordEntry) -> str:
    return f"{entry.get_kind_display()} of {entry.at:%Y-%m-%d %H:%M} by {entry.by.username}"
