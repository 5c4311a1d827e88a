"""No press is an error of ours, whatever state a run is in; what is sent in forms and files is refused in words and in
time that is linear in it."""

import json
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.test import Client

from cohort.accounts.models import Project
from cohort.catalog.services import dataset_create
from cohort.evaluations.services import Upload, results_import
from cohort.lab.models import LabJob
from cohort.runs.models import Run, RunEvent, RunState
from grpo_core.config.yaml_text import parse_yaml
from grpo_core.text import first_repeated
from tests.factories.runs import Maker, add_checkpoint
from tests.web.pages import html

# ---------------------------------------------------------------- presses

PRESSES: dict[str, dict[str, str]] = {
    "submit/": {},
    "cancel/": {},
    "pause/": {},
    "resume/": {},
    "retry/": {"from": "start"},
    "extend/": {"steps": "5"},
    "priority/": {"priority": "10"},
    "record/1/seal-version/": {"reason": "more was stated"},
    "checkpoints/{checkpoint}/pin/": {"pinned": "true"},
    "evaluations/import/": {"phase": "before"},
    "statements/": {
        "action": "save",
        "method-rationale-text": "so that it adds",
        "method-rationale-audience": "public",
    },
}


@pytest.mark.parametrize("state", RunState.values)
def test_no_press_is_an_error_of_ours(admin: Client, maker: Maker, state: str) -> None:
    """Each twice, as it is in each state, with an attempt and without."""
    answers = {}
    for press, data in PRESSES.items():
        for begun in (True, False):
            run = maker.run(f"{press} {begun}", state=state)
            checkpoint = 0
            if begun and state != RunState.DRAFT:
                running = state in (RunState.STARTING, RunState.EVALUATING, RunState.TRAINING)
                attempt = maker.attempt(run, state="running" if running else "failed")
                checkpoint = add_checkpoint(attempt, 2).pk
            for time in (1, 2):
                address = f"/p/ours/runs/{run.pk}/{press.format(checkpoint=checkpoint)}"
                answers[press, begun, time] = admin.post(address, data).status_code
    assert set(answers.values()) <= {302, 404, 409, 422}, answers


@pytest.mark.parametrize("state", [state for state in RunState.values if state != RunState.DRAFT])
def test_only_a_draft_is_launched(operator: Client, maker: Maker, state: str) -> None:
    run = maker.run(state=state)
    before = Run.objects.filter(pk=run.pk).values().get(), RunEvent.objects.filter(run=run).count()
    page = html(operator.post(f"/p/ours/runs/{run.pk}/submit/", follow=True))
    assert "not a draft" in page
    assert (Run.objects.filter(pk=run.pk).values().get(), RunEvent.objects.filter(run=run).count()) == before


# ---------------------------------------------------------------- what is uploaded


class Name(str):
    """A text that counts how often it is looked at."""

    looks = 0

    def __hash__(self) -> int:
        Name.looks += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        Name.looks += 1
        return super().__eq__(other)


def test_a_repeated_name_is_found_in_one_pass() -> None:
    names = [Name(f"key {n}") for n in range(1000)]
    names.append(Name("key 999"))
    Name.looks = 0
    assert first_repeated(names) == "key 999"
    assert Name.looks < 3 * len(names)


def keys(count: int, **first: Any) -> str:
    """A JSON object with so many fields, the last of them given twice."""
    fields = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in first.items()]
    return "{" + ", ".join([*fields, *(f'"k{n}": {n}' for n in range(count)), f'"k{count - 1}": 0']) + "}"


def test_many_keys_are_refused_by_the_one_that_is_given_twice(maker: Maker) -> None:
    upload = Upload("results_1.json", keys(60_000, results={}).encode())
    with pytest.raises(ValidationError) as refused:
        results_import(run=maker.run(), actor=maker.actor, phase="before", uploads=[upload])
    assert "'k59999' is given twice" in refused.value.message_dict["upload"][0]


@pytest.mark.parametrize(
    ("line", "part"),
    [
        (keys(60_000, prompt="p", answer="a"), "'k59999' is given twice"),
        (json.dumps({f"k{n}": n for n in range(60_000)}), "and 59,990 more"),
        ('{"prompt": "p", "answer": "a", "x": 1e999}', "1e999 is too large a number"),
        ('{"prompt": "p", "answer": "a", "x": ' + "[" * 5000 + "]" * 5000 + "}", "line 1"),
    ],
    ids=["keys", "names", "infinite", "nested"],
)
def test_a_line_that_cannot_be_taken_is_refused_briefly(maker: Maker, line: str, part: str) -> None:
    given: dict[str, Any] = {"project": maker.project, "actor": maker.actor, "name": "odd", "format": "plain"}
    with pytest.raises(ValidationError) as refused:
        dataset_create(**given, chunks=[line.encode()])
    fault = refused.value.message_dict["file"][0]
    assert part in fault
    assert len(fault) < 500


@pytest.mark.parametrize("text", [".inf", "-.inf", ".nan", "1e999", "x: [1.0e+999]"])
def test_a_number_of_yaml_is_finite(text: str) -> None:
    import yaml

    with pytest.raises(yaml.YAMLError, match="finite"):
        parse_yaml(text)


NUMBERS = ("²", "1e999", "nan", "9" * 5000, "--1", "\x00")


@pytest.mark.parametrize("field", ["engine.deepspeed.zero_stage", "optim.lr", "optim.steps", "eval.margin"])
@pytest.mark.parametrize("engine", ["single", "deepspeed"])
def test_a_number_of_a_form_is_a_number(operator: Client, chosen: dict[str, str], field: str, engine: str) -> None:
    sent = {**chosen, "engine.training": engine, "action": "launch"}
    statuses = {n: operator.post("/p/ours/runs/new/", {**sent, field: n}).status_code for n in NUMBERS}
    assert set(statuses.values()) == {422}, statuses
    assert operator.post("/p/ours/runs/new/", {**sent, f"{field}\x00²": "1"}).status_code == 422


def test_what_compares_with_thousands_of_texts_is_a_job(operator: Client, ours: Project) -> None:
    spec = {"components": [{"name": "near", "kind": "similarity", "params": {"column": "refs", "extract": "whole"}}]}
    for count, jobs in ((2, 0), (4000, 1)):
        meta = json.dumps({"refs": [f"reference {n}" for n in range(count)]})
        data = {"spec": json.dumps(spec), "completion": "reference 1", "meta": meta}
        assert operator.post("/p/ours/lab/try/", data).status_code in (200, 302)
        assert LabJob.objects.filter(project=ours).count() == jobs
