"""One form with all questions of a run, or with those that a project answers once for its runs: what holds, what the
person has typed and not saved, what was sent and refused."""

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from django import forms
from django.http import HttpRequest, QueryDict

from cohort.accounts.models import Project, Role, User, reaches
from cohort.base.formatting import natural
from cohort.records.fields import TITLES
from cohort.records.models import Audience, StandingAnswer, Stated, Statement, StatementDraft
from cohort.records.statements.answers import Given
from cohort.records.statements.drafts import Saved, draft_save, drafts_discard, drafts_of, given_of
from cohort.records.statements.edits import Edit, may_answer
from cohort.records.statements.questions import QUESTIONS, STANDING, Question
from cohort.records.statements.services import newest_statements
from cohort.records.statements.standing import earlier_answers, standing_answers
from cohort.runs.models import Run
from cohort.web.context import ListPage, listed

FORM = "answers"
"""Id of the form that all inputs belong to, wherever they are on the page."""
HISTORY = 20
"""Earlier answers of a question on one page of their list."""
_TEXT_LABELS = {
    "choice": "In words",
    "several": "In words",
    "text": "Answer",
    "link": "Link, or words",
    "number": "Number, and its source",
    "stages": "Stages",
}
_WINDOW = re.compile(r"[0-9a-f]{8}")


class AnswerForm(forms.Form):
    """Inputs `<question>-chosen` where it has choices, `-text`, `-audience`. It checks nothing: the services do."""

    audience = forms.ChoiceField(label="Who may see it", choices=Audience.choices)

    def __init__(self, question: Question, holds: Given, faults: Sequence[str] = ()) -> None:
        chosen = (holds.chosen or ("",))[0] if question.kind == "choice" else list(holds.chosen)
        initial = {"chosen": chosen, "text": holds.text, "audience": holds.audience}
        super().__init__(prefix=question.name, auto_id="%s", initial=initial)
        described = " ".join(
            f"{question.name}-{part}" for part, shown in (("fault", faults), ("help", True), ("draft", True)) if shown
        )
        attrs = {"form": FORM, "aria-describedby": described} | ({"aria-invalid": "true"} if faults else {})
        rows = 5 if question.kind in ("text", "stages") else 2
        self.fields["text"] = forms.CharField(
            label=_TEXT_LABELS[question.kind],
            required=not question.choices,
            widget=forms.Textarea(attrs={"rows": rows, "autocomplete": "off", **attrs}),
        )
        self.fields["audience"].widget.attrs |= {"form": FORM}
        if question.choices:
            widget = forms.RadioSelect if question.kind == "choice" else forms.CheckboxSelectMultiple
            kind = forms.ChoiceField if question.kind == "choice" else forms.MultipleChoiceField
            self.fields["chosen"] = kind(choices=question.choices, widget=widget(attrs={"form": FORM}))
        for bound in self.fields.values():
            bound.widget.use_required_attribute = lambda initial: False


@dataclass(frozen=True)
class Sent:
    """What a window sent for one question."""

    edit: Edit
    revision: int
    """The draft's, when the window was opened."""
    changed: bool
    """Whether it differs from the answer that was in force then, and from the one in force now: what a window sends
    after its answer was saved is no draft."""


@dataclass
class Row:
    """One question on the page."""

    question: Question
    may_answer: bool
    current: Stated | None
    draft: StatementDraft | None
    standing: StandingAnswer | None
    """The project's, where this is a run's form."""
    sent: Sent | None = None
    saved: Saved | None = None
    faults: Sequence[str] = ()
    reason: str = ""
    """For a withdrawal that was refused."""
    history: ListPage | None = None

    @property
    def held(self) -> Given:
        """The answer in force, as the form holds it."""
        if self.current is None:
            return Given.of(self.question)
        return Given.stated(self.question, self.current.value, self.current.text, self.current.audience)

    @property
    def shown(self) -> Given:
        return self.sent.edit.given if self.sent else given_of(self.draft) if self.draft else self.held

    @cached_property
    def form(self) -> AnswerForm:
        return AnswerForm(self.question, self.shown, self.faults)

    @property
    def uses(self) -> StandingAnswer | None:
        """The project's standing answer where what is in the form repeats it."""
        filled = self.sent.edit.standing if self.sent else self.draft.standing_id if self.draft else 0
        return self.standing if self.standing is not None and self.standing.pk == filled else None

    @property
    def overtaken(self) -> bool:
        """Whether somebody answered since the draft was begun."""
        return self.draft is not None and self.draft.since != (self.current.pk if self.current else 0)

    @property
    def turned(self) -> bool:
        return self.history is not None and self.history.number > 1

    @property
    def open(self) -> bool:
        waits = self.current is None and self.may_answer
        return bool(waits or self.draft or self.faults or self.turned or (self.sent and self.sent.changed))


