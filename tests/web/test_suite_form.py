"""Suites in the run form: chosen with a margin, lossless through clone and YAML, locked, handed to workers."""

import json
import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.catalog.models import EvalSuiteVersion
from cohort.catalog.suites import starters_add
from cohort.runs.attempts import attempt_claim, attempt_inputs
from cohort.runs.models import Run
from cohort.runs.nodes import node_create
from cohort.runs.services import ChosenSuite, run_create, run_submit, suite_path
from grpo_core.config import RunConfig
from grpo_core.errors import ConfigError
from tests.web.form_page import as_browser, said, value
from tests.web.run_page import words
from tests.web.run_rows import Maker
from tests.web.suite_rows import CHOICES, HARMFUL, ITEMS, add_suite
from tests.worker.making import NODE

ClientFor = Callable[[User], Client]
NEW = "/p/ours/runs/new/"


@pytest.fixture
def capitals(ours: Project, alice: User) -> EvalSuiteVersion:
    return add_suite(ours, alice)


@pytest.fixture
def locks(ours: Project, alice: User) -> EvalSuiteVersion:
    return add_suite(ours, alice, "locks", spec=HARMFUL, content=CHOICES)


def choosing(version: EvalSuiteVersion, **parts: str) -> dict[str, str]:
    return {f"suite.{version.pk}": "true", **{f"suite.{version.pk}.{part}": text for part, text in parts.items()}}


def test_none_is_chosen_until_somebody_does(
    client_for: ClientFor, oscar: User, chosen: dict[str, str], capitals: EvalSuiteVersion
) -> None:
    client = client_for(oscar)
    page = client.get(NEW).content.decode()
    assert f'name="suite.{capitals.pk}" value="true" aria' in page
    assert value(page, f"suite.{capitals.pk}.margin") == "0.1", "the version's own, to be edited"
    assert "3 items" in words(page)
    client.post(NEW, as_browser(page) | chosen | {"action": "draft"})
    run = Run.objects.get()
    assert run.config["eval"]["suites"] == []
    assert not run.suites.exists()


def test_a_run_locks_the_margin_and_keeps_the_version(
    client_for: ClientFor, oscar: User, chosen: dict[str, str], capitals: EvalSuiteVersion, locks: EvalSuiteVersion
) -> None:
    data = chosen | choosing(locks, margin="0.02", limit="2") | choosing(capitals, margin="") | {"action": "launch"}
    assert client_for(oscar).post(NEW, data).status_code == 302
    run = Run.objects.get()
    assert run.config["eval"]["suites"] == [
        {
            "name": "capitals",
            "title": "Capitals",
            "version": 1,
            "path": f"inputs/{capitals.sha256}.jsonl",
            "sha256": capitals.sha256,
            "category": "hallucination",
            "scorer": {"kind": "contains", "params": {}},
            "higher_is": "better",
            "sensitive": False,
            "margin": None,
            "limit": None,
            "max_completion_tokens": None,
            "template": None,
        },
        {
            **run.config["eval"]["suites"][1],
            "name": "locks",
            "path": f"inputs/{locks.sha256}.jsonl",
            "higher_is": "worse",
            "sensitive": True,
            "margin": 0.02,
            "limit": 2,
        },
    ]
    assert set(run.suites.all()) == {capitals, locks}
    used = client_for(oscar).get(f"/p/ours/suites/{locks.suite_id}/").content.decode()
    assert f'href="/p/ours/runs/{run.pk}/"' in used


def test_the_form_says_what_it_will_cost(
    client_for: ClientFor, oscar: User, chosen: dict[str, str], capitals: EvalSuiteVersion, locks: EvalSuiteVersion
) -> None:
    client = client_for(oscar)
    data = chosen | choosing(capitals) | choosing(locks, limit="2") | {"action": "check"}
    page = words(client.post(NEW, data).content.decode())
    assert "Suites 2, 5 items: 10 more completions" in page, "3 + 2 items, before and after"
    page = words(client.post(NEW, data | {"eval.samples_per_problem": "4", "eval.after": "false"}).content.decode())
    assert "Suites 2, 5 items: 20 more completions" in page


