"""The operations of the public API: authorise, call one service, reply."""

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.core.exceptions import RequestDataTooBig, ValidationError
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from ninja import NinjaAPI, Status
from ninja.errors import AuthenticationError
from pydantic import BaseModel, Field

from cohort.accounts.models import ApiScope, Role
from cohort.api.access import PersonalToken, project_for, signed_in, token_of
from cohort.api.bodies import read_body
from cohort.api.problems import PROBLEM_JSON, Problem
from cohort.audit.entries import log, who
from cohort.base.formatting import natural
from cohort.launch.requests import KeyReused, LaunchRefused, RunRequest, request_of, run_request, run_request_check
from cohort.review.export import NotFitting, sample_page
from cohort.review.filters import SampleFilter
from cohort.review.waiting import blind_queues
from cohort.runs.models import Run
from cohort.server.limits import API, FORM_BYTES
from grpo_core.errors import ConfigError

api = NinjaAPI(
    title="Cohort API",
    version="1",
    description="Runs of GRPO by script. docs/api.md says how to make a token, and what each error means.",
    urls_namespace="api",
    docs_url=None,
    openapi_url=None,  # an operation of its own, which asks who calls
)

SAMPLES = 500
"""On one page."""
_KEY = re.compile(r"[!-~]{1,255}")
_RUNS = "/projects/{slug}/runs"
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/RunRequest"}}},
    }
}
_read, _launch = PersonalToken(ApiScope.READ), PersonalToken(ApiScope.LAUNCH)


class FieldError(BaseModel):
    field: str = Field(description="Dotted path in the body; empty for a fault of the whole.")
    message: str


