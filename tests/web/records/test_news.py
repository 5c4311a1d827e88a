"""What makes a further version of a record: each kind of news is listed field by field, the version that is sealed then
holds it, and nothing is left."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.utils import timezone
from django.utils.html import escape

from cohort.accounts.models import User
from cohort.alerts.desk import alerts_acknowledge, alerts_close
from cohort.alerts.models import Alert, Condition
from cohort.background import reconcile
from cohort.background.reconcile import seals_republish
from cohort.catalog.pretraining import pretraining_state
from cohort.evaluations.services import Upload, results_import
from cohort.records.after_seal import services as after_seal
from cohort.records.models import Record
from cohort.records.news import News
from cohort.records.services import NothingNew, record_seal, version_request
from cohort.records.statements.services import flag_override, statement_make, statement_withdraw
from cohort.review.models import Sample
from cohort.review.services import sample_judge
from cohort.runs.models import Run
from tests.factories import sealed_run
from tests.web.pages import html
from tests.web.records.conftest import World
from tests.web.records.records import accepted, entry
from tests.web.records.scenarios import changed

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_pdf")]
HOSTILE = "<script>alert(1)</script>"


def lm_eval() -> Upload:
    """A results file of lm-evaluation-harness that states one number."""
    content = {
        "results": {"gsm8k": {"alias": "gsm8k", "exact_match,none": 0.25, "exact_match_stderr,none": 0.1}},
        "versions": {"gsm8k": 3},
        "n-samples": {"gsm8k": {"original": 20, "effective": 20}},
        "higher_is_better": {"gsm8k": {"exact_match": True}},
        "config": {"model": "hf", "model_args": "pretrained=tiny"},
    }
    return Upload("results_2026.json", json.dumps(content).encode())


def states(record: Record, world: World) -> None:
    statement_make(run=record.run, actor=world.rita, field="handling.inventory", text=f"AI-7 {HOSTILE}")


def withholds(record: Record, world: World) -> None:
    statement_make(run=record.run, actor=world.alice, field="reward.disclosure", chosen=["withheld"], text="It leaks.")


def overrides_by_statement(record: Record, world: World) -> None:
    flag_override(run=record.run, actor=world.alice, flag="truncation", reason="short on purpose")


def overrides_after_the_seal(record: Record, world: World) -> None:
    wrong = after_seal.override(record=record, actor=world.alice, what="completions truncated", reason="a slip")
    after_seal.override(
        record=record, actor=world.alice, what="completions truncated", reason="short on purpose", corrects=wrong.pk
    )


def opened(run: Run) -> Alert:
    return Alert.objects.create(
        project=run.project,
        run=run,
        rule_name="Diagnosis",
        condition=Condition.DIAGNOSIS,
        cause="part_unscored",
        opened_at=timezone.now(),
        title="rewards are missing",
        text="2 of 24",
    )


def answers_an_alert(record: Record, world: World) -> None:
    alert = opened(record.run)
    alerts_acknowledge(alerts=[alert], actor=world.oscar, note="the judge was down")
    alerts_close(alerts=[alert], actor=world.alice)


def judges(record: Record, world: World) -> None:
    sample = Sample.objects.filter(group__run=record.run).order_by("pk")[0]
    sample_judge(sample=sample, actor=world.rita, verdict="wrong")


def imports(record: Record, world: World) -> None:
    results_import(run=record.run, actor=world.oscar, phase="after", uploads=[lm_eval()])


def states_what_the_base_model_took(record: Record, world: World) -> None:
    model = record.run.base_model
    pretraining_state(model=model, actor=world.alice, flop="8.3e22", source=f"a letter {HOSTILE}")


CASES: dict[Callable[[Record, World], None], dict[str, tuple[str, str]]] = {
    states: {"handling.inventory": ("not stated", f"AI-7 {HOSTILE}")},
    withholds: {
        "reward.verifier": ("for anyone", "for those who build on the model"),
        "reward.disclosure": ("not applicable", "authorities may. It leaks."),
    },
    overrides_by_statement: {"oversight.overrides": ("none overridden", "short on purpose")},
    overrides_after_the_seal: {"oversight.overrides": ("none overridden", "short on purpose")},
    answers_an_alert: {
        "oversight.alerts": ("none opened", "acknowledged by oscar and closed by alice, “the judge was down”")
    },
    judges: {"oversight.human_review": ("no review is recorded", "1 completion judged by 1 person")},
    states_what_the_base_model_took: {
        "budget.base_share": ("unknown", "% of it"),
        "budget.compute": ("", "about"),
    },
    imports: {
        "behaviour.imported": ("not evaluated", "gsm8k exact_match,none 0.25 ± 0.1 (lm-evaluation-harness"),
        "handling.evaluation_file": ("every item's score", "evals/imported.jsonl, results of other tools"),
    },
}


@pytest.mark.parametrize(("does", "fields"), CASES.items(), ids=[does.__name__ for does in CASES])
def test_each_kind_of_news_is_listed_and_the_next_version_holds_it(
    sealed: Record, world: World, tmp_path: Any, does: Callable[..., None], fields: dict[str, tuple[str, str]]
) -> None:
    assert not News(sealed)
    does(sealed, world)
    changes = {change.path: change for change in News(sealed).changes}
    assert changes.keys() == fields.keys()
    page = html(world.client("rita").get(f"/p/ours/runs/{sealed.run_id}/record/"))
    assert "What version 2 would change" in page
    assert "<script>alert" not in page
    for path, (before, after) in fields.items():
        assert (before in changes[path].before, after in changes[path].after) == (True, True), changes[path]
        assert escape(changes[path].label) in page
    second = record_seal(run=sealed.run, reason="news", actor=world.rita)
    for path, (_, after) in fields.items():
        held = entry(second, path)
        assert held.audience == "downstream" if path == "reward.verifier" else after in held.text
        assert changes[path].after in (held.text, "for those who build on the model")
    assert not News(second)
    with pytest.raises(NothingNew):
        record_seal(run=sealed.run, reason="again")
    assert accepted(second.card("public"), tmp_path)
    assert "What version" not in html(world.client("rita").get(f"/p/ours/runs/{sealed.run_id}/record/"))


def test_what_comes_to_nothing_is_no_news(sealed: Record, world: World) -> None:
    statement_make(run=sealed.run, actor=world.rita, field="method.rationale", text="cheap")
    statement_withdraw(run=sealed.run, actor=world.rita, field="method.rationale", reason="it was not")
    opened(sealed.run)
    when = datetime(2026, 11, 20, 8, tzinfo=UTC)
    after_seal.incident(record=sealed, actor=world.rita, severity="low", when=when, what="slow")
    assert News(sealed).changes == [], "an alert that nobody answered, and an entry of version 1"


def test_a_withdrawn_statement_and_another_audience_are_news(launch: Callable[..., Run], world: World) -> None:
    run = launch()
    for field in ("method.rationale", "reward.brittleness", "handling.monitoring"):
        statement_make(run=run, actor=world.rita, field=field, text="weekly")
    record = record_seal(run=sealed_run.finished(run))
    for field in ("method.rationale", "reward.brittleness"):
        statement_withdraw(run=run, actor=world.rita, field=field, reason="it is wrong")
    statement_make(run=run, actor=world.rita, field="handling.monitoring", text="weekly", audience="public")
    rows = {change.path: (change.before, change.after, change.why) for change in News(record).changes}
    assert rows["method.rationale"][:2] == ("weekly", "not stated")
    assert rows["method.rationale"][2].startswith("withdrawn by rita")
    assert rows["reward.brittleness"][1] == "what was measured alone"
    assert rows["handling.monitoring"][:2] == ("weekly · for authorities that ask", "weekly · for anyone")
    second = record_seal(run=run, reason="withdrawn")
    assert entry(second, "handling.monitoring").audience == "public"
    assert not News(second)


def test_an_overridden_flag_is_marked_in_the_version(launch: Callable[..., Run], world: World) -> None:
    run = launch()
    cut = changed(sealed_run.whole(run), "step", metrics={"reward": 0.5, "completions/clipped_ratio": 0.6})
    record = record_seal(run=sealed_run.finished(run, cut))
    after_seal.override(record=record, actor=world.alice, what="completions truncated", reason="on purpose")
    after_seal.override(record=record, actor=world.alice, what="the tone", reason="a matter of taste")
    second = record_seal(run=run, reason="overridden")
    flags: Any = entry(second, "oversight.flags").value
    assert [flag["monitor"] for flag in flags if flag["overridden"]] == ["truncation"]
    overrides: Any = entry(second, "oversight.overrides").value
    assert [(row["monitor"], row["raised"], row["flag"]) for row in overrides] == [
        ("truncation", True, "completions truncated"),
        (None, False, "the tone"),
    ]
    page = html(world.client("rita").get(f"/p/ours/runs/{run.pk}/record/"))
    assert "overridden by alice: “on purpose”" in page


def test_a_lost_request_without_a_statement_is_sent_again(
    sealed: Record, rita: User, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    judges(sealed, world)
    version_request(run=sealed.run, actor=rita, reason="judged")
    monkeypatch.setattr(reconcile, "UNSEALED", -reconcile.UNSEALED)
    assert seals_republish() == [sealed.run_id]
    record_seal(run=sealed.run, reason="judged", actor=rita)
    assert seals_republish() == []


def test_the_table_is_seen_before_the_version_is_requested(sealed: Record, world: World) -> None:
    states(sealed, world)
    address = f"/p/ours/runs/{sealed.run_id}/record/"
    button = "Seal version 2</button>"
    for name, offered in (("rita", True), ("bob", False)):
        page = html(world.client(name).get(address))
        assert (button in page, "What version 2 would change" in page) == (offered, True)
    page = html(world.client("rita").get(address))
    assert page.index("AI-7") < page.index(button)