@pytest.mark.parametrize(
    ("part", "text", "words"),
    [
        ("margin", "2", "Margin must be at most 0.2"),
        ("margin", "soon", "Margin must be a number"),
        ("limit", "0", "First items only must be 1 or more"),
        ("max_completion_tokens", "x", "Longest completion, tokens must be a whole number"),
        ("template", "no place", "Template must hold {prompt}"),
    ],
)
def test_a_fault_stands_beside_its_input(
    client_for: ClientFor,
    oscar: User,
    chosen: dict[str, str],
    capitals: EvalSuiteVersion,
    part: str,
    text: str,
    words: str,
) -> None:
    response = client_for(oscar).post(NEW, chosen | choosing(capitals, **{part: text}) | {"action": "launch"})
    page = response.content.decode()
    assert response.status_code == 422
    where = f"f-suite-{capitals.pk}" + ("" if part == "template" else f"-{part.replace('_', '-')}")
    assert words in unescape(said(page, where))
    assert value(page, f"suite.{capitals.pk}.margin") == (text if part == "margin" else "0.1")
    assert not Run.objects.exists()


def test_two_versions_of_one_suite_are_refused(
    client_for: ClientFor, oscar: User, chosen: dict[str, str], ours: Project, capitals: EvalSuiteVersion
) -> None:
    second = add_suite(ours, oscar, content=ITEMS + b'{"id": "p", "prompt": "Peru?", "target": "Lima"}\n')
    page = client_for(oscar).get(NEW).content.decode()
    assert f'name="suite.{second.pk}"' in page
    assert f'name="suite.{capitals.pk}"' not in page, "only the newest is offered"
    response = client_for(oscar).post(NEW, chosen | choosing(capitals) | choosing(second) | {"action": "launch"})
    assert response.status_code == 422
    assert "A run takes one of them" in response.content.decode()


def test_a_suite_of_another_project_is_refused(
    client_for: ClientFor, charlie: User, oscar: User, chosen: dict[str, str], maker: Maker
) -> None:
    theirs = add_suite(Project.objects.get(slug="theirs"), charlie)
    response = client_for(oscar).post(NEW, chosen | choosing(theirs) | {"action": "launch"})
    assert response.status_code == 422
    assert f"suite.{theirs.pk} is not a field of the run form" in response.content.decode()
    with pytest.raises(ConfigError) as error:
        run_create(**maker._named("x"), settings={"eval": {"holdout": 4}}, suites=[ChosenSuite(theirs)])
    assert [problem.path for problem in error.value.problems] == ["eval.suites.0"]


def test_suites_cannot_slip_in_through_the_settings(maker: Maker) -> None:
    with pytest.raises(ConfigError, match=r"eval\.suites: is decided by the suites"):
        maker.run(eval={"holdout": 4, "suites": [{"path": "builtin:performance"}]})


def test_a_clone_and_copied_yaml_are_the_same_run_again(
    client_for: ClientFor, oscar: User, chosen: dict[str, str], ours: Project, capitals: EvalSuiteVersion
) -> None:
    client = client_for(oscar)
    parts = {"margin": "0.025", "limit": "2", "max_completion_tokens": "9", "template": "\nQ: {prompt}\r\nA:"}
    client.post(NEW, chosen | choosing(capitals, **parts) | {"action": "draft"})
    first = Run.objects.get()
    assert first.config["eval"]["suites"][0]["template"] == "\nQ: {prompt}\nA:"
    add_suite(ours, oscar, content=ITEMS + b'{"id": "p", "prompt": "Peru?", "target": "Lima"}\n')

    page = client.get(NEW, {"clone": first.pk}).content.decode()
    assert f'name="suite.{capitals.pk}" value="true" checked' in page, "the version that it was, not the newest"
    client.post(NEW, as_browser(page) | {"action": "draft"})
    clone = Run.objects.exclude(pk=first.pk).get()
    assert clone.config_digest == first.config_digest
    assert list(clone.suites.all()) == [capitals]

    copied = client.post(NEW, as_browser(page) | {"action": "yaml"}).content.decode()
    found = re.search(r"<pre[^>]*>(.*?)</pre>", copied, re.DOTALL)
    assert found is not None
    page = client.post(NEW, {"action": "import", "yaml": unescape(found[1])}).content.decode()
    client.post(NEW, as_browser(page) | {"action": "draft"})
    assert Run.objects.latest("pk").config_digest == first.config_digest


