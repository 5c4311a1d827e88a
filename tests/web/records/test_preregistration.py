"""What is in the audit log before a run's first step, what the record says of it, and what its card proves."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cohort.evidence.canonical import canonical
from cohort.evidence.preregistration import FILE, FIRST_STEP, REGISTERED
from cohort.evidence.verify.check import verify_card
from cohort.launch.creation import margins
from cohort.records.models import Record
from cohort.records.services import record_seal
from cohort.runs.models import Run
from grpo_core.errors import ConfigError
from tests.factories.sealed_run import finished
from tests.factories.small_cards import packed
from tests.web.records.attempts import extended
from tests.web.records.conftest import World
from tests.web.records.records import accepted, entry, files_of, logged, platform_keys, saved

pytestmark = pytest.mark.django_db


def value_of(record: Record) -> dict[str, Any]:
    value = entry(record, "oversight.preregistration").value
    assert isinstance(value, dict)
    return value


def line_of(content: dict[str, bytes], folder: Path) -> tuple[str, str]:
    """(status, first line) of the check."""
    path = folder / "changed.zip"
    path.write_bytes(packed(content))
    report = verify_card(path, platform_keys())
    return next((check.status, check.lines[0]) for check in report.checks if check.name == "registration")


def test_a_launch_registers_what_the_record_is_judged_by(launch: Callable[..., Run]) -> None:
    run = launch()
    (body,) = logged(REGISTERED)
    assert (body["actor"], body["subject"]) == ("platform", f"run:{run.pk}"), "it names nobody: every card shows it"
    content = body["data"]
    assert content["config_sha256"] == run.config_digest
    assert content["verifier"]["sha256"] == run.verifier_version.digest
    assert {suite["suite"]: suite["margin"] for suite in content["suites"]} == margins(run.config)
    assert content["primary"] == "heldout"
    assert content["hypotheses"] == []


def test_a_record_and_its_card_show_the_registration_before_the_first_step(
    launch: Callable[..., Run], tmp_path: Path
) -> None:
    run = launch()
    record = record_seal(run=finished(run))
    value = value_of(record)
    assert value["before_first_step"] is True
    assert value["index"] < value["first_step"]["index"] < record.card("public").log_index
    assert value["content"] == logged(REGISTERED)[0]["data"]
    assert len(logged(FIRST_STEP)) == 1
    assert "before the first step" in entry(record, "oversight.preregistration").text
    for audience in ("public", "downstream", "authority", "internal"):
        assert accepted(record.card(audience), tmp_path), audience
        status, line = line_of(files_of(record.card(audience)), tmp_path)
        assert status == "ok"
        assert f"registered at index {value['index']:,}, {value['at']}, before the first step" in line


def test_a_run_that_is_extended_registers_again_and_keeps_its_plan(world: World, tmp_path: Path) -> None:
    run = extended(world)
    record = record_seal(run=run)
    value = value_of(record)
    first, second = (body["data"]["config_sha256"] for body in logged(REGISTERED))
    assert (second, value["content"]["config_sha256"], value["earlier"]) == (run.config_digest, run.config_digest, 1)
    assert first != second
    assert value["index"] < value["first_step"]["index"] < value["in_force"]["index"]
    assert value["before_first_step"] is True, "suites, margins and verifier are those of the first registration"
    status, line = line_of(files_of(record.card("public")), tmp_path)
    assert (status, "before the first step" in line) == ("ok", True)


def dropped(files: dict[str, bytes]) -> None:
    del files[FILE]


def changed(name: str, key: str, new: Any) -> Callable[[dict[str, bytes]], None]:
    def change(files: dict[str, bytes]) -> None:
        shown = json.loads(files[FILE])
        body = json.loads(shown[name]["entry"])
        body[key] = new
        shown[name]["entry"] = canonical(body).decode()
        files[FILE] = canonical(shown)

    return change


def swapped(files: dict[str, bytes]) -> None:
    shown = json.loads(files[FILE])
    shown["planned"], shown["first_step"] = shown["first_step"], shown["planned"]
    files[FILE] = canonical(shown)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dropped, "there is no preregistration.json"),
        (changed("planned", "at", "2026-01-01T00:00:00.000000Z"), "does not lead to the root"),
        (changed("in_force", "data", {}), "does not lead to the root"),
        (swapped, "not run_preregistered of run"),
        (lambda files: files.update({FILE: b"{}"}), "cannot be read"),
        (lambda files: files.update({FILE: b"[]"}), "cannot be read"),
    ],
)
def test_a_registration_that_was_changed_is_noticed(
    change: Callable[[dict[str, bytes]], None], words: str, launch: Callable[..., Run], tmp_path: Path
) -> None:
    files = files_of(record_seal(run=finished(launch())).card("public"))
    change(files)
    status, line = line_of(files, tmp_path)
    assert status == "failed"
    assert words in line


def test_hypotheses_are_registered_line_by_line_and_are_no_part_of_the_config(
    world: World, launch: Callable[..., Run], tmp_path: Path
) -> None:
    text = "Held-out accuracy rises by 5 points.\r\n\r\n  <b>Nothing</b> else changes. "
    run = launch(hypotheses=text)
    assert "hypotheses" not in run.config
    assert logged(REGISTERED)[0]["data"]["hypotheses"] == [
        "Held-out accuracy rises by 5 points.",
        "<b>Nothing</b> else changes.",
    ]
    record = record_seal(run=finished(run))
    shown = world.client("bob").get(f"/p/ours/runs/{run.pk}/record/").content.decode()
    assert "&lt;b&gt;Nothing&lt;/b&gt; else changes." in shown
    assert accepted(record.card("public"), tmp_path)


def test_hypotheses_that_are_too_long_are_refused_with_the_field(launch: Callable[..., Run]) -> None:
    with pytest.raises(ConfigError, match="at most 5,000 are registered") as caught:
        launch(hypotheses="x" * 5_001)
    assert caught.value.problems[0].path == "hypotheses"


def test_a_card_that_is_saved_and_checked_is_the_one_that_was_issued(
    launch: Callable[..., Run], tmp_path: Path
) -> None:
    card = record_seal(run=finished(launch())).card("public")
    assert FILE in files_of(card)
    assert verify_card(saved(card, tmp_path), platform_keys()).accepted
