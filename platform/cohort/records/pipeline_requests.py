"""The card of a pipeline of the project: what it lacks until one can be made, the request by a person, and its making.

The card is made where records are sealed: only that process has the log's key, and every card in it is checked whole,
which takes longer than a page may.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.db.models import F
from django.db.models.functions import Now

from cohort.accounts.models import User
from cohort.audit import services as audit
from cohort.base.storable import Refused, storable
from cohort.pipelines.models import Pipeline
from cohort.pipelines.states import StageNow, lack_words, pipeline_states
from cohort.records.models import PipelineCard, PipelineCardRequest, Record
from cohort.records.pipeline_cards import Stage, pipeline_card
from cohort.runs.dispatch import PIPELINE_CARD_TASK, SEAL_QUEUE, pipeline_card_on_commit, republish

MOST_TRIES = 3
"""Of one request: a process that is killed each time it makes the card would leave an entry in the log each time."""
_LOST = timedelta(seconds=60)
"""A request that waits for longer may have lost its message."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CardStages:
    """What a card can be made of now."""

    stages: tuple[Stage, ...]
    """In the order of the graph; those that have a sealed record."""
    lacks: tuple[str, ...]
    """A sentence for each stage that keeps the card from being made."""


def card_stages(states: Mapping[str, StageNow]) -> CardStages:
    """Of a pipeline whose stages are so. One query."""
    runs = {now.run.pk for now in states.values() if now.run is not None and now.state == "finished"}
    records = {
        record.run_id: record
        for record in Record.objects.filter(run__in=runs, end=F("run__ends"), superseded_by=None)
        .select_related("run")
        .defer("document")
    }
    stages, lacks = [], []
    for slug, now in states.items():
        if now.state != "finished" or now.run is None:
            lacks.append(f"{slug} {lack_words(now)}" + (f": {now.reason}." if now.state == "out_of_date" else "."))
        elif now.run.pk in records:
            stages.append(Stage(slug, records[now.run.pk]))
        else:
            lacks.append(f"{slug} has no sealed record of its run {now.run.pk} yet.")
    return CardStages(tuple(stages), tuple(lacks))


@transaction.atomic
def pipeline_card_request(*, pipeline: Pipeline, actor: User) -> PipelineCardRequest:
    """Have the pipeline's card made. Raises ValidationError while one is being made, and while a stage lacks what a
    card needs, with the reason of each."""
    pipeline = Pipeline.objects.select_related("project").select_for_update(of=("self",)).get(pk=pipeline.pk)
    if pipeline.card_requests.filter(card=None, fault="").exists():
        raise ValidationError("The pipeline's card is being made already. It is shown here once it is.")
    stages = _require_complete(pipeline)
    request = PipelineCardRequest.objects.create(pipeline=pipeline, by=actor)
    audit.log(
        actor=audit.who(actor),
        kind="pipeline_card_requested",
        subject=f"pipeline:{pipeline.pk}",
        project=pipeline.project,
        data={"stages": {stage.name: stage.record.seal for stage in stages}},
    )
    pipeline_card_on_commit(request_id=request.pk)
    return request


def pipeline_card_make(request_id: int) -> PipelineCard | None:
    """Make the card of a request that waits; None where there is nothing to make, and where it could not be made for a
    reason that the request then holds. Call it outside of any transaction.

    Any other error is noted on the request and raised.
    """
    with _alone(request_id) as first:
        request = PipelineCardRequest.objects.select_related("pipeline__project", "by").get(pk=request_id)
        if not first or not request.waits:
            return None
        if request.tries >= MOST_TRIES:
            _ended(request, fault=f"The process that made it ended {MOST_TRIES} times before the card was there.")
            return None
        request.tries += 1
        request.save(update_fields=["tries"])
        pipeline = request.pipeline
        try:
            card = pipeline_card(
                project=pipeline.project,
                title=pipeline.name,
                stages=_require_complete(pipeline),
                graph=pipeline.config,
                actor=request.by,
            )
        except (ValidationError, Refused) as why:
            words = " ".join(why.messages) if isinstance(why, ValidationError) else str(why)
            log.error("pipeline %s: no card: %s", pipeline.pk, words)
            _ended(request, fault=words)
            return None
        except Exception as error:  # whatever it was, the page must say so; it is raised again
            _ended(request, fault=f"{type(error).__name__}: {error}")
            raise
        _ended(request, card=card)
        return card


def pipeline_cards_republish() -> list[int]:
    """Request again what has waited for a minute. Returns the ids of the requests."""
    waiting = PipelineCardRequest.objects.filter(card=None, fault="", at__lt=Now() - _LOST)
    return republish(PIPELINE_CARD_TASK, dict.fromkeys(waiting.values_list("pk", flat=True), SEAL_QUEUE))


def _require_complete(pipeline: Pipeline) -> tuple[Stage, ...]:
    """Raises ValidationError with all that is lacking."""
    ready = card_stages(pipeline_states(pipeline))
    if ready.lacks:
        raise ValidationError(list(ready.lacks))
    return ready.stages


@transaction.atomic
def _ended(request: PipelineCardRequest, *, card: PipelineCard | None = None, fault: str = "") -> None:
    request.card, request.fault = card, storable(fault)
    request.save(update_fields=["card", "fault"])


@contextmanager
def _alone(request_id: int) -> Iterator[bool]:
    """Whether no other process makes this card at this moment."""
    lock = [f"cohort pipeline card {request_id}"]
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", lock)
        first = cursor.fetchone() == (True,)
    try:
        yield first
    finally:
        if first:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", lock)