def test_yaml_with_an_unknown_suite_says_what_to_upload(
    client_for: ClientFor, oscar: User, maker: Maker, capitals: EvalSuiteVersion
) -> None:
    run = run_create(**maker._named("x"), settings={"eval": {"holdout": 4}}, suites=[ChosenSuite(capitals)])
    config: dict[str, Any] = json.loads(json.dumps(run.config))
    config["eval"]["suites"][0]["sha256"] = "0" * 64
    response = client_for(oscar).post(NEW, {"action": "import", "yaml": RunConfig.from_dict(config).to_yaml()})
    assert response.status_code == 422
    assert "no suite of this project is capitals (sha256 00000000…)" in response.content.decode()


def test_a_worker_gets_the_files_and_no_more(
    maker: Maker, ours: Project, oscar: User, capitals: EvalSuiteVersion
) -> None:
    """A starter suite is there with the worker already; it gets the uploaded one, as it was stored."""
    (starter, *_) = starters_add(project=ours, actor=oscar).added
    assert suite_path(starter) == f"builtin:{starter.builtin}"
    run = run_create(
        **maker._named("x"), settings={"eval": {"holdout": 4}}, suites=[ChosenSuite(capitals), ChosenSuite(starter)]
    )
    files = [file for _, file in attempt_inputs(run=run)]
    assert [(file.path, file.sha256, file.size) for file in files] == [
        (f"inputs/{row.sha256}.jsonl", row.sha256, row.size) for row in (maker.dataset, capitals)
    ]


def test_a_worker_fetches_a_suite_by_http(client: Client, maker: Maker, capitals: EvalSuiteVersion) -> None:
    run = run_create(**maker._named("x"), settings={"eval": {"holdout": 4}}, suites=[ChosenSuite(capitals)])
    run_submit(run=run, actor=maker.actor)
    node, _ = node_create(name="gpu-1")
    claimed = attempt_claim(run_id=run.pk, node=node, info=NODE)
    answer = client.get(
        f"/api/worker/v1/attempts/{claimed.attempt.pk}/files/{capitals.sha256}",
        headers={"Authorization": f"Bearer {claimed.token}"},
    )
    assert answer.status_code == 200
    assert b"".join(answer.streaming_content) == ITEMS  # type: ignore[attr-defined]


def test_starter_suites_are_one_click_away_and_nothing_is_lost(
    client_for: ClientFor, oscar: User, chosen: dict[str, str], capitals: EvalSuiteVersion
) -> None:
    client = client_for(oscar)
    assert "starter suite" in client.get(NEW).content.decode()
    data = chosen | choosing(capitals, margin="0.03") | {"seed": "7", "action": "starters"}
    page = client.post(NEW, data).content.decode()
    assert value(page, "seed") == "7"
    assert value(page, f"suite.{capitals.pk}.margin") == "0.03"
    assert f'name="suite.{capitals.pk}" value="true" checked' in page
    added = EvalSuiteVersion.objects.exclude(builtin="")
    assert added.exists()
    for version in added:
        assert f'name="suite.{version.pk}" value="true" aria' in page, "offered, not chosen"
    assert 'value="starters"' not in page
