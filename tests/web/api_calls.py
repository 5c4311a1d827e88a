"""The public API as a script calls it."""

import json
from collections.abc import Callable
from typing import Any

from django.test import Client

from cohort.api.problems import TITLES

RUNS = "/api/v1/projects/ours/runs"


class ApiCaller:
    """A script with a token."""

    def __init__(self, text: str, client: Client) -> None:
        self.client, self.text = client, text

    def post(self, body: Any, path: str = RUNS, *, kind: str = "application/json", **headers: str) -> Any:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.client.post(path, content, content_type=kind, headers=self._with(headers))

    def get(self, path: str) -> Any:
        return self.client.get(path, headers=self._with({}))

    def _with(self, headers: dict[str, str]) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.text}", **headers}


ApiCallerFor = Callable[..., ApiCaller]
"""(user, scope, name of the token)."""


def refused(response: Any) -> tuple[int, str, list[str]]:
    """(status, code, fields) of a refusal, which is a problem document."""
    assert response["Content-Type"] == "application/problem+json"
    problem = response.json()
    assert (problem["status"], problem["title"]) == (response.status_code, TITLES[problem["code"]])
    assert problem["type"].endswith(f":{problem['code']}")
    assert problem["detail"]
    errors = problem.get("errors", [])
    assert all(error["message"] for error in errors)
    return response.status_code, problem["code"], [error["field"] for error in errors]
