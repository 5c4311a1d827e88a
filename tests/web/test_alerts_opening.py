"""What opens an alert, once, and what closes it: events of trainers and of the platform, searches, people."""

from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db.models import F

from cohort.accounts.models import Project, User
from cohort.accounts.services import project_create
from cohort.alerts import opening
from cohort.alerts.channels import channel_create
from cohort.alerts.desk import alerts_acknowledge, alerts_close
from cohort.alerts.models import Alert, AlertDelivery, AlertPending, AlertRule, Condition
from cohort.alerts.opening import MOST_OF_RUN, alerts_check
from cohort.alerts.rules import DEFAULTS, rule_change, rule_create, rule_remove
from cohort.background import reconcile
from cohort.nodes.models import Node
from cohort.records.services import seal_failed
from cohort.runs.marks import run_archive
from cohort.runs.models import Run, RunState
from cohort.runs.services import run_cancel, run_retry
from cohort.runs.transitions import run_event, run_move
from grpo_core.monitors.table import MONITORS
from grpo_core.records import types as records
from tests.factories.alerts import any_cause, diagnosed, rule_of, webhook
from tests.factories.runs import Maker, add_steps, put_in
from tests.factories.worker import packed
from tests.tables import cases
from tests.web.control import at_once, claim, finish, waited_for_its_record
from tests.web.records.records import logged
from tests.web.worker_calls import AttemptCaller, run, worker

__all__ = ["run", "worker"]

pytestmark = pytest.mark.django_db


def opened() -> list[tuple[str, str, str]]:
    """(rule, cause, state) of every alert, the oldest first."""
    return [(alert.rule_name, alert.cause, alert.state) for alert in Alert.objects.order_by("pk")]


@pytest.fixture
def live(maker: Maker) -> Run:
    run = maker.run("live", state="training")
    maker.attempt(run)
    return run


def diagnose(run: Run, cause: str = "part_unscored", **data: Any) -> None:
    diagnosed(run.attempts.get(), cause, **data)


# ---------------------------------------------------------------------- rules of every project


def test_a_project_has_its_rules_from_its_beginning(ours: Project, charlie: User) -> None:
    other = project_create(slug="another", name="Another", owner=charlie)
    for project in (ours, other):
        rows = AlertRule.objects.filter(project=project).order_by("pk")
        assert [(row.condition, row.name, row.enabled, row.created_by) for row in rows] == [
            (condition, name, True, None) for condition, name in DEFAULTS.items()
        ]


def test_a_new_project_is_alerted_of_alarms_and_missing_scores_alone(live: Run) -> None:
    """A sweep of bad runs fills no desk with advice, which Health shows."""
    for cause in ("cut_off", "all_wrong", "component_dominates", "kl_spike", "stall", "no_answer"):
        diagnose(live, cause)
    assert alerts_check() == 0
    expected = sorted({monitor.code for monitor in MONITORS if monitor.alarm} | {"part_unscored", "machine_failed"})
    for cause in expected:
        diagnose(live, cause)
    assert alerts_check() == len(expected)
    assert sorted(cause for _, cause, _ in opened()) == expected


def test_the_migration_gives_older_projects_the_same_rules() -> None:
    of_migration = import_module("migrations.alerts.0002_events_and_defaults").DEFAULTS
    assert {Condition(condition): name for condition, name in of_migration.items()} == DEFAULTS


# ---------------------------------------------------------------------- events


def test_what_a_worker_sends_opens_an_alert(worker: AttemptCaller, run: Run) -> None:
    """Through the worker API, with the rights of a web server for workers."""
    data = {"cause": "part_unscored", "step": 1, "text": "12 of 16 were not scored.", "advice": "Mend the verifier."}
    event = records.Event(type="diagnosis", message="step 1: 12 of 16 were not scored.", data=data)
    sent = [records.PhaseStarted(phase="training", total=9), event]
    envelopes = [
        records.Envelope(seq=seq, at="2026-11-20T10:00:00Z", record=record) for seq, record in enumerate(sent, 1)
    ]
    assert worker.records(packed(envelopes)).status_code == 200
    assert AlertPending.objects.count() == 1
    reconcile.reconcile()
    alert = Alert.objects.get()
    assert (alert.run, alert.title, alert.step, alert.state) == (run, "completions not scored", 1, "open")
    assert (alert.text, alert.advice) == ("12 of 16 were not scored.", "Mend the verifier.")
    assert not AlertPending.objects.exists()


