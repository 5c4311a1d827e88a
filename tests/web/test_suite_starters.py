"""The starter suites: added once, each as it comes with Cohort, and never over a suite of the project's own."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from django.core.exceptions import ValidationError
from django.test import Client

from cohort import artifacts
from cohort.accounts.models import Project, User
from cohort.audit.models import AuditEntry
from cohort.catalog import suites
from cohort.catalog.models import EvalSuiteVersion
from cohort.catalog.suites import starters_add
from cohort.runs.attempts import attempt_inputs
from cohort.runs.services import ChosenSuite, run_create, suite_path
from grpo_core.config import RunConfig
from grpo_core.evaluate.suites import load_suites, starters
from tests.web.run_page import words
from tests.web.run_rows import Maker
from tests.web.suite_rows import add_suite

ClientFor = Callable[[User], Client]


def test_all_are_added_once_as_they_come(client_for: ClientFor, ours: Project, oscar: User) -> None:
    client = client_for(oscar)
    page = words(client.get("/p/ours/suites/").content.decode())
    for starter in starters():
        assert starter.title in page
        assert " ".join(starter.limits.split()) in page, "what it cannot tell is said before it is taken"
    assert client.post("/p/ours/suites/starters/").status_code == 302
    versions = {version.suite.name: version for version in EvalSuiteVersion.objects.select_related("suite")}
    assert set(versions) == {starter.name for starter in starters()}
    for starter in starters():
        version = versions[starter.name]
        assert (version.sha256, version.items, version.builtin) == (starter.sha256, starter.items, starter.name)
        assert (version.category, version.sensitive, version.limits) == (
            *(starter.category, starter.sensitive, starter.limits),
        )
        assert suite_path(version) == f"builtin:{starter.name}"
    assert AuditEntry.objects.filter(kind="suite_version_added").count() == len(versions)
    client.post("/p/ours/suites/starters/")
    assert EvalSuiteVersion.objects.count() == len(versions)
    assert "Add starter suites" not in client.get("/p/ours/suites/").content.decode()


def test_one_is_added_by_its_name(client_for: ClientFor, ours: Project, oscar: User) -> None:
    client = client_for(oscar)
    client.post("/p/ours/suites/starters/", {"name": "format"})
    assert [version.suite.name for version in EvalSuiteVersion.objects.all()] == ["format"]
    page = client.post("/p/ours/suites/starters/", {"name": "nothing"}, follow=True).content.decode()
    assert "There is no starter suite" in page
    with pytest.raises(ValidationError, match="no starter suite 'nothing'"):
        starters_add(project=ours, actor=oscar, names=["nothing"])


def test_a_suite_of_ones_own_stays(client_for: ClientFor, ours: Project, oscar: User) -> None:
    own = add_suite(ours, oscar, "format")
    page = client_for(oscar).post("/p/ours/suites/starters/", follow=True).content.decode()
    assert "suites of your own have these names: format" in page
    assert list(own.suite.versions.all()) == [own]


def test_a_newer_cohort_brings_a_new_version(monkeypatch: pytest.MonkeyPatch, ours: Project, oscar: User) -> None:
    """The version that runs used stays, and a run that uses it gets its file, which Cohort no longer brings."""
    (old,) = starters_add(project=ours, actor=oscar, names=["format"]).added
    now = {starter.name: starter for starter in starters()}
    _, *rest = now["format"].content.splitlines(keepends=True)
    other = replace(now["format"], content=b"".join(rest))
    monkeypatch.setattr(suites, "starters", lambda: (other,))
    (new,) = starters_add(project=ours, actor=oscar).added
    assert (new.suite_id, new.number, new.items) == (old.suite_id, 2, old.items - 1)
    assert suite_path(new) == f"inputs/{new.sha256}.jsonl", "these are not the bytes that this Cohort brings"
    assert suite_path(old) == "builtin:format"


def test_the_trainer_takes_what_a_worker_is_given(tmp_path: Path, maker: Maker, ours: Project, oscar: User) -> None:
    """The run's config with its files laid as the worker lays them: the trainer's own loader reads every suite."""
    own = add_suite(ours, oscar)
    given = starters_add(project=ours, actor=oscar).added
    run = run_create(
        **maker._named("whole"),
        settings={"eval": {"holdout": 4}},
        suites=[ChosenSuite(own, limit=2), *(ChosenSuite(one) for one in given)],
    )
    for row, file in attempt_inputs(run=run):
        place = tmp_path / file.path
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(b"".join(artifacts.read_chunks(row.artifact)))
    loaded = load_suites(RunConfig.from_whole(run.config).eval.suites, base=tmp_path)
    assert [(suite.config.name, len(suite.items)) for suite in loaded] == [
        ("capitals", 2),
        *((one.suite.name, one.items) for one in given),
    ]
    assert [suite.sha256 for suite in loaded] == [own.sha256, *(one.sha256 for one in given)]
