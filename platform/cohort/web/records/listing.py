"""The list of a project's records: filtered, a page at a time, without reading whole documents; the record of a run."""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet, TextField
from django.db.models.expressions import RawSQL

from cohort.accounts.models import Project
from cohort.base.formatting import minus, natural
from cohort.base.storable import storable
from cohort.records.after_seal.rules import Standing, State
from cohort.records.models import EntryKind, Record, RecordEntry
from cohort.runs.models import Run
from cohort.runs.transitions import WITH_A_RECORD
from cohort.web.after_seal.timeline import standings

PAGE = 50
STATES = {"succeeded": "succeeded", "failed": "failed", "cancelled": "cancelled"}
VERDICTS = {
    "regressed": ("regressed", "is-wrong"),
    "undecided": ("undecided", "is-suspect"),
    "not testable": ("not testable", "is-suspect"),
    "worse within margin": ("worse within margin", "is-suspect"),
    "better": ("better", "is-right"),
    "no change": ("no change beyond the margin", ""),
    "not worse": ("not worse", ""),
    "not comparable": ("not comparable", "is-suspect"),
    "nothing scored": ("nothing scored", "is-suspect"),
    "evaluated once": ("evaluated once only", ""),
    "none": ("not evaluated", ""),
}
"""How a verdict begins → (its words in the filter, class of its badge)."""

# Each reads a document once: a cast of the whole, and one way into it. OFFSET 0 keeps PostgreSQL from repeating it
# for every use.
_STATE = """("records_record"."document"::json #>> '{head,state}')"""
_SUITES = """(SELECT "records_record"."document"::json #> '{sections,behaviour,performance,value}' AS found
    OFFSET 0) AS read,
    json_array_elements(CASE json_typeof(read.found) WHEN 'array' THEN read.found ELSE '[]'::json END) AS suite"""
_WITH_VERDICT = f"EXISTS (SELECT 1 FROM {_SUITES} WHERE starts_with(suite ->> 'verdict', %s))"
_WITHOUT_ANY = f"NOT EXISTS (SELECT 1 FROM {_SUITES})"
_SHORT = f"""(SELECT json_agg(json_build_object(
    'suite', suite -> 'suite', 'verdict', suite -> 'verdict',
    'before', suite #> '{{before,share}}', 'after', suite #> '{{after,share}}'
))::text FROM {_SUITES})"""


@dataclass(frozen=True)
class RecordRow:
    record: Record
    state: str
    standing: Standing
    suites: list[dict[str, Any]]
    """Of each: suite, verdict, and its share before and after (0 to 1, or None)."""
    newest: bool
    """Whether no later record of the run supersedes it."""

    @property
    def first(self) -> dict[str, Any] | None:
        return self.suites[0] if self.suites else None

    @property
    def before(self) -> str:
        return _percent(self.first["before"] if self.first else None)

    @property
    def after(self) -> str:
        return _percent(self.first["after"] if self.first else None)

    @property
    def verdict(self) -> tuple[str, str] | None:
        """(words, class of the badge) of the first suite."""
        if self.first is None:
            return None
        kind = _kind(self.first["verdict"])
        return self.first["verdict"], VERDICTS[kind][1] if kind else ""

    @property
    def others(self) -> list[tuple[str, str]]:
        """Verdicts of the other suites that a reader must not miss: (`2 regressed`, class of the badge)."""
        counts = Counter(_kind(suite["verdict"]) for suite in self.suites[1:])
        return [(f"{counts[kind]} {VERDICTS[kind][0]}", VERDICTS[kind][1]) for kind in _GRAVE if counts[kind]]


_GRAVE = ("regressed", "undecided", "not testable", "worse within margin", "not comparable", "nothing scored")


def record_of(run: Run) -> Record | None:
    """The newest record of the end that the run is at; None while it waits or runs again, and until it is sealed."""
    if run.state not in WITH_A_RECORD:
        return None
    return Record.objects.filter(run=run, end=run.ends).order_by("-version").defer("document").first()


def record_page(project: Project, params: Mapping[str, str]) -> dict[str, Any]:
    """Newest first, ending before the record with the id `before`; `following` is that of the next page. `params` are
    those of the page's address; an unknown choice counts as not made."""
    before = natural(params.get("before"))
    known: dict[str, Collection[str]] = {"state": STATES, "verdict": VERDICTS, "signed": State.values}
    criteria = {name: params[name] if params.get(name) in values else "" for name, values in known.items()}
    criteria["text"] = storable(params.get("q", "").strip())
    every = Record.objects.filter(run__project=project)
    total = every.count()
    selected, matching = every, total
    if any(criteria.values()):
        fitting = list(_filtered(every, project, criteria).values_list("pk", flat=True))  # documents are read once
        selected, matching = every.filter(pk__in=fitting), len(fitting)
    if before is not None:
        selected = selected.filter(pk__lt=before)
    # First the ids, then the contents: otherwise PostgreSQL would read every document before it sorts.
    chosen = list(selected.order_by("-pk").values_list("pk", flat=True)[: PAGE + 1])
    rows = record_rows(chosen[:PAGE])
    following = chosen[PAGE - 1] if len(chosen) > PAGE else None
    shown_of = {"matching": matching, "total": total, "following": following}
    return {"rows": rows, "filter": criteria, "filtered": any(criteria.values()), **shown_of}


def record_rows(pks: Sequence[int]) -> list[RecordRow]:
    """These records, newest first, in a fixed number of queries."""
    read = Record.objects.filter(pk__in=pks).annotate(sealed_state=_text(_STATE), suites=_text(_SHORT))
    records = list(read.defer("document").select_related("run").order_by("-pk"))
    status = standings([record.pk for record in records])
    runs = Record.objects.filter(run__in=[record.run_id for record in records])
    newest = set(runs.order_by("run_id", "-end", "-version").distinct("run_id").values_list("pk", flat=True))
    return [
        RecordRow(
            record, record.sealed_state, status[record.pk], json.loads(record.suites or "[]"), record.pk in newest
        )
        for record in records
    ]


def _text(sql: str) -> RawSQL:
    return RawSQL(sql, [], output_field=TextField())


def _filtered(records: QuerySet[Record], project: Project, criteria: Mapping[str, str]) -> QuerySet[Record]:
    if text := criteria["text"]:
        records = records.filter(run__name__icontains=text)
    if state := criteria["state"]:
        records = records.annotate(recorded_state=_text(_STATE)).filter(recorded_state=state)
    if verdict := criteria["verdict"]:
        where, given = (_WITHOUT_ANY, []) if verdict == "none" else (_WITH_VERDICT, [verdict])
        records = records.extra(where=[where], params=given)
    if signed := criteria["signed"]:
        entries = RecordEntry.objects.filter(
            record__run__project=project, kind__in=[EntryKind.SIGN_OFF, EntryKind.REVOKED]
        )
        states = standings(entries.values_list("record_id", flat=True).distinct())
        without = signed == State.NONE  # the records that nobody has signed have no entries
        pks = [pk for pk, standing in states.items() if (standing.state != signed) == without]
        records = records.exclude(pk__in=pks) if without else records.filter(pk__in=pks)
    return records


def _kind(verdict: str) -> str:
    return next((kind for kind in VERDICTS if verdict.startswith(kind)), "")


def _percent(share: float | None) -> str:
    return "–" if share is None else minus(f"{100 * share:.1f} %")
