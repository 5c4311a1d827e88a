"""Batches that pass by Django's middleware are answered as the view answers them, and odd calls are the view's."""

import io
import random
import sys
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from cohort.runs.models import Attempt, Node, StepMetric
from cohort.runs.nodes import token_digest
from cohort.wsgi import application
from grpo_core import records
from tests.web.batches import attempt, run
from tests.worker.making import envelopes, packed, phase, step

__all__ = ["attempt", "run"]  # fixtures

pytestmark = pytest.mark.django_db

TOKEN = "the-attempt-s-token"
GOOD = {"HTTP_AUTHORIZATION": f"Bearer {TOKEN}", "HTTP_X_COHORT_FENCE": "1"}
BATCH = packed(envelopes([phase("training", 9), step(1)]))


@pytest.fixture
def path(attempt: Attempt) -> str:
    Attempt.objects.filter(pk=attempt.pk).update(token_digest=token_digest(TOKEN))
    return f"/api/worker/v1/attempts/{attempt.pk}/records"


def call(path: str, body: bytes, *, method: str = "POST", **more: str) -> tuple[int, dict[str, str], bytes]:
    """Through the web server's entry point, as gunicorn calls it."""
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "PATH_INFO": path,
        "SERVER_NAME": "testserver",
        "SERVER_PORT": "80",
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
        "wsgi.url_scheme": "http",
        "wsgi.errors": sys.stderr,
    } | more
    begun: list[tuple[str, list[tuple[str, str]]]] = []
    said = b"".join(application(environ, lambda status, headers: begun.append((status, headers))))
    (status, headers), *_ = begun
    return int(status.split()[0]), dict(headers), said


def test_a_batch_is_stored_and_acknowledged(path: str) -> None:
    status, headers, said = call(path, BATCH, **GOOD)
    assert (status, said) == (200, b'{"acked_seq":2}')
    assert (headers["Content-Type"], headers["Content-Length"]) == ("application/json", "15")
    assert StepMetric.objects.count() == 1
    assert connection.connection is not None, "kept for the next batch"
    assert call(path, BATCH, **GOOD)[2] == b'{"acked_seq":2}'


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        (GOOD, BATCH, 200),
        (GOOD, b"", 200),  # nothing to store is no fault
        (GOOD, b"plain text", 422),
        (GOOD, packed([b'{"seq":1}']), 422),
        (GOOD | {"HTTP_X_COHORT_FENCE": "2"}, BATCH, 409),
        (GOOD | {"HTTP_X_COHORT_FENCE": ""}, BATCH, 422),
        (GOOD | {"HTTP_X_COHORT_FENCE": "9" * 19}, BATCH, 422),
        (GOOD | {"HTTP_AUTHORIZATION": "Bearer other"}, BATCH, 401),
        (GOOD | {"HTTP_AUTHORIZATION": f"Basic {TOKEN}"}, BATCH, 401),
        ({}, BATCH, 401),
    ],
)
def test_both_ways_say_the_same(path: str, headers: dict[str, str], body: bytes, status: int) -> None:
    first = call(path, body, **headers)
    viewed = Client().post(path, body, content_type="application/zstd", **headers)  # type: ignore[arg-type]
    assert (first[0], first[2]) == (status, viewed.content)
    assert viewed.status_code == status
    assert first[1].get("WWW-Authenticate") == viewed.headers.get("WWW-Authenticate")


class Unread(io.BytesIO):
    """A body that nobody may read."""

    def read(self, size: int | None = -1) -> bytes:
        raise AssertionError("read before the caller was known")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        (GOOD | {"HTTP_AUTHORIZATION": f"Basic {TOKEN}"}, 401),
        (GOOD | {"HTTP_AUTHORIZATION": "Bearer other"}, 401),
        (GOOD | {"HTTP_X_COHORT_FENCE": "one"}, 422),
    ],
)
def test_of_a_stranger_s_large_batch_nothing_is_read(path: str, headers: dict[str, str], status: int) -> None:
    large = {"CONTENT_LENGTH": str(32 * 1024 * 1024), "wsgi.input": Unread()}
    assert call(path, b"", **headers, **large)[0] == status  # type: ignore[arg-type]


def test_a_large_batch_of_the_attempt_s_own_is_stored(path: str) -> None:
    """Larger than what is read before the token is looked at: noise, which does not compress."""
    noise = random.Random(0).randbytes(100_000).hex()
    said = records.Event(type="note", message="noise", data={"noise": noise})
    body = packed(envelopes([phase("training", 9), said, step(1)]))
    assert len(body) > 70_000
    assert call(path, body, **GOOD)[2] == b'{"acked_seq":3}'
    Node.objects.update(revoked_at="2026-01-01T00:00Z")
    assert call(path, body, **GOOD)[0] == 401


def test_a_revoked_node_is_refused(path: str) -> None:
    Node.objects.update(revoked_at="2026-01-01T00:00Z")
    assert call(path, BATCH, **GOOD)[0] == 401
    assert not StepMetric.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_odd_calls_are_left_to_the_view(path: str) -> None:
    assert call(path, b"", method="GET", **GOOD)[0] == 405
    assert call(path + "/", BATCH, **GOOD)[0] == 404
    status, _, said = call(path, BATCH, **GOOD | {"CONTENT_LENGTH": str(10**9)})
    assert status == 413
    assert b"too_large" in said
    assert call("/healthz", b"", method="GET")[0] == 200
    assert not StepMetric.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_connection_that_died_in_between_is_replaced(path: str) -> None:
    """As after a restart of the database: the thread still holds what it used before."""
    assert call(path, BATCH, **GOOD)[0] == 200
    assert connection.connection is not None
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (before,) = cursor.fetchone()
    connection.connection.pgconn.finish()
    status, _, said = call(path, packed(envelopes([step(2)], first=3)), **GOOD)
    assert (status, said) == (200, b'{"acked_seq":3}')
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        assert cursor.fetchone() != (before,)
