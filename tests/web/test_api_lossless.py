"""API → run → form → API without loss: what a call gives is what the run's clone in the form copies as a call."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cohort.accounts.api_tokens import api_token_create
from cohort.accounts.models import ApiToken, User
from cohort.launch.requests import RunRequest, request_of, run_request
from cohort.runs.models import Run
from cohort.web.launch.copies import as_api_call
from cohort.web.launch.run_form import RunForm
from grpo_core.config.presets import PRESETS
from tests.factories.runs import UNPROBED, Maker
from tests.factories.suites import add_suite
from tests.web.form_page import as_browser
from tests.web.test_run_form_lossless import positive, share, text

pytestmark = pytest.mark.django_db

count = st.none() | st.integers(1, 10**6)
suite = st.fixed_dictionaries(
    {"margin": st.none() | st.floats(0, 0.2), "limit": count, "max_completion_tokens": count},
    optional={"template": st.none() | text.map(lambda text: text + "{prompt}")},
)
BODIES = st.fixed_dictionaries(
    {
        "name": text.map(str.strip).filter(bool),
        "verifier": st.just("r1 + exact@1"),
        "eval_verifier": st.sampled_from([None, "r1 + exact@1"]),
        "eval_dataset": st.sampled_from([None, "held out"]),
        "suites": st.dictionaries(st.sampled_from(["a@1", "b@1"]), suite),
        "priority": st.sampled_from(["low", "normal", "high"]),
        "node_label": st.sampled_from(["", "a100", "big-mem"]),
        "settings": st.fixed_dictionaries(
            {"eval": st.fixed_dictionaries({"holdout": st.integers(1, 19), "margin": st.floats(0, 0.2)})},
            optional={
                "preset": st.none() | st.sampled_from(sorted(PRESETS)),
                "seed": st.integers(0, 2**32 - 1),
                "sampling": st.fixed_dictionaries(
                    {"temperature": st.floats(0.01, 100), "stop": st.lists(text.filter(bool), max_size=3)}
                ),
                "algorithm": st.fixed_dictionaries(
                    {"clip_low": share, "kl": st.fixed_dictionaries({"coef": st.just(0.0) | positive})}
                ),
                "optim": st.fixed_dictionaries({"lr": positive, "steps": st.integers(1, 10**6)}),
                "data": st.fixed_dictionaries({"prefill": text, "limit": st.none() | st.just(20)}),
            },
        ),
    }
)


def made(token: ApiToken, maker: Maker, body: dict[str, Any]) -> Run:
    return run_request(project=maker.project, token=token, request=RunRequest.model_validate(body))[0]


def copied(script: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(script.split("<<'END_OF_REQUEST'\n")[1].removesuffix("END_OF_REQUEST\n"))
    return body


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=BODIES)
def test_any_request_survives_the_form(maker: Maker, drawn: dict[str, Any]) -> None:
    if not ApiToken.objects.exists():  # once for all examples, in whose transaction they are
        for name in "ab":
            add_suite(maker.project, maker.actor, name)
        api_token_create(user=maker.actor, name="ci", scope="launch")
    suites = [{"suite": name, **chosen} for name, chosen in drawn["suites"].items()]
    body = {"base_model": "tiny", "dataset": "additions", **drawn, "suites": suites}
    run = made(ApiToken.objects.get(), maker, body)
    request = request_of(run).model_dump()

    form = RunForm.posted(maker.project, RunForm.clone(run).texts)
    config = form.check()
    assert config is not None, (form.problems, form.general)
    assert config.digest() == run.config_digest
    again = copied(as_api_call(form, config, server="https://cohort.example.org"))
    assert again == request | {"cloned_from": run.pk, "launch": True}

    other = made(ApiToken.objects.get(), maker, again | {"launch": False})
    assert other.config == run.config
    assert request_of(other).model_dump() == request | {"cloned_from": run.pk}
    given_fields = SimpleNamespace(**body)
    for field in ("name", "eval_verifier", "eval_dataset", "priority", "node_label"):
        assert request[field] == getattr(given_fields, field), field
    for of_request in request["suites"]:
        assert of_request | drawn["suites"][of_request["suite"]] == of_request, "what was given is what is there"


def test_by_the_pages_themselves(operator: Client, oscar: User, maker: Maker) -> None:
    """The clone's page, as a browser sends it, copied; and the launched run's request keeps why it was launched."""
    add_suite(maker.project, maker.actor)
    token, _ = api_token_create(user=oscar, name="ci", scope="launch")
    body = {
        "name": "adder <b>&amp; more",
        "base_model": "tiny",
        "dataset": "additions",
        "eval_dataset": "held out",
        "verifier": "r1 + exact@1",
        "suites": [{"suite": "capitals@1", "margin": None, "template": "Q:\n{prompt}\n"}],
        "settings": {"preset": "dapo", "data": {"template": "Solve.\n\n{prompt}\n"}, "seed": 7},
        "priority": "high",
        "probe_override": UNPROBED,
        "launch": True,
    }
    run = made(token, maker, body)
    address = f"/p/ours/runs/new/?clone={run.pk}"
    sent = as_browser(operator.get(address).content.decode())
    sent |= {"action": "api", "probe_override": UNPROBED}
    answer = operator.post(address, sent, headers={"Accept": "application/json"})
    assert answer.status_code == 200, answer.content
    request = request_of(run).model_dump()
    assert copied(answer.json()["text"]) == request | {"cloned_from": run.pk}
    assert (request["probe_override"], request["suites"][0]["template"]) == (UNPROBED, "Q:\n{prompt}\n")
    file = operator.post(address, sent)
    assert 'filename="adder-b-amp-more.sh"' in file["Content-Disposition"]
    refused = operator.post(address, sent | {"optim.lr": "0"}, headers={"Accept": "application/json"})
    assert refused.status_code == 422
