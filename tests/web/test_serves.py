"""A web server that serves a part alone answers 404 for the other, before it reads anything, and works with the rights
of its role in the database."""

import re
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from django.db.models.functions import Now

from cohort.base.database_roles import INGEST, WEB
from cohort.runs.models import ServiceBeat
from cohort.server.serves import Serves
from tests.processes import wait_for
from tests.web.test_pulse import database, process

ADDRESSES = {"/": "pages", "/p/ours/runs/": "pages", "/api/worker/v1/claim": "workers", "/healthz": "", "/readyz": ""}


@pytest.mark.parametrize("part", ["all", "pages", "workers"])
def test_what_the_other_process_serves_is_not_here(part: Any) -> None:
    def whole(environ: dict[str, Any], start: Any) -> list[bytes]:
        start("200 OK", [])
        return [b"here"]

    statuses: list[str] = []
    for path, of in ADDRESSES.items():
        environ = {"PATH_INFO": path}  # nothing else may be needed: a body is not read
        body = Serves(part, whole)(environ, lambda status, headers: statuses.append(status))
        here = part in ("all", of) or not of
        assert (statuses.pop(), b"here" in body) == (("200 OK", True) if here else ("404 Not Found", False)), path


WEB_SERVER = ["-m", "gunicorn", "--config", "python:cohort.server.gunicorn", "cohort.server.wsgi:application"]
# Without a token that anyone has.
CALLS = {"login/": 200, "api/worker/v1/node/lost": 401, "readyz": 200}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("part", "role", "elsewhere"), [("pages", WEB, "api/"), ("workers", INGEST, "login/")])
def test_each_part_works_as_its_role(tmp_path: Path, part: str, role: str, elsewhere: str) -> None:
    ServiceBeat.objects.create(name="reconciler", beat_at=Now())
    log = tmp_path / "web.log"
    variables = {
        "COHORT_DATABASE_URL": database(options=f"-c role={role}"),
        "COHORT_SERVES": part,
        "COHORT_LISTEN": "127.0.0.1:0",
        "COHORT_MIN_FREE_BYTES": "0",
        "COHORT_WEB_WORKERS": "1",
    }
    with process([sys.executable, *WEB_SERVER], log, **variables):
        found = wait_for(lambda: re.search(r"Listening at: (http://\S+)", log.read_text()), log.read_text)
        if part == "workers":  # no worker calls the other, which sends no sign of life
            wait_for(ServiceBeat.objects.filter(name="web").exists, log.read_text)
        statuses = {path: status(f"{found[1]}/{path}", post="api/" in path) for path in CALLS}
    assert statuses == {path: 404 if path.startswith(elsewhere) else of for path, of in CALLS.items()}
    assert ServiceBeat.objects.filter(name="web").exists() is (part == "workers")
    assert "permission denied" not in log.read_text()


def status(address: str, *, post: bool) -> int:
    headers = {"Authorization": "Bearer guess", "Content-Type": "application/json"} if post else {}
    sent = urllib.request.Request(address, b'{"lost": []}' if post else None, headers)
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(sent, timeout=60) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code
