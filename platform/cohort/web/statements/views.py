"""The page for statements about a run that only a person can make. Fetch, authorise, call one service, render."""

from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse

from cohort.accounts.models import Role, reaches
from cohort.evaluations.selectors import suites_cached
from cohort.records.models import Audience, Statement
from cohort.records.sections.history_facts import comparisons
from cohort.records.sections.monitors import FLAG_WORDS, watched
from cohort.records.statements import services
from cohort.records.statements.answers import MAX_CHARS
from cohort.records.statements.questions import BY_FIELD, Question, is_override_field, override_field
from cohort.records.statements.services import AnsweredQuestion, newest_statements, questions_of, statements_since
from cohort.runs.models import Run
from cohort.web.access import OVERRIDES_FLAGS, form_page, role_in, run_for
from cohort.web.accounts.views import person
from cohort.web.context import ListPage, listed
from cohort.web.records.listing import record_of

HISTORY = 20
"""Earlier statements of a field on one page of their list."""
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
    def chosen(self) -> list[str]:
        """What was picked, checked; none for a question without choices."""
        picked = self.cleaned_data.get("chosen", [])
        return [picked] if isinstance(picked, str) else list(picked)


def _initial(question: Question, holds: Statement | None) -> dict[str, Any]:
    """The form filled with the statement in force."""
    if holds is None:
        return {"audience": question.audience}
    value = holds.value if isinstance(holds.value, dict) else {}
    text = value.get("words", "") if question.choices else holds.text
    return {
        "audience": holds.audience,
        "text": text,
        "chosen": value.get("choice") if question.kind == "choice" else value.get("choices"),
    }


@dataclass
class Posted:
    """A refused answer, which is shown again unchanged."""

    field: str
    action: str
    form: StatementForm | None = None
    reason: str = ""
    faults: tuple[str, ...] = ()


@form_page
def run_statements(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """Every question with its answer; a reviewer states and withdraws, an operator overrides a flag too."""
    run = run_for(request, slug, run_id)
    posted = None
    if request.method == "POST":
        on_flag = request.POST.get("action") == "override" or is_override_field(request.POST.get("field", ""))
        run_for(request, slug, run_id, at_least=OVERRIDES_FLAGS if on_flag else Role.REVIEWER)
        posted = _taken(request, run)
        if posted is None:
            page = reverse("run_statements", args=[slug, run_id])
            return redirect(f"{page}#{request.POST.get('field', '').replace('.', '-').partition(':')[0]}")
    role = role_in(run.project, person(request))
    context = _context(request, run, posted, role)
    return render(request, "statements/statements.html", context, status=422 if posted else 200)


def _context(request: HttpRequest, run: Run, posted: Posted | None, role: str) -> dict[str, Any]:
    questions = questions_of(run)
    histories = _histories(request, questions)
    items = [_item(entry, posted, histories.get(entry.question.field)) for entry in questions]
    record = record_of(run)
    return {
        "run": run,
        "items": items,
        "answered": sum(item["state"].current is not None for item in items),
        "flags": flag_rows(run),
        "posted": posted,
        "record": record,
        "stated_since": statements_since(record).count() if record is not None else 0,
        "may_state": reaches(role, Role.REVIEWER),
        "may_override": reaches(role, OVERRIDES_FLAGS),
    }


def _histories(request: HttpRequest, questions: list[AnsweredQuestion]) -> dict[str, ListPage]:
    """By field, where there are earlier statements: a page of them."""
    pages = {
        entry.question.field: listed(request, entry.earlier, HISTORY, name=f"history-{entry.question.name}")
        for entry in questions
        if entry.earlier
    }
    shown = Statement.objects.select_related("by").in_bulk([pk for page in pages.values() for pk in page])
    for page in pages.values():
        page.object_list = [shown[pk] for pk in page.object_list]
    return pages


def _item(entry: AnsweredQuestion, posted: Posted | None, history: ListPage | None) -> dict[str, Any]:
    """One question on the page, with what was sent for it and why it was refused."""
    turned = history is not None and history.number > 1
    sent = posted if posted is not None and posted.field == entry.question.field else None
    return {
        "state": entry,
        "form": (sent and sent.form) or StatementForm(entry.question, holds=entry.current),
        "history": history,
        "turned": turned,
        "open": turned or sent is not None or (entry.question.required and entry.current is None and posted is None),
        "reason": sent.reason if sent else "",
        "faults": sent.faults if sent else (),
    }


def _taken(request: HttpRequest, run: Run) -> Posted | None:
    """None when it was stored; else what was sent, with what is wrong with it."""
    action, field, actor = request.POST.get("action", ""), request.POST.get("field", ""), person(request)
    if action == "state" and field in BY_FIELD:
        form = StatementForm(BY_FIELD[field], request.POST)
        if form.is_valid():
            try:
                given = {**form.cleaned_data, "chosen": form.chosen}
                services.statement_make(run=run, actor=actor, field=field, **given)
            except ValidationError as error:
                form.add_error("text" if BY_FIELD[field].kind not in ("choice", "several") else None, error)
            else:
                messages.success(request, f"Stated: {BY_FIELD[field].label}.")
                return None
        return Posted(field, action, form)
    reason = request.POST.get("reason", "")
    try:
        if action == "withdraw":
            services.statement_withdraw(run=run, actor=actor, field=field, reason=reason)
            messages.success(request, "Withdrawn. What was stated stays in the history.")
        elif action == "override":
            services.flag_override(run=run, actor=actor, flag=field.partition(":")[2], reason=reason)
            messages.success(request, "The flag stays, with your reason next to it.")
        else:
            raise ValidationError("This form is not of this page. Load the page again.")
    except ValidationError as error:
        return Posted(field, action, reason=reason, faults=tuple(error.messages))
    return None


def flag_rows(run: Run) -> list[dict[str, Any]]:
    """Raised ones first; none while no step is trained. Their text is without the prefix that is shown as a badge."""
    if not run.step:
        return []
    statements = newest_statements(run)
    flags = watched(run, comparisons(suites_cached(run, run.parsed_config)))
    return [
        {
            "flag": flag,
            "field": override_field(flag.name),
            "override": statements.get(override_field(flag.name)),
            "text": flag.text.removeprefix("not computed: "),
            "label": FLAG_WORDS[flag.name],
        }
        for flag in sorted(flags, key=lambda flag: (not flag.raised, flag.raised is None))
    ]
