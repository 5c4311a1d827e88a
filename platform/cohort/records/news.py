"""What a further version of a record would hold that this one does not: statements, judgements and re-scores made
since."""

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cohort.evidence.canonical import dig, sha256
from cohort.evidence.judgements import Judgement, review_figures, write_judgements
from cohort.evidence.verify.opened import JUDGEMENTS
from cohort.records.answers import count, kappa_text, rate_text
from cohort.records.models import Record
from cohort.records.sections.rescored import agreement_text, finished_rescores, name_text, rescored
from cohort.records.statements.services import statements_since
from cohort.review.figures import judgements, newest_annotations
from cohort.runs.models import Run
from cohort.runs.transitions import ENDED


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


def _figure(figures: dict[str, Any], name: str) -> str:
    value = dig(figures, "verifier", name)
    return kappa_text(value) if name == "kappa" else rate_text(value)


@dataclass(frozen=True)
class News:
    record: Record

    @cached_property
    def statements(self) -> int:
        return statements_since(self.record).count()

    @cached_property
    def judgements(self) -> JudgementNews | None:
        """None where the current judgements are those that the record seals, and while the run goes on: what will be
        superseded then is not known."""
        run: Run = self.record.run
        if run.state not in ENDED or run.ends != self.record.end:
            return None
        annotations = newest_annotations(run)
        rows = judgements(annotations, run=run)
        document = self._document
        sealed = next((file["sha256"] for file in document["files"] if file["path"] == JUDGEMENTS), None)
        if sealed == _digest(rows):
            return None
        return JudgementNews(
            since=sum(annotation.at > self.record.sealed_at for annotation in annotations),
            before=document["sections"]["oversight"]["human_review"]["value"],
            after=review_figures(rows),
        )

    @cached_property
    def rescores(self) -> list[str]:
        """Of each re-score that finished since, its figures as a sentence; as with judgements, none while the run
        goes on."""
        run: Run = self.record.run
        if run.state not in ENDED or run.ends != self.record.end:
            return []
        sealed = {entry["rescore"] for entry in self._document["sections"]["oversight"]["rescores"]["value"] or ()}
        if not finished_rescores(run).exclude(pk__in=sealed).exists():
            return []
        new = [entry for entry in rescored(run) if entry["rescore"] not in sealed]
        return [f"{name_text(entry)}: {agreement_text(entry)}" for entry in new]

    @cached_property
    def _document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.record.document)
        return document

    def __bool__(self) -> bool:
        return bool(self.statements or self.judgements or self.rescores)


def _digest(rows: list[Judgement]) -> str | None:
    """SHA-256 of the file that a version sealed now would hold; None where it would have none."""
    return sha256(b"".join(write_judgements(rows))) if rows else None
