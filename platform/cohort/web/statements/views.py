"""Pages of what only a person can state: of a run, and a project's standing answers. Fetch, authorise, call, render.

Both are one form. `action` names the button: save, draft, discard, use, withdraw, override; what a button is for
follows after a colon. Whatever was typed is kept as a draft by each of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from cohort.accounts.models import Role, reaches
from cohort.evidence.plain_text import counted
from cohort.records.statements import services, standing
from cohort.records.statements.questions import is_override_field
from cohort.records.statements.services import statements_since
from cohort.web.access import OVERRIDES_FLAGS, form_page, project_for, role_in, run_for
from cohort.web.accounts.views import person
from cohort.web.records.listing import record_of
from cohort.web.statements.flags import flag_rows
from cohort.web.statements.sheet import Row, Sheet

_NOT_OURS = "This form is not of this page. Load the page again."


@dataclass
class Outcome:
    """Of a button. `at`: the part of the page to show; faults: what was refused, outside of any question."""

    at: str = ""
    faults: list[str] = field(default_factory=list)
    refused: bool = False
    flag: str = ""
    reason: str = ""


@form_page
def run_statements(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """Every question with its answer; a reviewer answers and withdraws, an operator overrides a flag too."""
    run = run_for(request, slug, run_id)
    action, _, subject = request.POST.get("action", "").partition(":")
    if request.method == "POST":
        on_flag = action == "override" or is_override_field(subject)
        run_for(request, slug, run_id, at_least=OVERRIDES_FLAGS if on_flag else Role.REVIEWER)
    sheet = _sheet(request, Sheet(run.project, run, person(request), role_in(run.project, person(request))))
    record = record_of(run)

    def context() -> dict[str, Any]:
        return {
            "run": run,
            "flags": flag_rows(run),
            "record": record,
            "stated_since": statements_since(record).count() if record is not None else 0,
            "may_override": reaches(sheet.role, OVERRIDES_FLAGS),
        }

    return _answered(request, sheet, "statements/statements.html", context)


@form_page
def standing_page(request: HttpRequest, slug: str) -> HttpResponse:
    """What the project answers alike for its runs, with age and author; reviewers keep it."""
    project = project_for(request, slug, at_least=Role.REVIEWER if request.method == "POST" else Role.VIEWER)
    sheet = _sheet(request, Sheet(project, None, person(request), role_in(project, person(request))))
    return _answered(request, sheet, "statements/standing.html", dict)


def _sheet(request: HttpRequest, sheet: Sheet) -> Sheet:
    show = request.GET.get("show", "")
    sheet.show = show if show in Sheet.SHOWS else "all"
    return sheet


def _answered(request: HttpRequest, sheet: Sheet, template: str, more: Callable[[], dict[str, Any]]) -> HttpResponse:
    outcome = Outcome()
    if request.method == "POST":
        sheet.read(request.POST)
        too_long = sheet.keep_drafts()
        if request.POST.get("action") == "draft" and request.htmx:  # type: ignore[attr-defined]
            return render(request, "statements/_drafts.html", {"sheet": sheet, "too_long": too_long})
        outcome = _done(request, sheet, too_long)
        if not outcome.refused:
            address = request.get_full_path().partition("#")[0]
            return redirect(f"{address}#{outcome.at}" if outcome.at else address)
    sheet.read_histories(request)
    context = {"sheet": sheet, "outcome": outcome, **more()}
    return render(request, template, context, status=422 if outcome.refused else 200)


def _done(request: HttpRequest, sheet: Sheet, too_long: list[Row]) -> Outcome:
    action, _, subject = request.POST.get("action", "").partition(":")
    row = sheet.row(subject)
    at = row.question.name if row else ""
    for each in sheet.rows:
        if each.saved and (replaced := each.saved.replaced):
            messages.warning(
                request,
                f"{each.question.label}: another window had saved a draft meanwhile; what was here has taken its "
                f"place. It was: {', '.join(replaced.chosen)} “{replaced.text}”",
            )
    match action:
        case "save":
            return _save(request, sheet)
        case "draft":
            for each in too_long:
                each.faults = ["This is too long for a draft. It is in this page alone: shorten it before you leave."]
            return Outcome(refused=bool(too_long))
        case "discard" if subject == "all" or row is not None:
            sheet.discard(sheet.drafts if row is None else [row])
            messages.success(request, "The draft is discarded." if row else "The drafts are discarded.")
            return Outcome(at)
        case "use" if subject == "all" or (row is not None and row.standing is not None):
            used = sheet.usable if row is None else [row]
            sheet.use(used)
            answers = counted(len(used), "standing answer")
            messages.success(request, f"{answers} of the project filled in as drafts. Read, then save.")
            return Outcome(at)
        case "withdraw" | "override":
            return _withdraw_or_override(request, sheet, action, subject, row)
    return Outcome(faults=[_NOT_OURS], refused=True)


def _save(request: HttpRequest, sheet: Sheet) -> Outcome:
    """Of all that was changed, everything or nothing."""
    edits = sheet.changed
    if not edits:
        return Outcome(faults=["Nothing was changed, so there is nothing to save."], refused=True)
    try:
        if sheet.run is not None:
            services.statements_save(run=sheet.run, actor=sheet.user, edits=edits)
        else:
            standing.standing_save(project=sheet.project, actor=sheet.user, edits=edits)
    except ValidationError as error:
        faults = error.message_dict
        for row in sheet.rows:
            row.faults = faults.get(row.question.field, ())
        return Outcome(refused=True)
    sheet.discard_saved(list(edits))
    messages.success(request, f"{counted(len(edits), 'answer')} saved.")
    return Outcome()


def _withdraw_or_override(request: HttpRequest, sheet: Sheet, action: str, subject: str, row: Row | None) -> Outcome:
    reason = request.POST.get(f"{row.question.name}-reason" if row else "reason", "")
    at = row.question.name if row else "oversight-overrides"
    try:
        if sheet.run is None:
            standing.standing_withdraw(project=sheet.project, actor=sheet.user, field=subject, reason=reason)
        elif action == "withdraw":
            services.statement_withdraw(run=sheet.run, actor=sheet.user, field=subject, reason=reason)
        else:
            flag = subject.partition(":")[2]
            services.flag_override(run=sheet.run, actor=sheet.user, flag=flag, reason=reason)
    except ValidationError as error:
        if row is None:
            return Outcome(at, error.messages, refused=True, flag=subject, reason=reason)
        row.faults, row.reason = error.messages, reason
        return Outcome(at, refused=True)
    done = (
        "The flag stays, with your reason next to it."
        if action == "override"
        else ("Withdrawn. What was stated stays in the history.")
    )
    messages.success(request, done)
    return Outcome(at)
