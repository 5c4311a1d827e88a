"""What is done to records: seal one, seal a further version of one, issue its cards again. Nothing ever changes or
deletes one."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.db.models import Max

from cohort.accounts.models import User
from cohort.audit import services as audit
from cohort.audit.entries import clock
from cohort.base import artifacts
from cohort.base.scratch import scratch_folder
from cohort.base.storable import Refused, storable
from cohort.evidence.canonical import canonical
from cohort.records.answers import verdict_in_short
from cohort.records.cards.issue import CardRefused, Contents, Issue, Issued, issue_cards, read_contents
from cohort.records.cards.pack import Pack
from cohort.records.cards.reissue import reissue_contents
from cohort.records.facts import Facts, State, collect
from cohort.records.models import Card, Record, Statement
from cohort.records.news import News
from cohort.records.schema import SCHEMA, Document
from cohort.records.traces.tree import redactions_awaited
from cohort.runs.dispatch import seal_on_commit, status_on_commit
from cohort.runs.models import Run, RunEvent, RunState
from cohort.runs.run_values import verdict_values_store
from cohort.runs.services import run_sealed
from cohort.runs.transitions import run_event, run_lock

_STATES: dict[str, State] = {
    RunState.SEALING: "succeeded",
    RunState.SUCCEEDED: "succeeded",
    RunState.FAILED: "failed",
    RunState.CANCELLED: "cancelled",
}
log = logging.getLogger(__name__)
_WITH = (
    "project",
    "base_model",
    "dataset",
    "eval_dataset",
    "verifier_version__verifier",
    "eval_verifier_version__verifier",
    "created_by",
    "cloned_from",
)


class NotEnded(Refused, code="not_ended"):
    """The run has not ended; there is nothing to seal yet."""


class BeingSealed(Refused, code="being_sealed"):
    """Another process seals this record at this moment."""


class NothingNew(Refused, code="nothing_new"):
    """Nothing that a record holds has changed since the newest version was sealed."""


def record_seal(*, run: Run, reason: str = "", actor: User | None = None) -> Record:
    """Seal the record of an ended run and store a card for each audience; an end that has one keeps it. A run that only
    waited for it has then succeeded. Records of earlier ends stay as they are.

    With a `reason`, a further version is sealed of an end that has a record: it holds all that `News` lists, and
    supersedes the version before without changing it.

    The run is not locked while it is read, which may take a minute. If it continues meanwhile, nothing is stored; the
    audit log may then hold an entry without a record. Call it outside of any transaction.

    Raises NotEnded, BeingSealed, NothingNew, CardTooLarge, CardRefused, KeyFault, LogFault and KeysChanged.
    """
    with _alone(run.pk):
        run = Run.objects.select_related(*_WITH).get(pk=run.pk)
        if run.state not in _STATES:
            raise NotEnded(f"run {run.pk} is {run.get_state_display().lower()}; a record is sealed when it has ended")
        before = newest(run)
        if before is not None and not reason.strip():
            run_sealed(run=run)  # the process that stored it may have ended before updating the run
            return before
        if before is not None and not News(before):
            raise NothingNew(f"nothing that the record holds has changed since version {before.version} was sealed")
        version = 1 if before is None else before.version + 1
        _left_over_removed(run.pk)
        # First: statements made while the facts are read belong to the next version.
        through = Statement.objects.filter(run=run).aggregate(last=Max("pk"))["last"] or 0
        audit.integrate()  # what was registered before the first step has its index
        facts = collect(run, state=_STATES[run.state])
        redactions_awaited(run.pk)  # those that begin after the facts' time need cards of their own
        issue = Issue("record_sealed", audit.who(actor), run.project, 1, reason.strip())
        with scratch_folder("cards") as folder, Pack(folder / "pack") as pack:
            contents = read_contents(facts, pack, version=version)
            try:
                issued = issue_cards(pack, contents, issue)
            except CardRefused:
                _require_as_read(facts, Run.objects.get(pk=run.pk))  # of one that continued, no card fits
                raise
        try:
            return _store(facts, contents, before, issue, issued, through)
        except BaseException:  # whatever it was, cards must not stay without their record; it is raised again below
            kept = newest(run, version=version)
            if kept is None or not kept.cards.filter(artifact__in=issued.keys).exists():
                issued.remove()
            if kept is None:
                raise
            return kept  # the lock ends with its connection, and then another may come first


def newest(run: Run, *, version: int | None = None) -> Record | None:
    """The newest version of the record of the end that the run is at, or the given one."""
    records = Record.objects.filter(run=run, end=run.ends)
    return (records if version is None else records.filter(version=version)).order_by("-version").first()


@dataclass(frozen=True)
class VersionRequest:
    """A requested further version."""

    by: User | None
    reason: str


@transaction.atomic
def version_request(*, run: Run, actor: User, reason: str) -> None:
    """Request a further version of the newest record, with all that `News` lists; the sealing
    worker makes it.

    Raises ValidationError without a reason, when the run has no record or continues, and when there is nothing new.
    """
    run_lock(run=run)
    reason = audit.reason_checked(storable(reason.strip()))
    before = newest(run) if run.state in _STATES else None
    if not reason:
        raise ValidationError("Say why another version is sealed: the reason is kept in the audit log and on the card.")
    if before is None:
        raise ValidationError("This run has no record of its end yet, so there is nothing to seal another version of.")
    if not News(before):
        raise ValidationError(f"Nothing that the record holds has changed since version {before.version} was sealed.")
    run_event(
        run=run,
        actor=audit.who(actor),
        kind="version_requested",
        message=reason,
        data={"after": before.version, "by": actor.pk},
    )
    audit.log(
        actor=audit.who(actor),
        kind="record_version_requested",
        subject=f"record:{before.pk}",
        project=run.project,
        reason=reason,
    )
    seal_on_commit(run_id=run.pk)


def version_pending(run: Run) -> VersionRequest | None:
    """The further version that was requested and is not sealed yet."""
    before = newest(run)
    if before is None or run.state not in _STATES:
        return None
    request = RunEvent.objects.filter(run=run, kind="version_requested").order_by("-pk").first()
    sealed = RunEvent.objects.filter(run=run, kind="sealed").order_by("-pk").first()
    if request is None or (sealed is not None and sealed.pk > request.pk) or not News(before):
        return None
    return VersionRequest(User.objects.filter(pk=request.data["by"]).first(), request.message)


def record_reissue(*, record: Record, reason: str, actor: User | None = None) -> list[Card]:
    """Issue the cards of a record again, for every audience: the same seal, the same sealed files, a new attestation,
    and traces without the samples that were redacted since. The earlier cards' rows stay; their files are for the
    caller to delete. Call it outside of any transaction.

    Raises BeingSealed, NotToBeIssued, CardTooLarge, CardRefused, KeyFault, LogFault and KeysChanged.
    """
    with _alone(record.run_id):
        record = Record.objects.select_related("run__project").get(pk=record.pk)
        moment = clock()  # before the samples are read: later redactions need another issue
        redactions_awaited(record.run_id)
        _left_over_removed(record.run_id)
        last = record.card()
        issue = Issue("cards_reissued", audit.who(actor), record.run.project, last.issue + 1, reason.strip())
        with scratch_folder("cards") as folder, Pack(folder / "pack") as pack:
            contents = reissue_contents(record, last, pack)
            issued = issue_cards(pack, contents, issue)
        try:
            with transaction.atomic():
                run_event(
                    run=record.run,
                    actor=audit.who(actor),
                    kind="cards_reissued",
                    message=f"Cards issued again: {issue.reason}",
                    data={"seal": record.seal, "issue": issue.number},
                )
                status_on_commit(record_id=record.pk)
                return _card_rows(record, issue, issued, moment)
        except BaseException:  # whatever it was, cards must not stay without their rows; it is raised again below
            kept = list(record.cards.filter(artifact__in=issued.keys))
            if not kept:
                issued.remove()
                raise
            return kept  # the rows are stored; only the acknowledgement was lost


@transaction.atomic
def _store(
    facts: Facts, contents: Contents, before: Record | None, issue: Issue, issued: Issued, through: int
) -> Record:
    run = facts.run
    _require_as_read(facts, run_lock(run=Run.objects.get(pk=run.pk)))
    content = canonical(dict(contents.document))
    sealed = Document.model_validate_json(content)
    stated, total = sealed.counts()
    record = Record.objects.create(
        run=run,
        end=run.ends,
        version=sealed.head.version,
        supersedes=before,
        fence=run.fence,
        schema_version=SCHEMA,
        document=content.decode(),
        seal=sealed.seal,
        record_root=sealed.record_root,
        run_root=contents.run_root,
        fields_stated=stated,
        fields_total=total,
        sealed_at=facts.sealed_at,
    )
    _card_rows(record, issue, issued, facts.sealed_at)
    verdict_values_store(run=run, verdicts={each.suite: verdict_in_short(each) for each in facts.comparisons})
    for earlier in Record.objects.filter(run=run).only("pk"):  # of which this one is a later version or end
        status_on_commit(record_id=earlier.pk)
    what = "Record sealed" if record.version == 1 else f"Version {record.version} of the record sealed"
    RunEvent.objects.create(
        run=run,
        at=facts.sealed_at,
        actor=issue.actor,
        kind="sealed",
        message=f"{what}, {stated} of {total} fields stated" + (f": {issue.reason}" if issue.reason else ""),
        data={
            "seal": sealed.seal,
            "version": record.version,
            "cards": {audience: stored.sha256 for audience, stored in issued.stored.items()},
            "statements_through": through,
        },
    )
    run_sealed(run=run)
    return record


def _require_as_read(facts: Facts, run: Run) -> None:
    """Raises NotEnded when the run continued since its facts were read."""
    if (_STATES.get(run.state), run.ends, run.fence) != (facts.state, facts.run.ends, facts.run.fence):
        raise NotEnded(f"run {run.pk} continued while its record was being made; another is sealed at its next end")


def _card_rows(record: Record, issue: Issue, issued: Issued, at: datetime) -> list[Card]:
    return [
        Card.objects.create(
            record=record,
            audience=audience,
            issue=issue.number,
            artifact=stored.key,
            sha256=stored.sha256,
            size=stored.size,
            log_index=issued.log_index,
            checkpoint_size=issued.checkpoint_size,
            reason=issue.reason if issue.number > 1 else "",
            issued_at=at,
        )
        for audience, stored in issued.stored.items()
    ]


def _left_over_removed(run_id: int) -> None:
    """Remove the files of cards of this run that have no row: a process was killed while it made them. Only under
    `_alone`, or they may belong to another process that is making them now."""
    names = [*artifacts.sizes("cards"), *artifacts.unfinished("cards")]
    stored = {f"cards/{name}" for name in names if name.startswith(f"{run_id}-")}
    known = set(Card.objects.filter(artifact__in=stored).values_list("artifact", flat=True))
    for key in sorted(stored - known):
        log.warning("run %s: %s was left by a process that ended while it made cards; it is removed", run_id, key)
        artifacts.remove(key)


@transaction.atomic
def request_record(*, run: Run, actor: User) -> None:
    """Request the record of the run's end again. Raises ValidationError when it is sealed, or the run has not ended."""
    if run.state not in _STATES:
        raise ValidationError("This run has not ended; its record is sealed when it has.")
    if newest(run) is not None:
        raise ValidationError("The record of this run's end is sealed.")
    audit.log(actor=audit.who(actor), kind="record_requested", subject=f"run:{run.pk}", project=run.project)
    seal_on_commit(run_id=run.pk)


