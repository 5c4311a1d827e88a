"""Suites of evaluations: uploaded, added as starters, chosen in the run form with a margin, lossless through clone and
YAML, locked, handed to workers.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import DatabaseError, connection, transaction
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.audit.models import AuditEntry
from cohort.base import artifacts
from cohort.catalog import suites
from cohort.catalog.models import EvalSuite, EvalSuiteVersion
from cohort.catalog.run_inputs import ChosenSuite, suite_path
from cohort.catalog.suites import starters_add
from cohort.launch.creation import run_create
from cohort.runs.attempts import attempt_inputs
from cohort.runs.models import Run
from grpo_core.config.run import RunConfig
from grpo_core.errors import ConfigError
from grpo_core.evaluate.item import ATTACKS
from grpo_core.evaluate.suites.load import load_suites, starters
from tests.factories.runs import Maker
from tests.factories.suites import CHOICES, HARMFUL, ITEMS, add_suite, upload
from tests.tables import cases
from tests.web.form_page import as_browser, error, value
from tests.web.pages import html
from tests.web.run_page import words

PERU = b'{"id": "peru", "prompt": "What is the capital of peru?", "target": "Lima"}\n'
STARTERS = "/p/ours/suites/starters/"


def test_operator_uploads_and_sees_it(operator: Client, oscar: User) -> None:
    response = upload(operator, ("capitals.jsonl", ITEMS), limits="Three items tell little.", source="by hand")
    assert response.status_code == 302
    version = EvalSuiteVersion.objects.get(suite__project__slug="ours")
    assert response.url == f"/p/ours/suites/{version.suite_id}/"
    assert (version.suite.name, version.number, version.items, version.created_by) == ("capitals", 1, 3, oscar)
    assert version.sha256 == hashlib.sha256(ITEMS).hexdigest()
    assert (version.scorer, version.margin) == ({"kind": "contains", "params": {}}, 0.1)
    assert b"".join(artifacts.read_chunks(version.artifact)) == ITEMS
    page = html(operator.get(response.url))
    for part in (version.sha256, "What is the capital of italy?", "Three items tell little.", "a fall of the score"):
        assert part in page
    entry = json.loads(bytes(AuditEntry.objects.get(kind="suite_version_added").body))
    assert (entry["actor"], entry["subject"]) == ("user:oscar", "suite:capitals")
    assert entry["after"]["sha256"] == version.sha256
    again = upload(operator, ("capitals.jsonl", ITEMS))
    assert again.status_code == 422
    assert "Open it to add a version" in html(again)


@pytest.mark.parametrize(
    ("limit", "most", "names"),
    [("MAX_SUITE_ITEMS", 3, "more than 3 items"), ("MAX_SUITE_BYTES", len(ITEMS), "The items made of it are")],
)
def test_what_is_made_of_a_file_is_bounded_too(
    operator: Client, monkeypatch: pytest.MonkeyPatch, limit: str, most: int, names: str
) -> None:
    monkeypatch.setattr(f"cohort.catalog.suites.{limit}", most)
    response = upload(operator, ("items.jsonl", ITEMS), attacks=["none", "base64"])
    assert response.status_code == 422
    assert names in html(response)
    assert not EvalSuite.objects.exists()
    names = ["none", *[name for name in ATTACKS if name != "none"][:2]]
    monkeypatch.undo()
    assert upload(operator, ("items.jsonl", ITEMS), attacks=names).status_code == 302
    version = EvalSuiteVersion.objects.get()
    assert (version.items, version.clusters, len(version.slices)) == (9, 3, 3), "attacks on an item are one cluster"
    assert version.taken == {"limit": None, "attacks": names}


PUBLIC = ("name", "files", "expected", "targets")


@pytest.mark.parametrize(PUBLIC, cases("catalog/public_suites", *PUBLIC))
def test_public_sets_are_converted_and_know_what_they_are(
    operator: Client, name: str, files: dict[str, str], expected: dict[str, Any], targets: list[str] | None
) -> None:
    own = {"category": "", "scorer": "", "higher_is": "", "sensitive": ""}
    sent = [(file, text.encode()) for file, text in files.items()]
    assert upload(operator, *sent, name=name, format=name, **own).status_code == 302
    version = EvalSuiteVersion.objects.get(suite__name=name)
    facts = {key: getattr(version, key) for key in expected if key != "scorer"}
    assert facts | {"scorer": version.scorer["kind"]} == expected
    assert version.files == [
        {"name": file, "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)} for file, content in sent
    ], "each file as it was given is known by its digest"
    if targets:
        stored = b"".join(artifacts.read_chunks(version.artifact)).splitlines()
        assert [json.loads(line)["target"] for line in stored] == targets
    page = html(operator.get(f"/p/ours/suites/{version.suite_id}/"))
    assert all(file in page for file in files)


def test_a_broken_public_set_is_refused_with_its_line(operator: Client) -> None:
    bad = b'{"question": "3 * 4?", "answer": "#### 12"}\n{"question": "7 * 7?", "answer": "forty-nine"}\n'
    response = upload(operator, ("test.jsonl", bad), format="gsm8k", category="", scorer="")
    assert response.status_code == 422
    assert "test.jsonl, line 2" in html(response)
    assert not EvalSuite.objects.exists()


def test_a_new_version_leaves_the_old_one(operator: Client, ours: Project, oscar: User) -> None:
    first = add_suite(ours, oscar)
    address = f"/p/ours/suites/{first.suite_id}/new-version/"
    assert "Three items tell little." in html(operator.get(address)), "it begins as the newest version is"
    for _ in range(2):  # the very same is no new version
        assert upload(operator, ("more.jsonl", ITEMS + PERU), address=address).status_code == 302
    assert [(version.number, version.items) for version in first.suite.versions.order_by("number")] == [(1, 3), (2, 4)]
    assert "3 items" in html(operator.get(f"/p/ours/suites/{first.suite_id}/", {"version": 1}))
    for statement in ("UPDATE catalog_evalsuiteversion SET margin = 0.9", "DELETE FROM catalog_evalsuiteversion"):
        with pytest.raises(DatabaseError, match="only added"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)


def test_sensitive_items_are_for_reviewers(ours: Project, oscar: User, reviewer: Client, viewer: Client) -> None:
    version = add_suite(ours, oscar, "locks", spec=HARMFUL, content=CHOICES)
    page = html(reviewer.get(f"/p/ours/suites/{version.suite_id}/"))
    assert "<details><summary>Show the first items" in page
    assert "SECRET question 0?" in page
    assert "SECRET" not in html(viewer.get(f"/p/ours/suites/{version.suite_id}/"))


def test_an_upload_over_the_limit_is_refused_unread(operator: Client) -> None:
    form = "multipart/form-data; boundary=x"
    big = operator.generic("POST", "/p/ours/suites/new/", b"", content_type=form, CONTENT_LENGTH=str(66 * 1024 * 1024))
    assert big.status_code == 413


# ---------------------------------------------------------------------- starter suites


def test_all_are_added_once_as_they_come(operator: Client, ours: Project, oscar: User) -> None:
    own = add_suite(ours, oscar, "format")
    page = words(html(operator.get("/p/ours/suites/")))
    assert all(" ".join(starter.limits.split()) in page for starter in starters()), "what each cannot tell"
    for _ in range(2):
        assert operator.post(STARTERS).status_code == 302
    versions = {version.suite.name: version for version in EvalSuiteVersion.objects.select_related("suite")}
    assert set(versions) == {starter.name for starter in starters()}
    assert versions.pop("format") == own, "a suite of one's own stays"
    for starter in starters():
        if version := versions.get(starter.name):
            for field in ("sha256", "items", "category", "sensitive", "limits"):
                assert getattr(version, field) == getattr(starter, field)
            assert (version.builtin, suite_path(version)) == (starter.name, f"builtin:{starter.name}")
    assert AuditEntry.objects.filter(kind="suite_version_added").count() == len(versions) + 1


def test_a_newer_cohort_brings_a_new_version(
    operator: Client, monkeypatch: pytest.MonkeyPatch, ours: Project, oscar: User
) -> None:
    """The version that runs used stays, and a run that uses it gets its file, which Cohort no longer brings."""
    with pytest.raises(ValidationError, match="nothing"):
        starters_add(project=ours, actor=oscar, names=["nothing"])
    for name in ("format", "nothing"):
        operator.post(STARTERS, {"name": name})
    old = EvalSuiteVersion.objects.get(suite__name="format", builtin="format")
    now = {starter.name: starter for starter in starters()}["format"]
    other = now.model_copy(update={"content": now.content.partition(b"\n")[2]})
    monkeypatch.setattr(suites, "starters", lambda: (other,))
    (new,) = starters_add(project=ours, actor=oscar).added
    assert (new.suite_id, new.number, new.items) == (old.suite_id, 2, old.items - 1)
    assert suite_path(new) == f"inputs/{new.sha256}.jsonl", "these are not the bytes that this Cohort brings"
    assert suite_path(old) == "builtin:format"


NEW = "/p/ours/runs/new/"
MORE = ITEMS + b'{"id": "p", "prompt": "Peru?", "target": "Lima"}\n'


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


def test_none_is_chosen_by_itself(operator: Client, chosen: dict[str, str], capitals: EvalSuiteVersion) -> None:
    page = html(operator.get(NEW))
    assert f'name="suite.{capitals.pk}" value="true" aria' in page
    assert value(page, f"suite.{capitals.pk}.margin") == "0.1", "the version's own, to be edited"
    operator.post(NEW, as_browser(page) | chosen | {"action": "draft"})
    run = Run.objects.get()
    assert run.config["eval"]["suites"] == []
    assert not run.suites.exists()


def test_a_run_locks_the_margin_and_keeps_the_version(
    operator: Client, chosen: dict[str, str], capitals: EvalSuiteVersion, locks: EvalSuiteVersion, golden: Any
) -> None:
    data = chosen | choosing(locks, margin="0.02", limit="2") | choosing(capitals, margin="")
    check = words(html(operator.post(NEW, data | {"action": "check"})))
    assert "5 items: 10 more completions" in check, "3 + 2 items, before and after"
    more = {"action": "check", "eval.samples_per_problem": "4", "eval.after": "false"}
    assert "5 items: 20 more completions" in words(html(operator.post(NEW, data | more)))
    assert operator.post(NEW, data | {"action": "launch"}).status_code == 302
    run = Run.objects.get()
    golden("form/suites.json", run.config["eval"]["suites"])
    assert [suite["sha256"] for suite in run.config["eval"]["suites"]] == [capitals.sha256, locks.sha256]
    assert set(run.suites.all()) == {capitals, locks}
    used = html(operator.get(f"/p/ours/suites/{locks.suite_id}/"))
    assert f'href="/p/ours/runs/{run.pk}/"' in used


@pytest.mark.parametrize(("part", "text"), cases("runs/suite_faults", "part", "text"))
def test_a_fault_stands_beside_its_input(
    operator: Client, chosen: dict[str, str], capitals: EvalSuiteVersion, part: str, text: str
) -> None:
    response = operator.post(NEW, chosen | choosing(capitals, **{part: text}) | {"action": "launch"})
    page = html(response)
    assert response.status_code == 422
    where = f"f-suite-{capitals.pk}-{part.replace('_', '-')}"
    assert "must" in error(page, where)
    assert value(page, f"suite.{capitals.pk}.margin") == (text if part == "margin" else "0.1")
    assert not Run.objects.exists()


def test_suites_that_a_run_cannot_take_are_refused(
    operator: Client, charlie: User, oscar: User, chosen: dict[str, str], maker: Maker, capitals: EvalSuiteVersion
) -> None:
    second = add_suite(maker.project, oscar, content=MORE)
    theirs = add_suite(Project.objects.get(slug="theirs"), charlie)
    page = html(operator.get(NEW))
    assert f'name="suite.{second.pk}"' in page
    assert f'name="suite.{capitals.pk}"' not in page, "only the newest is offered"
    for data, says in (
        (choosing(capitals) | choosing(second), "A run takes one of them"),
        (choosing(theirs), f"suite.{theirs.pk} is not a field"),
    ):
        response = operator.post(NEW, chosen | data | {"action": "launch"})
        assert response.status_code == 422
        assert says in html(response)
    with pytest.raises(ConfigError) as caught:
        with_suites(maker, ChosenSuite(theirs))
    assert [problem.path for problem in caught.value.problems] == ["eval.suites.0"]
    with pytest.raises(ConfigError, match=r"eval\.suites: is decided by the suites"):
        maker.run(eval={"holdout": 4, "suites": [{"path": "builtin:performance"}]})


def test_a_clone_and_copied_yaml_are_the_same_run_again(
    operator: Client, oscar: User, chosen: dict[str, str], ours: Project, capitals: EvalSuiteVersion
) -> None:
    parts = {"margin": "0.025", "limit": "2", "max_completion_tokens": "9", "template": "\nQ: {prompt}\r\nA:"}
    operator.post(NEW, chosen | choosing(capitals, **parts) | {"action": "draft"})
    first = Run.objects.get()
    assert first.config["eval"]["suites"][0]["template"] == "\nQ: {prompt}\nA:"
    add_suite(ours, oscar, content=MORE)

    page = html(operator.get(NEW, {"clone": first.pk}))
    assert f'name="suite.{capitals.pk}" value="true" checked' in page, "the version that it was, not the newest"
    operator.post(NEW, as_browser(page) | {"action": "draft"})
    clone = Run.objects.exclude(pk=first.pk).get()
    assert clone.config_digest == first.config_digest
    assert list(clone.suites.all()) == [capitals]

    copied = operator.post(NEW, as_browser(page) | {"action": "yaml"}).content.decode()
    page = html(operator.post(NEW, {"action": "import", "yaml": copied}))
    operator.post(NEW, as_browser(page) | {"action": "draft"})
    assert Run.objects.latest("pk").config_digest == first.config_digest

    config: dict[str, Any] = json.loads(json.dumps(first.config))
    config["eval"]["suites"][0]["sha256"] = "0" * 64
    response = operator.post(NEW, {"action": "import", "yaml": RunConfig.from_dict(config).to_yaml()})
    assert response.status_code == 422
    assert "no suite of this project is capitals" in html(response)


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
        *((version.suite.name, version.items, version.sha256) for version in starters),
    ]


def test_starter_suites_are_one_click_away_and_nothing_is_lost(
    operator: Client, chosen: dict[str, str], capitals: EvalSuiteVersion
) -> None:
    data = chosen | choosing(capitals, margin="0.03") | {"seed": "7", "action": "starters"}
    page = html(operator.post(NEW, data))
    assert (value(page, "seed"), value(page, f"suite.{capitals.pk}.margin")) == ("7", "0.03")
    assert f'name="suite.{capitals.pk}" value="true" checked' in page
    added = EvalSuiteVersion.objects.exclude(builtin="")
    assert added.exists()
    for version in added:
        assert f'name="suite.{version.pk}" value="true" aria' in page, "offered, not chosen"
    assert 'value="starters"' not in page