def test_a_cause_opens_one_alert_until_it_is_closed(live: Run, alice: User) -> None:
    rule = rule_of(live.project, Condition.DIAGNOSIS).name
    for cause in ("part_unscored", "part_unscored", "machine_failed"):
        diagnose(live, cause)
    assert alerts_check() == 2
    assert opened() == [(rule, "part_unscored", "open"), (rule, "machine_failed", "open")]
    first = Alert.objects.get(cause="part_unscored")
    assert alerts_acknowledge(alerts=[first], actor=alice, note="known") == 1
    assert alerts_acknowledge(alerts=[first], actor=alice) == 0, "it is acknowledged"
    diagnose(live)
    assert alerts_check() == 0, "the same, which somebody has acknowledged"
    assert alerts_close(alerts=[first], actor=alice) == 1
    assert alerts_close(alerts=[first], actor=alice) == 0
    diagnose(live)
    assert alerts_check() == 1
    assert opened()[::2] == [(rule, "part_unscored", "closed"), (rule, "part_unscored", "open")]
    first.refresh_from_db()
    assert (first.note, first.acknowledged_by, first.closed_by) == ("known", alice, alice)
    assert logged("alert_acknowledged")[-1]["reason"] == "known"
    assert logged("alert_closed")[-1]["subject"] == f"alert:{first.pk}"


def test_rules_name_causes_and_are_switched_off(live: Run, alice: User) -> None:
    default = rule_of(live.project, Condition.DIAGNOSIS)
    rule_change(rule=default, actor=alice, name=default.name, enabled=False)
    rule_create(
        project=live.project, actor=alice, name="hack", condition="diagnosis", causes=["shaping_alone", "ruined"]
    )
    for cause in ("part_unscored", "ruined"):
        diagnose(live, cause)
    assert alerts_check() == 1
    assert opened() == [("hack", "ruined", "open")]


def test_what_a_trainer_sends_may_be_of_any_form(live: Run) -> None:
    """The machine that it runs on runs untrusted code."""
    any_cause(live.project)
    for data in ({"cause": 7, "step": "x", "text": None}, {"cause": "x" * 500, "step": 10**30, "text": "y" * 9000}):
        diagnose(live, **{"advice": [], **data})  # type: ignore[arg-type]
    assert alerts_check() == 2
    odd, long = Alert.objects.order_by("pk")
    assert (odd.cause, odd.step, odd.text) == ("7", None, "step x: None")
    assert (len(long.cause), long.step, long.text[-19:]) == (60, None, "… (9,000 characters)"[-19:])


def test_more_causes_of_a_run_than_anyone_reads_open_no_more_alerts(live: Run) -> None:
    any_cause(live.project)
    for number in range(MOST_OF_RUN + 5):
        diagnose(live, f"cause_{number}")
    assert alerts_check() == MOST_OF_RUN
    newest = Alert.objects.order_by("-pk")[0]
    assert newest.text.endswith("Further causes of this run open no alert by this rule.")


def test_a_run_that_fails_opens_one_and_a_retry_closes_it(maker: Maker, gpu1: Node, alice: User) -> None:
    run = maker.launched("broken", eval={"holdout": 4})
    finish(claim(gpu1), "failed", "config", "the config is not valid")
    assert alerts_check() == 1
    alert = Alert.objects.get()
    assert (alert.title, alert.cause, alert.run) == ("run failed", "failed", run)
    assert "the config is not valid" in alert.text
    run_retry(run=waited_for_its_record(run), actor=alice)
    assert alerts_check() == 0
    alert.refresh_from_db()
    assert (alert.state, alert.closed_why, alert.closed_by) == ("closed", "it was requeued", None)
    finish(claim(gpu1), "failed", "config", "still not valid")
    assert alerts_check() == 1, "another end"