def seal_fault(run: Run) -> str:
    """Why the newest try to seal the record of the run's end or a further version failed; "" where it did not."""
    ended_at = run.attempts.order_by("-fence").values_list("ended_at", flat=True).first()
    if ended_at is None:
        return ""
    tries = RunEvent.objects.filter(run=run, kind__in=("seal_failed", "sealed"), at__gte=ended_at)
    newest_try = tries.order_by("-pk").first()
    return newest_try.message if newest_try is not None and newest_try.kind == "seal_failed" else ""


@transaction.atomic
def seal_failed(*, run: Run, reason: str, code: str = "error") -> bool:
    """Note on the run why it has no record yet; sealing is retried. The same reason is noted once; returns whether it
    was new. `code` of the fault, for who decides on the next try."""
    run_lock(run=run)
    if run.state == RunState.SEALING:
        run.reason = reason
        run.save(update_fields=["reason"])
    if RunEvent.objects.filter(run=run, kind="seal_failed", message=reason).exists():
        return False
    run_event(run=run, actor="platform", kind="seal_failed", message=reason, data={"code": code})
    return True


@contextmanager
def _alone(run_id: int) -> Iterator[None]:
    """Only one process at a time seals a run, or issues cards of it. Raises BeingSealed."""
    lock = [f"cohort seal {run_id}"]
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", lock)
        if cursor.fetchone() != (True,):
            raise BeingSealed(f"the record of run {run_id} is being sealed")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", lock)
