"""Suites in the run form: chosen with a margin, lossless through clone and YAML, locked, handed to workers."""

import json
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from cohort import artifacts
from cohort.accounts.models import Project, User
from cohort.catalog.models import EvalSuiteVersion
from cohort.catalog.suites import starters_add
from cohort.runs.attempts import attempt_inputs
from cohort.runs.models import Run
from cohort.runs.nodes import node_create
from cohort.runs.services import ChosenSuite, run_create, run_submit, suite_path
from grpo_core.config import RunConfig
from grpo_core.errors import ConfigError
from grpo_core.evaluate.suites import load_suites
from tests.web.form_page import as_browser, error, value
from tests.web.run_page import words
from tests.web.run_rows import Maker
from tests.web.suite_rows import CHOICES, HARMFUL, ITEMS, add_suite
from tests.web.worker_calls import AttemptCaller, Caller, claim

ClientFor = Callable[[User], Client]
NEW = "/p/ours/runs/new/"
MORE = ITEMS + b'{"id": "p", "prompt": "Peru?", "target": "Lima"}\n'


@pytest.fixture
def client(client_for: ClientFor, oscar: User) -> Client:
    return client_for(oscar)


@pytest.fixture
def capitals(ours: Project, alice: User) -> EvalSuiteVersion:
    return add_suite(ours, alice)


@pytest.fixture
def locks(ours: Project, alice: User) -> EvalSuiteVersion:
    return add_suite(ours, alice, "locks", spec=HARMFUL, content=CHOICES)


def choosing(version: EvalSuiteVersion, **parts: str) -> dict[str, str]:
    return {f"suite.{version.pk}": "true", **{f"suite.{version.pk}.{part}": text for part, text in parts.items()}}


def with_suites(maker: Maker, *suites: ChosenSuite) -> Run:
    return run_create(**maker._named("x"), settings={"eval": {"holdout": 4}}, suites=suites)


def test_none_is_chosen_until_somebody_does(client: Client, chosen: dict[str, str], capitals: EvalSuiteVersion) -> None:
    page = client.get(NEW).content.decode()
    assert f'name="suite.{capitals.pk}" value="true" aria' in page
    assert value(page, f"suite.{capitals.pk}.margin") == "0.1", "the version's own, to be edited"
    client.post(NEW, as_browser(page) | chosen | {"action": "draft"})
    run = Run.objects.get()
    assert run.config["eval"]["suites"] == []
    assert not run.suites.exists()


def test_a_run_locks_the_margin_and_keeps_the_version(
    client: Client, chosen: dict[str, str], capitals: EvalSuiteVersion, locks: EvalSuiteVersion
) -> None:
    data = chosen | choosing(locks, margin="0.02", limit="2") | choosing(capitals, margin="")
    check = words(client.post(NEW, data | {"action": "check"}).content.decode())
    assert "5 items: 10 more completions" in check, "3 + 2 items, before and after"
    more = {"action": "check", "eval.samples_per_problem": "4", "eval.after": "false"}
    assert "5 items: 20 more completions" in words(client.post(NEW, data | more).content.decode())
    assert client.post(NEW, data | {"action": "launch"}).status_code == 302
    run = Run.objects.get()
    first, second = run.config["eval"]["suites"]
    assert first == {
        **{"name": "capitals", "title": "Capitals", "version": 1, "sha256": capitals.sha256},
        **{"path": f"inputs/{capitals.sha256}.jsonl", "category": "hallucination"},
        **{"scorer": {"kind": "contains", "params": {}}, "higher_is": "better", "sensitive": False},
        **{"margin": None, "limit": None, "max_completion_tokens": None, "template": None},
    }
    assert {key: second[key] for key in ("name", "path", "higher_is", "sensitive", "margin", "limit")} == {
        **{"name": "locks", "path": f"inputs/{locks.sha256}.jsonl"},
        **{"higher_is": "worse", "sensitive": True, "margin": 0.02, "limit": 2},
    }
    assert set(run.suites.all()) == {capitals, locks}
    used = client.get(f"/p/ours/suites/{locks.suite_id}/").content.decode()
    assert f'href="/p/ours/runs/{run.pk}/"' in used


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("margin", "2"),
        ("margin", "soon"),
        ("limit", "0"),
        ("max_completion_tokens", "x"),
        ("template", "no place"),
    ],
)
def test_a_fault_stands_beside_its_input(
    client: Client, chosen: dict[str, str], capitals: EvalSuiteVersion, part: str, text: str
) -> None:
    response = client.post(NEW, chosen | choosing(capitals, **{part: text}) | {"action": "launch"})
    page = response.content.decode()
    assert response.status_code == 422
    where = f"f-suite-{capitals.pk}" + ("" if part == "template" else f"-{part.replace('_', '-')}")
    assert "must" in error(page, where)
    assert value(page, f"suite.{capitals.pk}.margin") == (text if part == "margin" else "0.1")
    assert not Run.objects.exists()


