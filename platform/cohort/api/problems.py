"""How the public API refuses: application/problem+json (RFC 9457) with a stable `code`.

`code` is for programs and never changes its meaning; `title` belongs to it. `detail` and `errors` are for people.
"""

import json
from collections.abc import Iterable

from django.http import HttpResponse

from grpo_core.errors import ConfigError, FieldProblem

PROBLEM_JSON = "application/problem+json"
MAX_ERRORS = 100
"""Faults that a refusal lists; it says how many more there are."""
TITLES = {
    "unreadable_body": "The body cannot be read as JSON",
    "bad_idempotency_key": "The Idempotency-Key cannot be used",
    "bad_token": "The token is missing or does not work",
    "scope_too_small": "The token may not do this",
    "role_too_low": "Your role in the project may not do this",
    "blind": "You are to judge samples of the run blind first",
    "not_found": "There is no such thing in a project of yours",
    "length_required": "The length is missing",
    "idempotency_key_reused": "The Idempotency-Key belongs to another request",
    "launch_refused": "The run is valid, and its launch is refused",
    "too_large": "The body is too large",
    "not_json": "The body is not declared as JSON",
    "invalid": "The request is not valid",
    "internal_error": "The server is at fault",
    "disk_full": "A disk of the server is full",
}
"""By code."""


class Problem(Exception):
    """What a call is refused with."""

    def __init__(self, status: int, code: str, detail: str, problems: Iterable[FieldProblem] = ()) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.problems = status, code, detail, tuple(problems)

    @classmethod
    def of(cls, status: int, code: str, error: ConfigError) -> "Problem":
        """The first line of the error, and each of its faults."""
        return cls(status, code, str(error).partition("\n")[0].removesuffix(":"), error.problems)

    @property
    def response(self) -> HttpResponse:
        content = {
            "type": f"urn:cohort:problem:{self.code}",
            "title": TITLES[self.code],
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
        }
        if self.problems:
            errors = [{"field": each.path, "message": each.message} for each in self.problems[:MAX_ERRORS]]
            if more := len(self.problems) - MAX_ERRORS:
                errors += [{"field": "", "message": f"and {more:,} more"}] if more > 0 else []
            content["errors"] = errors
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        text = json.dumps(content, ensure_ascii=False)
        return HttpResponse(text, status=self.status, content_type=PROBLEM_JSON, headers=headers)
