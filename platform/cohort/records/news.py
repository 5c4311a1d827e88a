"""What a further version of a record would hold that this one does not: statements, what the base model's page states,
overrides, answered alerts, judgements, re-scores and imported results made since. Each answer is worked out as sealing
works it out, and is news where it differs.

Incidents, feedback, monitoring notes and sign-offs are entries of the record that they were added to, which stays as it
is: they make no further version.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cohort.catalog.models import BaseModel
from cohort.catalog.pretraining import ON_ITS_PAGE, original_of, stated_original
from cohort.evidence.canonical import dig, sha256
from cohort.evidence.judgements import Judgement, review_figures, write_judgements
from cohort.evidence.plain_text import counted
from cohort.evidence.verify.opened import JUDGEMENTS
from cohort.records.answers import count, kappa_text, moment, rate_text
from cohort.records.fields import FIELDS, TITLES, field_facts
from cohort.records.models import Record, Statement
from cohort.records.schema_types import AUDIENCE_WORDS, Answer
from cohort.records.sections.behaviour import imported_answer
from cohort.records.sections.compute import UNKNOWN, base_share_text, compute_text, indicated
from cohort.records.sections.overrides import alerts_answer, alerts_of, overrides_added, overrides_answer
from cohort.records.sections.oversight import evaluation_file, review_text
from cohort.records.sections.rescored import finished_rescores, rescored, rescores_answer
from cohort.records.statements.questions import BY_FIELD, OVERRIDES, is_override_field
from cohort.records.statements.services import newest_statements, statements_since
from cohort.review.figures import judgements, newest_annotations
from cohort.runs.models import ImportedResult, Run
from cohort.runs.transitions import ENDED


@dataclass(frozen=True)
class Change:
    """One field that a further version would state otherwise."""

    path: str
    before: str
    """As this version states it."""
    after: str
    why: str
    """Who or what changed it."""
    link: str = "run_statements"
    """Name of the page where that was done, which takes the project and the run."""
    details: list[tuple[str, str, str]] = field(default_factory=list)
    """(figure, in this version, now) of what the field holds."""

    @property
    def label(self) -> str:
        return field_facts(self.path).label

    @property
    def section(self) -> str:
        return TITLES[self.path.partition(".")[0]]


@dataclass(frozen=True)
class JudgementNews:
    since: int
    """Judgements of reviewers that are newer than the version."""
    before: dict[str, Any] | None
    """Figures of `evidence.judgements` in the version; None where nothing was judged."""
    after: dict[str, Any]
    """The figures as they are now."""

    @property
    def changes(self) -> list[tuple[str, str, str]]:
        """(figure, in the version, now), of those that differ in words."""
        before, after = self.before or _NONE, self.after
        rows = [("judged completions", count(before["samples"]), count(after["samples"]))]
        rows += [(words, _figure(before, name), _figure(after, name)) for name, words in _FIGURES.items()]
        return [row for row in rows if row[1] != row[2]]


_NONE: dict[str, Any] = review_figures([])
_FIGURES = {
    "agreement": "agreement",
    "false_positives": "false positives",
    "false_negatives": "false negatives",
    "kappa": "κ",
}
_ORDER = [f"{section}.{name}" for section, part in FIELDS.items() for name in part]


def _figure(figures: dict[str, Any], name: str) -> str:
    value = dig(figures, "verifier", name)
    return kappa_text(value) if name == "kappa" else rate_text(value)


@dataclass(frozen=True)
class News:
    record: Record

    @cached_property
    def changes(self) -> list[Change]:
        """In the order of the record."""
        rows = [*self._statements(), *self._base_model(), *self._oversight(), *self._imported()]
        return sorted(rows, key=lambda change: _ORDER.index(change.path))

    def __bool__(self) -> bool:
        return bool(self.changes)

    # ------------------------------------------------------------------ statements

    def _statements(self) -> Iterator[Change]:
        """Of each question whose answer in force is another than at the seal."""
        touched = self._touched & BY_FIELD.keys()
        if not touched:
            return
        since = statements_since(self.record)
        earlier = Statement.objects.filter(run=self.record.run_id, field__in=touched).exclude(pk__in=since.values("pk"))
        rows = earlier.order_by("field", "-pk").distinct("field")
        sealed = {statement.field: statement for statement in rows if statement.in_force}
        now = newest_statements(self.record.run)
        last = {row.field: row for row in since.select_related("by").order_by("pk")}
        for path in touched:
            before, after = sealed.get(path), now.get(path)
            if before == after:
                continue
            yield self._stated(path, before, after, last[path])
            if path == "reward.disclosure":
                yield from self._disclosed(after)

    @cached_property
    def _touched(self) -> set[str]:
        """Fields of statements made since."""
        return set(statements_since(self.record).values_list("field", flat=True))

    def _stated(self, path: str, before: Statement | None, after: Statement | None, last: Statement) -> Change:
        entry = self._entry(path)
        joined = BY_FIELD[path].joined
        if after is None:
            text = "what was measured alone" if joined else "not stated"
            why = f"withdrawn by {last.by.username}, {moment(last.at)}: {last.reason}"
        else:
            text = f"{after.text} (joined with what was measured)" if joined else after.text
            why = f"stated by {after.by.username}, {moment(after.at)}"
            why += ", the project's standing answer" if after.standing_id else ""
        audience = after.audience if after is not None else field_facts(path).audience
        if audience == entry["audience"]:
            return Change(path, entry["text"], text, why)
        return Change(path, f"{entry['text']} · {_for(entry['audience'])}", f"{text} · {_for(audience)}", why)

    def _disclosed(self, after: Statement | None) -> Iterator[Change]:
        """Who sees the specification follows from what was stated of it."""
        withheld = after is not None and (after.value or {}).get("choice") == "withheld"
        audience = "downstream" if withheld else field_facts("reward.verifier").audience
        entry = self._entry("reward.verifier")
        if entry["audience"] != audience:
            why = "follows from who may see the specification"
            yield Change("reward.verifier", _for(entry["audience"]), _for(audience), why)

    # ------------------------------------------------------------------ the base model's page

    def _base_model(self) -> Iterator[Change]:
        """What the base model's training took, as its page states it, where nothing is stated of the run. New numbers
        of its makers come with another release of the platform and are no news."""
        path = "budget.base_share"
        if not self._ended or path in self._touched or path in newest_statements(self.record.run):
            return
        model, entry = self._original_model, self._entry(path)
        stated, note = stated_original(model), f"{entry['note']}\n"
        if note.startswith(f"{stated.words}\n") if stated is not None else ON_ITS_PAGE not in note:
            return
        original, used = original_of(model), self._entry("budget.compute")
        by = f"{stated.source}, " if stated is not None else "withdrawn "
        why = f"{by}{ON_ITS_PAGE}"
        spent = dig(used["value"], "flop_estimate")
        after = UNKNOWN if original is None else base_share_text(original, spent)
        yield Change(path, entry["text"], after, why, "run_detail")
        if spent is not None:
            text = compute_text(spent, indicated(dig(used["value"], "lineage", "flop"), original))
            if text != used["text"]:
                yield Change("budget.compute", used["text"], text, why, "run_detail")

    @property
    def _original_model(self) -> BaseModel:
        """What the oldest run of the record's lineage began from."""
        earlier = self._entry("subject.lineage")["value"]["earlier_runs"]
        run_id = earlier[-1]["run"] if earlier else self.record.run_id
        return Run.objects.select_related("base_model").get(pk=run_id).base_model

    # ------------------------------------------------------------------ what people and second rewards found

    @property
    def _ended(self) -> bool:
        """None of what follows is news while the run continues: what will be superseded then is not known."""
        run: Run = self.record.run
        return run.state in ENDED and run.ends == self.record.end

    def _oversight(self) -> Iterator[Change]:
        if not self._ended:
            return
        yield from self._overrides()
        yield from self._alerts()
        if (news := self.judgements) is not None:
            why = f"{counted(news.since, 'judgement')} since" if news.since else "judgements were withdrawn or replaced"
            after = review_text(news.after) if news.after["samples"] else "no review is recorded"
            path = "oversight.human_review"
            yield Change(path, self._entry(path)["text"], after, why, "run_review", news.changes)
        if self.rescores:
            entries = rescored(self.record.run)
            now = rescores_answer(entries, samples_kept=sum(entry["samples"] for entry in entries))
            why = f"{counted(len(self.rescores), 're-score')} finished since"
            yield self._change("oversight.rescores", now, why, "run_rescores")

    def _overrides(self) -> Iterator[Change]:
        run: Run = self.record.run
        flags = self._entry("oversight.flags")["value"] or []
        raised = {flag["monitor"]: flag["raised"] for flag in flags}
        added = overrides_added(run)
        entry = self._entry(OVERRIDES)
        sealed = {override.get("entry") for override in entry["value"] or ()} - {None}
        if not any(map(is_override_field, self._touched)) and sealed == {row.pk for row in added}:
            return
        statements = newest_statements(run)
        now = overrides_answer(raised, statements, added)
        if (entry["value"] or []) == (now.value or []):
            return
        made = [(row.at, row.by.username) for name, row in statements.items() if is_override_field(name)]
        made += [(row.at, row.by.username) for row in added]
        why = f"by {max(made)[1]}, {moment(max(made)[0])}" if made else "withdrawn since"
        yield self._change(OVERRIDES, now, why, "record_detail" if added else "run_statements")

    def _alerts(self) -> Iterator[Change]:
        now, path = alerts_answer(alerts_of(self.record.run)), "oversight.alerts"
        if dig(self._entry(path)["value"], "answered") != dig(now.value, "answered"):
            yield self._change(path, now, "acknowledged or closed since", "run_detail")

    @cached_property
    def judgements(self) -> JudgementNews | None:
        """None where the current judgements are those that the record seals, and while the run continues."""
        if not self._ended or not self.record.run.has_samples:
            return None
        annotations = newest_annotations(self.record.run)
        rows = judgements(annotations, run=self.record.run)
        sealed = next((file["sha256"] for file in self._document["files"] if file["path"] == JUDGEMENTS), None)
        if sealed == _digest(rows):
            return None
        return JudgementNews(
            since=sum(annotation.at > self.record.sealed_at for annotation in annotations),
            before=self._entry("oversight.human_review")["value"],
            after=review_figures(rows),
        )

    @cached_property
    def rescores(self) -> list[int]:
        """Ids of those that finished since; as with judgements, none while the run continues."""
        if not self._ended:
            return []
        sealed = {entry["rescore"] for entry in self._entry("oversight.rescores")["value"] or ()}
        return list(finished_rescores(self.record.run).exclude(pk__in=sealed).values_list("pk", flat=True))

    # ------------------------------------------------------------------ results of other tools

    def _imported(self) -> Iterator[Change]:
        if not self._ended:
            return
        rows = list(ImportedResult.objects.filter(run=self.record.run_id).select_related("by"))
        entry = self._entry("behaviour.imported")
        new = rows[len(entry["value"] or ()) :]  # rows are only added
        if not new:
            return
        by = ", ".join(dict.fromkeys(row.by.username for row in new))
        why = f"{counted(len(new), 'result')} imported by {by} since"
        yield self._change("behaviour.imported", imported_answer(rows), why, "run_evaluations")
        files = self._entry("handling.evaluation_file")
        after = evaluation_file([name for name in files["value"] or () if "imported" not in name], imported=True)
        if after.text != files["text"]:
            yield self._change("handling.evaluation_file", after, why, "run_evaluations")

    # ------------------------------------------------------------------ the version

    def _change(self, path: str, now: Answer, why: str, link: str) -> Change:
        return Change(path, self._entry(path)["text"], now.text, why, link)

    def _entry(self, path: str) -> dict[str, Any]:
        section, _, name = path.partition(".")
        entry: dict[str, Any] = self._document["sections"][section][name]
        return entry

    @cached_property
    def _document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.record.document)
        return document


def _for(audience: str) -> str:
    return f"for {AUDIENCE_WORDS[audience]}"  # type: ignore[index]


def _digest(rows: list[Judgement]) -> str | None:
    """SHA-256 of the file that a version sealed now would hold; None where it would have none."""
    return sha256(b"".join(write_judgements(rows))) if rows else None
