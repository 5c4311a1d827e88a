"""Concurrent redaction and card building: reading texts for a card waits for redactions that have begun.

A redaction carries its start time and is visible once committed. A card started in between would contain the text,
and its timestamp would say that it was made without it.
"""

from django.db import connection, transaction


def redaction_begins(run_id: int) -> None:
    """Before the first row is changed. Needs a transaction; redactions do not wait for each other."""
    _lock("SELECT pg_advisory_xact_lock_shared(hashtextextended(%s, 0))", run_id)


@transaction.atomic(durable=True)
def redactions_awaited(run_id: int) -> None:
    """Returns when every redaction of the run that had begun is committed. Call it after the card's time is taken and
    before a text is read."""
    _lock("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", run_id)


def _lock(statement: str, run_id: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, [f"cohort redact {run_id}"])