def test_a_cancel_that_nobody_requested_opens_an_alert(maker: Maker, gpu1: Node, alice: User) -> None:
    requested = maker.launched("requested", eval={"holdout": 4})
    attempt = claim(gpu1)
    run_cancel(run=requested, actor=alice)
    finish(attempt, "cancelled")
    run_cancel(run=maker.launched("waiting", eval={"holdout": 4}), actor=alice)
    assert alerts_check() == 0
    run = maker.launched("by itself", eval={"holdout": 4})
    assert finish(claim(gpu1), "cancelled").state == RunState.CANCELLED
    assert alerts_check() == 1
    assert (Alert.objects.get().run, Alert.objects.get().title) == (run, "run cancelled")


def test_a_run_that_a_person_ends_without_a_record_opens_none(maker: Maker) -> None:
    run = maker.run(state="sealing")
    run_move(run=run, to=RunState.FAILED, actor="user:alice", reason="given up")
    assert alerts_check() == 0


def test_a_record_that_cannot_be_sealed_opens_one_until_it_is(maker: Maker) -> None:
    run = maker.run(state="sealing")
    for _ in range(2):
        seal_failed(run=run, reason="The record could not be sealed: no space left")
    assert alerts_check() == 1
    alert = Alert.objects.get()
    assert (alert.title, alert.condition, alert.text) == (
        "record not sealed",
        Condition.UNSEALED,
        "The record could not be sealed: no space left",
    )
    run_event(run=run, actor="platform", kind="sealed", message="sealed")
    alerts_check()
    alert.refresh_from_db()
    assert (alert.state, alert.closed_why) == ("closed", "its record was sealed")


def test_the_archive_closes_the_alerts_of_a_run(live: Run, alice: User) -> None:
    diagnose(live)
    alerts_check()
    put_in(live, "failed")
    run_archive(run=live, actor=alice, archived=True)
    diagnose(live, "machine_failed")
    assert alerts_check() == 0, "nor does an archived run open one"
    assert [alert.closed_why for alert in Alert.objects.all()] == ["its run was archived"]


@pytest.mark.django_db(transaction=True)
def test_of_two_rounds_at_once_one_opens_the_alert(maker: Maker, alice: User) -> None:
    """Each with its own connection; an event is taken once, and a search's run too."""
    run = maker.run("live", state="training")
    add_steps(maker.attempt(run), [{"reward": 0.05}])
    webhook(maker.project, alice, "https://example.org/hook")
    rule_create(project=maker.project, actor=alice, name="low", condition="search", query="reward<0.1")
    diagnose(run)
    assert at_once(alerts_check, alerts_check) == [True, True]
    assert sorted(cause for _, cause, _ in opened()) == ["part_unscored", "search"]
    assert AlertDelivery.objects.count() == 1