@dataclass(frozen=True)
class Part:
    """The questions of one section of the record."""

    key: str
    rows: list[Row]
    answered: int
    total: int
    """With those that a filter leaves out."""

    @property
    def title(self) -> str:
        return TITLES[self.key]


@dataclass
class Sheet:
    project: Project
    run: Run | None
    """None: the project's standing answers."""
    user: User
    role: str
    show: str = "all"
    window: str = field(default_factory=lambda: secrets.token_hex(4))

    SHOWS = {"all": "All", "open": "Unanswered", "drafts": "Drafts"}  # noqa: RUF012

    @cached_property
    def current(self) -> Mapping[str, Stated]:
        return newest_statements(self.run) if self.run is not None else standing_answers(self.project)

    @cached_property
    def rows(self) -> list[Row]:
        """Every question, in the table's order."""
        drafts = {draft.field: draft for draft in self._drafts}
        standing = standing_answers(self.project) if self.run is not None else {}
        return [
            Row(
                question,
                may_answer(self.role, question),
                self.current.get(question.field),
                drafts.get(question.field),
                standing.get(question.field),
            )
            for question in (QUESTIONS if self.run is not None else STANDING)
        ]

    def row(self, field: str) -> Row | None:
        return next((row for row in self.rows if row.question.field == field), None)

    @property
    def _drafts(self) -> Sequence[StatementDraft]:
        return list(drafts_of(project=self.project, run=self.run, user=self.user))

    @property
    def parts(self) -> list[Part]:
        """By section, in the order of the record; in each, what is unanswered first."""
        parts = []
        for key in TITLES:
            rows = [row for row in self.rows if row.question.section == key]
            if not rows:
                continue
            shown = [row for row in rows if self._is_shown(row)]
            answered = sum(row.current is not None for row in rows)
            parts.append(Part(key, sorted(shown, key=lambda row: row.current is not None), answered, len(rows)))
        return parts

    def _is_shown(self, row: Row) -> bool:
        if row.faults or self.show == "all":
            return True
        return row.current is None if self.show == "open" else row.draft is not None

    @property
    def shown(self) -> int:
        return sum(len(part.rows) for part in self.parts)

    @property
    def answered(self) -> int:
        return sum(row.current is not None for row in self.rows)

    @property
    def total(self) -> int:
        return len(self.rows)

    @property
    def drafts(self) -> list[Row]:
        return [row for row in self.rows if row.draft is not None]

    @property
    def usable(self) -> list[Row]:
        """Unanswered questions that the project has a standing answer to and this person may answer."""
        return [row for row in self.rows if row.standing and row.may_answer and not row.current and not row.draft]

    @property
    def faulty(self) -> list[Row]:
        return [row for row in self.rows if row.faults]

    @property
    def may_state(self) -> bool:
        return reaches(self.role, Role.REVIEWER)

    def read_histories(self, request: HttpRequest) -> None:
        every: Any = Statement.objects.filter(run=self.run) if self.run else earlier_answers(self.project)
        ids: dict[str, list[int]] = {}
        for name, pk in every.order_by("-pk").values_list("field", "pk"):
            ids.setdefault(name, []).append(pk)
        for row in self.rows:
            earlier = [pk for pk in ids.get(row.question.field, ()) if row.current is None or pk != row.current.pk]
            if earlier:
                row.history = listed(request, earlier, HISTORY, name=f"history-{row.question.name}")
        pages = [row.history for row in self.rows if row.history is not None]
        shown = every.select_related("by").in_bulk([pk for page in pages for pk in page])
        for page in pages:
            page.object_list = [shown[pk] for pk in page.object_list]

    # ------------------------------------------------------------------ what a window sent

    def read(self, sent: QueryDict) -> None:
        """Put what was sent into its rows; questions that were not on the page, or that this person may not answer,
        stay as they are."""
        window = sent.get("window", "")
        self.window = window if _WINDOW.fullmatch(window) else self.window
        for row in self.rows:
            name = row.question.name
            if f"{name}-audience" not in sent or not self.may_state:
                continue
            given = Given.of(
                row.question,
                text=sent.get(f"{name}-text", ""),
                chosen=[choice for choice in sent.getlist(f"{name}-chosen") if choice],
                audience=sent.get(f"{name}-audience", ""),
            )
            since, base = natural(sent.get(f"{name}-since")) or 0, row.held
            if since != (row.current.pk if row.current else 0):
                base = self._as_of(row.question, since)
            standing = self._used(row, given, natural(sent.get(f"{name}-standing")) or 0)
            unanswered = since == 0 and given.empty
            row.sent = Sent(
                Edit(given, since, standing),
                revision=natural(sent.get(f"{name}-revision")) or 0,
                changed=given not in (base, row.held) and not unanswered,
            )

    def _used(self, row: Row, given: Given, standing: int) -> int:
        """The standing answer that the window was filled with; 0 where its words were changed there. One that the
        project has replaced since is for the service to refuse."""
        kept = row.standing
        if kept is not None and kept.pk == standing:
            return standing if Given.stated(row.question, kept.value, kept.text, kept.audience) == given else 0
        known = standing and earlier_answers(self.project).filter(pk=standing, field=row.question.field).exists()
        return standing if known else 0

    def _as_of(self, question: Question, since: int) -> Given:
        """The answer that was in force when the window was opened."""
        rows: Any = Statement.objects.filter(run=self.run) if self.run else earlier_answers(self.project)
        answer: Stated | None = rows.filter(pk=since, field=question.field).first()
        if answer is None:
            return Given.of(question)
        return Given.stated(question, answer.value, answer.text, answer.audience)

    @property
    def changed(self) -> dict[str, Edit]:
        """By field, what was sent and is not what was in force."""
        return {row.question.field: row.sent.edit for row in self.rows if row.sent and row.sent.changed}

    def keep_drafts(self) -> list[Row]:
        """Keep what was sent as drafts, and delete those that were typed back to what holds. Returns the rows whose
        text is too long for a draft."""
        too_long = []
        for row in self.rows:
            if row.sent is None:
                continue
            if not row.sent.changed:
                if row.draft is not None and self._own(row):
                    self.discard([row])
                continue
            row.saved = draft_save(
                project=self.project,
                run=self.run,
                user=self.user,
                field=row.question.field,
                edit=row.sent.edit,
                window=self.window,
                revision=row.sent.revision,
            )
            row.draft = row.saved.draft if row.saved else row.draft
            too_long += [] if row.saved else [row]
        return too_long

    def _own(self, row: Row) -> bool:
        """Whether no other window saved the draft since this one was opened."""
        return bool(
            row.draft and row.sent and (row.draft.window == self.window or row.draft.revision == row.sent.revision)
        )

    def discard(self, rows: Sequence[Row]) -> None:
        fields = [row.question.field for row in rows]
        drafts_discard(project=self.project, run=self.run, user=self.user, fields=fields)
        for row in rows:
            row.draft = None

    def discard_saved(self, fields: Sequence[str]) -> None:
        """After these were saved as answers."""
        self.discard(
            [row for row in self.rows if row.question.field in fields and (row.draft is None or self._own(row))]
        )

    def use(self, rows: Sequence[Row]) -> None:
        """Fill in the project's standing answers, as drafts."""
        for row in rows:
            kept = row.standing
            assert kept is not None, "the caller offers only those that there are"
            given = Given.stated(row.question, kept.value, kept.text, kept.audience)
            draft_save(
                project=self.project,
                run=self.run,
                user=self.user,
                field=row.question.field,
                edit=Edit(given, row.current.pk if row.current else 0, kept.pk),
                window=self.window,
                revision=row.draft.revision if row.draft else 0,
            )