def test_suites_that_a_run_cannot_take_are_refused(
    client: Client, charlie: User, oscar: User, chosen: dict[str, str], maker: Maker, capitals: EvalSuiteVersion
) -> None:
    second = add_suite(maker.project, oscar, content=MORE)
    theirs = add_suite(Project.objects.get(slug="theirs"), charlie)
    page = client.get(NEW).content.decode()
    assert f'name="suite.{second.pk}"' in page
    assert f'name="suite.{capitals.pk}"' not in page, "only the newest is offered"
    for data, says in (
        (choosing(capitals) | choosing(second), "A run takes one of them"),
        (choosing(theirs), f"suite.{theirs.pk} is not a field"),
    ):
        response = client.post(NEW, chosen | data | {"action": "launch"})
        assert response.status_code == 422
        assert says in response.content.decode()
    with pytest.raises(ConfigError) as caught:
        with_suites(maker, ChosenSuite(theirs))
    assert [problem.path for problem in caught.value.problems] == ["eval.suites.0"]
    with pytest.raises(ConfigError, match=r"eval\.suites: is decided by the suites"):
        maker.run(eval={"holdout": 4, "suites": [{"path": "builtin:performance"}]})


def test_a_clone_and_copied_yaml_are_the_same_run_again(
    client: Client, oscar: User, chosen: dict[str, str], ours: Project, capitals: EvalSuiteVersion
) -> None:
    parts = {"margin": "0.025", "limit": "2", "max_completion_tokens": "9", "template": "\nQ: {prompt}\r\nA:"}
    client.post(NEW, chosen | choosing(capitals, **parts) | {"action": "draft"})
    first = Run.objects.get()
    assert first.config["eval"]["suites"][0]["template"] == "\nQ: {prompt}\nA:"
    add_suite(ours, oscar, content=MORE)

    page = client.get(NEW, {"clone": first.pk}).content.decode()
    assert f'name="suite.{capitals.pk}" value="true" checked' in page, "the version that it was, not the newest"
    client.post(NEW, as_browser(page) | {"action": "draft"})
    clone = Run.objects.exclude(pk=first.pk).get()
    assert clone.config_digest == first.config_digest
    assert list(clone.suites.all()) == [capitals]

    copied = client.post(NEW, as_browser(page) | {"action": "yaml"}).content.decode()
    text = re.search(r"<pre[^>]*>(.*?)</pre>", copied, re.DOTALL)
    assert text is not None
    page = client.post(NEW, {"action": "import", "yaml": unescape(text[1])}).content.decode()
    client.post(NEW, as_browser(page) | {"action": "draft"})
    assert Run.objects.latest("pk").config_digest == first.config_digest

    config: dict[str, Any] = json.loads(json.dumps(first.config))
    config["eval"]["suites"][0]["sha256"] = "0" * 64
    response = client.post(NEW, {"action": "import", "yaml": RunConfig.from_dict(config).to_yaml()})
    assert response.status_code == 422
    assert "no suite of this project is capitals" in response.content.decode()


def test_the_trainer_takes_what_a_worker_is_given(
    tmp_path: Path, maker: Maker, ours: Project, oscar: User, capitals: EvalSuiteVersion
) -> None:
    """The run's config with its files laid as the worker lays them: the trainer's own loader reads every suite. A
    starter suite is there with the worker already."""
    starters = starters_add(project=ours, actor=oscar).added
    assert suite_path(starters[0]) == f"builtin:{starters[0].builtin}"
    run = with_suites(maker, ChosenSuite(capitals, limit=2), *map(ChosenSuite, starters))
    inputs = attempt_inputs(run=run)
    assert [(file.path, file.sha256, file.size) for _, file in inputs] == [
        (f"inputs/{row.sha256}.jsonl", row.sha256, row.size) for row in (maker.dataset, capitals)
    ]
    for row, file in inputs:
        path = tmp_path / file.path
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"".join(artifacts.read_chunks(row.artifact)))
    loaded = load_suites(RunConfig.from_whole(run.config).eval.suites, base=tmp_path)
    assert [(suite.config.name, len(suite.items), suite.sha256) for suite in loaded] == [
        ("capitals", 2, capitals.sha256),
        *((one.suite.name, one.items, one.sha256) for one in starters),
    ]


def test_a_worker_fetches_a_suite_by_http(maker: Maker, capitals: EvalSuiteVersion) -> None:
    run = with_suites(maker, ChosenSuite(capitals))
    run_submit(run=run, actor=maker.actor)
    worker = AttemptCaller(claim(Caller(node_create(name="gpu-1")[1]), run))
    assert b"".join(worker.get(f"{worker.at}/files/{capitals.sha256}").streaming_content) == ITEMS


def test_starter_suites_are_one_click_away_and_nothing_is_lost(
    client: Client, chosen: dict[str, str], capitals: EvalSuiteVersion
) -> None:
    data = chosen | choosing(capitals, margin="0.03") | {"seed": "7", "action": "starters"}
    page = client.post(NEW, data).content.decode()
    assert (value(page, "seed"), value(page, f"suite.{capitals.pk}.margin")) == ("7", "0.03")
    assert f'name="suite.{capitals.pk}" value="true" checked' in page
    added = EvalSuiteVersion.objects.exclude(builtin="")
    assert added.exists()
    for version in added:
        assert f'name="suite.{version.pk}" value="true" aria' in page, "offered, not chosen"
    assert 'value="starters"' not in page