def test_a_round_that_dies_loses_nothing(live: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    diagnose(live)

    def fail(*_: object) -> int:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(opening, "_open", fail)
        with pytest.raises(RuntimeError):
            alerts_check()
    assert alerts_check() == 1


# ---------------------------------------------------------------------- searches


@pytest.fixture
def low(ours: Project, alice: User) -> AlertRule:
    return rule_create(project=ours, actor=alice, name="low", condition="search", query="reward<0.1 step>=2")


def test_a_search_opens_an_alert_of_a_live_run_once_while_it_matches(live: Run, low: AlertRule, alice: User) -> None:
    attempt = live.attempts.get()
    attempt.run = live
    add_steps(attempt, [{"reward": 0.05}])
    assert alerts_check() == 0, "step 1"
    add_steps(attempt, [{"reward": 0.05}], first=2)
    assert (alerts_check(), alerts_check()) == (1, 0)
    alert = Alert.objects.get()
    assert (alert.title, alert.text) == ("low", "Matches reward<0.1 step>=2, at step 2; reward is 0.05.")
    alerts_close(alerts=[alert], actor=alice)
    assert alerts_check() == 0, "it matches still"
    add_steps(attempt, [{"reward": 0.5}], first=3)
    assert alerts_check() == 0
    add_steps(attempt, [{"reward": 0.01}], first=4)
    assert alerts_check() == 1, "it matches again"


def test_a_search_is_made_of_runs_that_end_after_the_rule_was_made(maker: Maker, low: AlertRule) -> None:
    def ended(name: str, state: str) -> Run:
        run = maker.run(name, state="training")
        add_steps(maker.attempt(run), [{"reward": 0.05}] * 3)
        put_in(run, state)
        return run

    old, new = ended("old", "failed"), ended("new", "succeeded")
    Run.objects.filter(pk=old.pk).update(ended_at=low.since - timedelta(seconds=1))
    Run.objects.filter(pk=new.pk).update(ended_at=low.since + timedelta(seconds=1))
    draft = maker.run("draft")
    Run.objects.filter(pk=draft.pk).update(step=3, latest_metrics={"reward": 0.05})
    assert alerts_check() == 1
    assert Alert.objects.get(rule=low).run == new


def test_a_search_that_cannot_be_made_any_more_says_so_on_its_rule(live: Run, ours: Project, alice: User) -> None:
    Run.objects.filter(pk=live.pk).update(latest_metrics={"odd": 1.0})
    rule = rule_create(project=ours, actor=alice, name="odd", condition="search", query="odd>3")
    Run.objects.filter(pk=live.pk).update(latest_metrics={})
    assert alerts_check() == 0
    rule.refresh_from_db()
    assert "No field, metric or suite of this project is called odd" in rule.fault
    Run.objects.filter(pk=live.pk).update(latest_metrics={"odd": 5.0})
    assert alerts_check() == 1
    rule.refresh_from_db()
    assert rule.fault == ""


def test_a_search_that_is_changed_begins_anew(low: AlertRule, alice: User) -> None:
    AlertRule.objects.filter(pk=low.pk).update(since=F("since") - timedelta(days=1), checked_at=F("since"))
    low.refresh_from_db()
    before = low.since
    rule_change(rule=low, actor=alice, name="lower", query=low.query)
    low.refresh_from_db()
    assert (low.since, low.checked_at is None) == (before, False), "the name alone was changed"
    rule_change(rule=low, actor=alice, name="lower", query="reward<0.05")
    low.refresh_from_db()
    assert (low.since > before, low.checked_at) == (True, None)


# ---------------------------------------------------------------------- rules


FAULTS = cases("alerts/rule_faults", "condition", "name", "causes", "query", "field", "words")


@pytest.mark.parametrize(("condition", "name", "causes", "query", "field", "words"), FAULTS)
def test_a_rule_that_cannot_hold_is_refused_in_words(
    ours: Project, alice: User, condition: str, name: str, causes: list[str] | None, query: str, field: str, words: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        rule_create(project=ours, actor=alice, name=name, condition=condition, causes=causes or (), query=query or "")
    assert list(refused.value.message_dict) == [field]
    assert words in refused.value.messages[0]
    assert AlertRule.objects.filter(project=ours).count() == len(DEFAULTS)


def test_rules_are_logged_and_a_default_is_not_removed(low: AlertRule, live: Run, alice: User) -> None:
    assert logged("alert_rule_created")[-1]["after"] == {
        "condition": "search",
        "name": "low",
        "causes": [],
        "query": "reward<0.1 step>=2",
        "enabled": True,
        "channels": [],
    }
    rule_change(rule=low, actor=alice, name="low", query=low.query, enabled=False)
    assert logged("alert_rule_changed")[-1]["before"]["enabled"] is True
    Alert.objects.create(
        project=live.project, run=live, rule=low, rule_name="low", condition="search", cause="search",
        opened_at=low.since, title="low", text="t",
    )  # fmt: skip
    rule_remove(rule=low, actor=alice)
    alert = Alert.objects.get()
    assert (alert.rule, alert.rule_name, alert.closed_why) == (None, "low", "its rule was removed")
    assert logged("alert_rule_removed")[-1]["before"]["name"] == "low"
    with pytest.raises(ValidationError, match="Switch it off instead"):
        rule_remove(rule=rule_of(live.project, Condition.ENDED), actor=alice)


def test_a_rule_takes_channels_of_its_own_project_alone(ours: Project, alice: User, charlie: User) -> None:
    theirs = Project.objects.get(slug="theirs")
    channel = channel_create(project=theirs, actor=charlie, name="x", kind="webhook", address="https://example.org/x")
    with pytest.raises(ValidationError) as refused:
        rule_create(project=ours, actor=alice, name="n", condition="ended", channels=[channel])
    assert list(refused.value.message_dict) == ["channels"]
