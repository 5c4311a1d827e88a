"""Batches that pass by Django's middleware are answered as the view answers them, and odd calls are the view's."""

import io
import random
import sys
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from cohort.nodes.models import Node
from cohort.nodes.services import token_digest
from cohort.runs.models import Attempt, StepMetric
from cohort.server.wsgi import application
from grpo_core.protocol.messages import Refusal
from grpo_core.records import types as records
from tests.disks import fill, table_on
from tests.factories.worker import envelopes, packed, phase, step
from tests.web.batches import attempt, run

__all__ = ["attempt", "run"]  # fixtures

pytestmark = pytest.mark.django_db

TOKEN = "the-attempt-s-token"
GOOD = {"HTTP_AUTHORIZATION": f"Bearer {TOKEN}", "HTTP_X_COHORT_FENCE": "1"}
BATCH = packed(envelopes([phase("training", 9), step(1)]))


@pytest.fixture
def path(attempt: Attempt) -> str:
    Attempt.objects.filter(pk=attempt.pk).update(token_digest=token_digest(TOKEN))
    return f"/api/worker/v1/attempts/{attempt.pk}/records"


def call(path: str, body: bytes, *, method: str = "POST", **more: Any) -> tuple[int, dict[str, str], bytes]:
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
        **more,
    }
    begun: list[tuple[str, list[tuple[str, str]]]] = []
    content = b"".join(application(environ, lambda status, headers: begun.append((status, headers))))
    (status, headers), *_ = begun
    return int(status.split()[0]), dict(headers), content


def test_a_batch_is_stored_and_acknowledged(path: str) -> None:
    for _ in range(2):
        status, headers, content = call(path, BATCH, **GOOD)
        assert (status, content) == (200, b'{"acked_seq":2}')
        assert (headers["Content-Type"], headers["Content-Length"]) == ("application/json", "15")
        assert StepMetric.objects.count() == 1
        assert connection.connection is not None, "kept for the next batch"


CALLS = {
    "good": (GOOD, BATCH, 200),
    "nothing to store": (GOOD, b"", 200),
    "plain text": (GOOD, b"plain text", 422),
    "bad record": (GOOD, packed([b'{"seq":1}']), 422),
    "stale fence": (GOOD | {"HTTP_X_COHORT_FENCE": "2"}, BATCH, 409),
    "no fence": (GOOD | {"HTTP_X_COHORT_FENCE": ""}, BATCH, 422),
    "huge fence": (GOOD | {"HTTP_X_COHORT_FENCE": "9" * 19}, BATCH, 422),
    "another token": (GOOD | {"HTTP_AUTHORIZATION": "Bearer other"}, BATCH, 401),
    "another scheme": (GOOD | {"HTTP_AUTHORIZATION": f"Basic {TOKEN}"}, BATCH, 401),
    "no token": ({}, BATCH, 401),
}


@pytest.mark.parametrize(("headers", "body", "status"), CALLS.values(), ids=CALLS)
def test_both_ways_answer_the_same(path: str, headers: dict[str, str], body: bytes, status: int) -> None:
    first = call(path, body, **headers)
    viewed = Client().post(path, body, content_type="application/zstd", **headers)  # type: ignore[arg-type]
    assert (first[0], first[2]) == (status, viewed.content)
    assert viewed.status_code == status
    assert first[1].get("WWW-Authenticate") == viewed.headers.get("WWW-Authenticate")


class Unread(io.BytesIO):
    """A body that nobody may read."""

    def read(self, size: int | None = -1) -> bytes:
        raise AssertionError("read before the caller was known")


@pytest.mark.parametrize("name", ["no token", "another scheme", "another token", "no fence"])
def test_of_a_stranger_s_large_batch_nothing_is_read(path: str, name: str) -> None:
    headers, _, status = CALLS[name]
    large = {"CONTENT_LENGTH": str(32 * 1024 * 1024), "wsgi.input": Unread()}
    assert call(path, b"", **headers, **large)[0] == status


def test_a_large_batch_of_the_attempt_s_own_is_stored(path: str) -> None:
    """Larger than what is read before the token is looked at: noise, which does not compress."""
    noise = records.Event(type="note", message="noise", data={"noise": random.Random(0).randbytes(100_000).hex()})
    body = packed(envelopes([phase("training", 9), noise, step(1)]))
    assert len(body) > 70_000
    assert call(path, body, **GOOD)[2] == b'{"acked_seq":3}'
    Node.objects.update(revoked_at="2026-01-01T00:00Z")
    for sent in (body, BATCH):
        assert call(path, sent, **GOOD)[0] == 401


@pytest.mark.django_db(transaction=True)
def test_odd_calls_are_left_to_the_view_and_a_dead_connection_is_replaced(path: str) -> None:
    """A connection dies as after a restart of the database: the thread still holds what it used before."""
    assert call(path, b"", method="GET", **GOOD)[0] == 405
    assert call(path + "/", BATCH, **GOOD)[0] == 404
    assert call(path, BATCH, **GOOD | {"CONTENT_LENGTH": str(10**9)})[0] == 413
    assert call("/healthz", b"", method="GET")[0] == 200
    assert not StepMetric.objects.exists()
    assert call(path, BATCH, **GOOD)[0] == 200
    connection.ensure_connection()
    connection.connection.pgconn.finish()
    status, _, content = call(path, packed(envelopes([step(2)], first=3)), **GOOD)
    assert (status, content) == (200, b'{"acked_seq":3}')


@pytest.mark.django_db(transaction=True)
def test_a_batch_on_a_full_database_is_507_by_both_ways_and_is_taken_once_there_is_room(path: str) -> None:
    client = Client(raise_request_exception=False)
    with table_on("runs_stepmetric", 1024 * 1024) as disk:
        other = fill(disk)
        status, headers, content = call(path, BATCH, **GOOD)
        assert (status, headers["Content-Type"]) == (507, "application/json")
        viewed = client.post(path, BATCH, content_type="application/zstd", **GOOD)  # type: ignore[arg-type]
        assert (viewed.status_code, viewed.content) == (507, content)
        assert Refusal.model_validate_json(content).code == "disk_full"
        assert Attempt.objects.get().acked_seq == 0, "nothing of the batch is stored"
        other.unlink()
        assert call(path, BATCH, **GOOD)[2] == b'{"acked_seq":2}'
        assert StepMetric.objects.count() == 1