class ProblemDocument(BaseModel):
    """A refusal, as application/problem+json (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    errors: list[FieldError] | None = None


class RunMade(BaseModel):
    id: int
    name: str
    state: str
    created: datetime
    url: str = Field(description="The run's page.")
    config_digest: str = Field(description="SHA-256 of the whole config's canonical JSON (RFC 8785).")


class RunShown(RunMade):
    request: RunRequest = Field(description="The body that makes the run again.")
    config: dict[str, Any] = Field(description="The whole config, as docs/config.md describes it.")


class SamplePage(BaseModel):
    filter: str = Field(description="Canonical.")
    filter_in_words: str
    samples: list[dict[str, Any]] = Field(description="Each with the columns of docs/export.md.")
    next: int | None = Field(description="What `after` is for the next page; null on the last.")


class RunChecked(BaseModel):
    config_digest: str
    config: dict[str, Any]


def _replies(good: dict[int, Any], *refused: int) -> dict[int, Any]:
    return good | dict.fromkeys((401, 403, 404, *refused), ProblemDocument)


@api.get("/openapi.json", auth=[_read, signed_in], include_in_schema=False)
def openapi(request: HttpRequest) -> Any:
    """This API as OpenAPI 3.1."""
    schema = api.get_openapi_schema(path_prefix=API)
    for operation in (operation for path in schema["paths"].values() for operation in path.values()):
        for reply in operation["responses"].values():
            content = reply["content"]
            if content["application/json"]["schema"]["$ref"].endswith("/ProblemDocument"):  # ninja knows one media type
                reply["content"] = {PROBLEM_JSON: content["application/json"]}
    return schema


@api.post(
    _RUNS,
    operation_id="run_create",
    summary="Make a run",
    auth=_launch,
    response=_replies({200: RunMade, 201: RunMade}, 400, 409, 413, 415, 422),
    openapi_extra=_BODY
    | {
        "parameters": [
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "schema": {"type": "string", "pattern": _KEY.pattern},
                "description": "A second call of this person with the same key and body gives the same run, as 200.",
            }
        ]
    },
)
def run_create(request: HttpRequest, slug: str, response: HttpResponse) -> Any:
    """Make a run, and launch it with `launch: true`."""
    project = project_for(request, slug, at_least=Role.OPERATOR)
    key = request.headers.get("Idempotency-Key", "")
    if key and not _KEY.fullmatch(key):
        raise Problem(400, "bad_idempotency_key", "It has 1 to 255 characters of ASCII, without spaces.")
    body = read_body(request, RunRequest)
    run, made = run_request(project=project, token=token_of(request), request=body, key=key)
    response["Location"] = request.build_absolute_uri(reverse("api:run_detail", args=[slug, run.pk]))
    return Status(201 if made else 200, _made(request, slug, run))


@api.post(
    f"{_RUNS}/check", auth=_read, response=_replies({200: RunChecked}, 400, 409, 413, 415, 422), openapi_extra=_BODY
)
def run_check(request: HttpRequest, slug: str) -> Any:
    """Check a run as `POST …/runs` would, with its launch if the body has `launch: true`, and store nothing."""
    project = project_for(request, slug, at_least=Role.OPERATOR)
    body = read_body(request, RunRequest)
    config = run_request_check(project=project, token=token_of(request), request=body)
    return {"config_digest": config.digest(), "config": config.to_dict()}


@api.get(
    f"{_RUNS}/{{int:run_id}}",
    operation_id="run_detail",
    summary="Fetch a run",
    auth=_read,
    response=_replies({200: RunShown}),
)
def run_detail(request: HttpRequest, slug: str, run_id: int) -> Any:
    """A run, with the body that makes it again."""
    project = project_for(request, slug)
    rows = ("base_model", "dataset", "eval_dataset", "verifier_version__verifier", "eval_verifier_version__verifier")
    runs = Run.objects.filter(project=project).select_related(*rows, "launch_overlap__by")
    run = runs.filter(pk=run_id).first() if run_id < 2**63 else None
    if run is None:
        raise Problem(404, "not_found", f"The project has no run {run_id}.")
    return _made(request, slug, run) | {"request": request_of(run).model_dump(), "config": run.config}


@api.get(
    f"{_RUNS}/{{int:run_id}}/samples",
    operation_id="run_samples",
    summary="Fetch samples of a run",
    auth=_read,
    response=_replies({200: SamplePage}, 422),
)
def run_samples(request: HttpRequest, slug: str, run_id: int, after: str = "0", size: str = str(SAMPLES)) -> Any:
    """Samples that a filter shows, in its order, with texts; docs/export.md has the filter's fields and the columns.
    For reviewers."""
    project = project_for(request, slug, at_least=Role.REVIEWER)
    run = Run.objects.filter(project=project, pk=run_id).first() if run_id < 2**63 else None
    if run is None:
        raise Problem(404, "not_found", f"The project has no run {run_id}.")
    if closing := blind_queues(token_of(request).user, run.pk):
        names = ", ".join(queue.name for queue in closing)
        raise Problem(403, "blind", f"Samples of this run wait for you in blind queues: {names}.")
    first, count = natural(after), natural(size)
    if first is None or count is None or not 1 <= count <= SAMPLES:
        raise Problem(422, "invalid", f"`after` is the id of a sample, and `size` from 1 to {SAMPLES}.")
    try:
        looked_for = SampleFilter.parse(request.GET)
        rows, following = sample_page(run, looked_for, after=first, size=count)
    except ValidationError as error:
        faults = (f"{name}: {' '.join(texts)}" for name, texts in error.message_dict.items())
        raise Problem(422, "invalid", " ".join(faults)) from None
    except NotFitting as error:
        raise Problem(422, "invalid", str(error)) from None
    token = token_of(request)
    data = {"format": "api", "filter": looked_for.query, "after": first, "samples": len(rows), "token": token.name}
    log(actor=who(token.user), kind="samples_exported", subject=f"run:{run.pk}", project=project, data=data)
    return {"filter": looked_for.query, "filter_in_words": looked_for.words, "samples": rows, "next": following}


def _made(request: HttpRequest, slug: str, run: Run) -> dict[str, Any]:
    return {
        "id": run.pk,
        "name": run.name,
        "state": run.state,
        "created": run.created_at,
        "url": request.build_absolute_uri(reverse("run_detail", args=[slug, run.pk])),
        "config_digest": run.config_digest,
    }


# ---------------------------------------------------------------------- refusals


def _answered(problem: Callable[[Any], Problem]) -> Callable[[HttpRequest, Any], HttpResponse]:
    return lambda request, error: problem(error).response


api.add_exception_handler(Problem, _answered(lambda problem: problem))
api.add_exception_handler(LaunchRefused, _answered(lambda error: Problem.of(409, "launch_refused", error)))
api.add_exception_handler(ConfigError, _answered(lambda error: Problem.of(422, "invalid", error)))
api.add_exception_handler(KeyReused, _answered(lambda error: Problem(409, error.code, f"{error}.")))


@api.exception_handler(AuthenticationError)
def _no_token(request: HttpRequest, error: AuthenticationError) -> HttpResponse:
    detail = (
        "Send a personal token as Authorization: Bearer cohort_pat_…; this one is missing, unknown, expired or "
        "revoked, or its person is disabled or has not replaced a temporary password."
    )
    return Problem(401, "bad_token", detail).response


@api.exception_handler(RequestDataTooBig)
def _too_big(request: HttpRequest, error: RequestDataTooBig) -> HttpResponse:
    return Problem(413, "too_large", f"A body has at most {FORM_BYTES:,} bytes.").response
