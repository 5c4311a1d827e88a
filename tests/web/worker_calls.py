"""A worker by hand: a token and plain calls to the worker API. As fixtures: a run, a node, and the worker with both."""

import json
from typing import Any

import pytest
from django.test import Client

from cohort.base.database_roles import INGEST
from cohort.runs.models import Run
from grpo_core.protocol.messages import ClaimReply, JobGiven, Refusal
from tests.database import as_role
from tests.factories.runs import Maker
from tests.factories.worker import NODE

API = "/api/worker/v1"


class Caller:
    """A worker by hand: one token, plain calls, answered with the rights that a web server for workers has."""

    def __init__(self, token: str) -> None:
        self.client = Client(enforce_csrf_checks=True, headers={"authorization": f"Bearer {token}"})

    def post(self, path: str, body: Any, **headers: str) -> Any:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = "application/zstd" if isinstance(body, bytes) else "application/json"
        with as_role(INGEST):
            return self.client.post(f"{API}/{path}", content, content_type=kind, headers=headers)

    def get(self, path: str) -> Any:
        with as_role(INGEST):
            return self.client.get(f"{API}/{path}")


class AttemptCaller(Caller):
    def __init__(self, claimed: ClaimReply) -> None:
        super().__init__(claimed.token)
        self.at, self.fence = f"attempts/{claimed.attempt_id}", claimed.fence

    def beat(self, fence: int | None = None) -> Any:
        return self.post(f"{self.at}/heartbeat", {"fence": fence or self.fence, "shipped_seq": 0, "spooled_bytes": 7})

    def records(self, body: bytes, fence: int | None = None) -> Any:
        return self.post(f"{self.at}/records", body, **{"X-Cohort-Fence": str(fence or self.fence)})

    def finish(self, end: str, *, last_seq: int, **more: Any) -> Any:
        body = {"fence": self.fence, "end": end, "code": "ok", "message": "said so", "last_seq": last_seq, **more}
        return self.post(f"{self.at}/finish", body)

    def upload(self, sha256: str, part: bytes = b"", *, offset: int | None = None, fence: int | None = None) -> Any:
        """A part of a checkpoint's file; without one, the question how much is held."""
        headers = {"X-Cohort-Fence": str(fence or self.fence)}
        if offset is not None:
            headers["X-Cohort-Offset"] = str(offset)
        return self.post(f"{self.at}/uploads/{sha256}", part, **headers)

    def tokens(self, sha256: str, part: bytes = b"", *, offset: int | None = None, fence: int | None = None) -> Any:
        """As `upload`, of a step's token arrays."""
        headers = {"X-Cohort-Fence": str(fence or self.fence)}
        if offset is not None:
            headers["X-Cohort-Offset"] = str(offset)
        return self.post(f"{self.at}/tokens/{sha256}", part, **headers)

    def dataset(self, sha256: str, part: bytes = b"", *, offset: int | None = None, fence: int | None = None) -> Any:
        """As `upload`, of the dataset that the run sampled."""
        headers = {"X-Cohort-Fence": str(fence or self.fence)}
        if offset is not None:
            headers["X-Cohort-Offset"] = str(offset)
        return self.post(f"{self.at}/dataset/{sha256}", part, **headers)

    def log(self, part: bytes = b"", *, offset: int | None = None, fence: int | None = None) -> Any:
        """A part of the log; without one, the question how much is held."""
        headers = {"X-Cohort-Fence": str(fence or self.fence)}
        if offset is not None:
            headers["X-Cohort-Offset"] = str(offset)
        return self.post(f"{self.at}/log", part, **headers)


def claim(node: Caller, run: Run) -> ClaimReply:
    answer = node.post("claim", {"run_id": run.pk, "node": NODE.model_dump(mode="json")})
    assert answer.status_code == 201, answer.content
    return ClaimReply.model_validate_json(answer.content)


def refused(answer: Any) -> tuple[int, str]:
    return answer.status_code, Refusal.model_validate_json(answer.content).code


@pytest.fixture
def run(maker: Maker) -> Run:
    return maker.launched("first", eval={"holdout": 5})


@pytest.fixture
def worker(run: Run, node: Caller) -> AttemptCaller:
    return AttemptCaller(claim(node, run))


class JobCaller(Caller):
    def __init__(self, given: JobGiven) -> None:
        super().__init__(given.token)
        self.at, self.fence = f"jobs/{given.job_id}", given.fence

    def beat(self, fence: int | None = None, **more: Any) -> Any:
        return self.post(f"{self.at}/heartbeat", {"fence": fence or self.fence, **more})

    def finish(self, end: str, *, fence: int | None = None, **more: Any) -> Any:
        return self.post(f"{self.at}/finish", {"fence": fence or self.fence, "end": end, "seconds": 1.5, **more})


def claim_job(node: Caller, *, job_id: int = 1, claim_id: str = "", info: Any = NODE) -> Any:
    return node.post("jobs/claim", {"job_id": job_id, "claim_id": claim_id, "node": info.model_dump(mode="json")})


def taken_job(node: Caller, **more: Any) -> JobGiven:
    answer = claim_job(node, **more)
    assert answer.status_code == 201, answer.content
    return JobGiven.model_validate_json(answer.content)
