"""A project's own charts: who adds them, what is refused in words, what is logged, and where they are shown."""

import json
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from cohort.accounts.models import Project, User
from cohort.audit.models import AuditEntry
from cohort.runs.charts import MOST_CHARTS, MOST_LINES, chart_change, chart_create, chart_remove
from cohort.runs.models import ProjectChart, Run
from tests.factories.runs import HOSTILE, Maker, add_steps
from tests.tables import cases
from tests.web.pages import html
from tests.web.run_page import page_of


@pytest.fixture
def run(maker: Maker) -> Run:
    run = maker.run(state="training")
    add_steps(maker.attempt(run), [{"reward": 0.5, "kl": 0.01, "entropy": 1.0}] * 2)
    return run


def logged(kind: str) -> dict[str, Any]:
    entry: dict[str, Any] = json.loads(bytes(AuditEntry.objects.get(kind=kind).body))
    return entry


def test_a_chart_is_added_edited_and_removed_and_each_is_logged(ours: Project, alice: User) -> None:
    chart = chart_create(project=ours, actor=alice, title=" KL and entropy ", metrics=["kl", "entropy", "kl"])
    assert (chart.title, chart.metrics, chart.log) == ("KL and entropy", ["kl", "entropy"], False)
    first = {"title": "KL and entropy", "metrics": ["kl", "entropy"], "log": False}
    entry = logged("chart_created")
    assert (entry["actor"], entry["project"], entry["subject"]) == ("user:alice", "ours", f"chart:{chart.pk}")
    assert (entry["before"], entry["after"]) == (None, first)
    chart_change(chart=chart, actor=alice, **first)
    assert not AuditEntry.objects.filter(kind="chart_changed").exists(), "nothing changed"
    chart_change(chart=chart, actor=alice, title="KL", metrics=["kl"], log=True)
    assert (logged("chart_changed")["before"], logged("chart_changed")["after"]) == (
        first,
        {"title": "KL", "metrics": ["kl"], "log": True},
    )
    chart_remove(chart=ProjectChart.objects.get(), actor=alice)
    assert not ProjectChart.objects.exists()
    assert logged("chart_removed")["before"]["title"] == "KL"


@pytest.mark.parametrize(("title", "metrics", "field"), cases("runs/chart_faults", "title", "metrics", "field"))
def test_a_chart_that_cannot_be_drawn_is_refused(
    ours: Project, alice: User, title: str, metrics: list[str], field: str
) -> None:
    chart_create(project=ours, actor=alice, title="taken", metrics=["kl"])
    other = chart_create(project=ours, actor=alice, title="other", metrics=["kl"])
    with pytest.raises(ValidationError) as refused:
        chart_create(project=ours, actor=alice, title=title, metrics=metrics)
    assert list(refused.value.message_dict) == [field]
    with pytest.raises(ValidationError):
        chart_change(chart=other, actor=alice, title=title, metrics=metrics)
    assert ProjectChart.objects.count() == 2


def test_a_project_has_so_many_charts_at_most(ours: Project, alice: User) -> None:
    rows = [ProjectChart(project=ours, title=f"{at}", metrics=["kl"], created_by=alice) for at in range(MOST_CHARTS)]
    ProjectChart.objects.bulk_create(rows)
    with pytest.raises(ValidationError) as refused:
        chart_create(project=ours, actor=alice, title="more", metrics=["kl"])
    assert "Remove one first" in refused.value.messages[0]


def test_a_chart_is_on_every_run_of_the_project_that_reports_it(
    viewer: Client, operator: Client, maker: Maker, run: Run, alice: User
) -> None:
    sent = {"title": "Mine", "metrics": ["entropy", "kl"], "log": "on"}
    response = operator.post(f"/p/ours/runs/{run.pk}/charts/new/", sent)
    assert response.headers["Location"] == f"/p/ours/runs/{run.pk}/#chart-group-own"
    chart = ProjectChart.objects.get()
    assert (chart.metrics, chart.log, chart.created_by.username) == (["entropy", "kl"], True, "oscar")
    other, third = maker.run("other", state="training"), maker.run("third", state="training")
    add_steps(maker.attempt(other), [{"reward": 0.5, "kl": 0.01}])
    add_steps(maker.attempt(third), [{"reward": 0.5}])
    page = page_of(viewer, other)
    assert f'data-chart="own/{chart.pk}"' in page
    assert '"name": "entropy"' not in page.replace("&quot;", '"'), "what this run has of it"
    assert f"/charts/{chart.pk}/" not in page, "a viewer cannot edit it"
    assert "Add chart" not in page
    assert "Own charts" not in page_of(viewer, third), "no empty chart, and no empty group"
    mine = page_of(operator, run)
    assert f'href="/p/ours/runs/{run.pk}/charts/{chart.pk}/"' in mine
    assert mine.index("Own charts") < mine.index('data-chart="reward"')


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ({"metrics": ["kl"]}, "This field is required."),
        ({"title": "Mine"}, "Choose at least one metric."),
        ({"title": "Mine", "metrics": ["none"]}, "This run reports no metric none."),
        ({"title": "taken", "metrics": ["kl"]}, "The project has a chart with this title."),
        ({"title": "x" * 81, "metrics": ["kl"]}, "at most 80 characters"),
    ],
)
def test_wrong_input_is_answered_in_words(
    operator: Client, run: Run, ours: Project, alice: User, sent: dict[str, Any], words: str
) -> None:
    chart_create(project=ours, actor=alice, title="taken", metrics=["kl"])
    response = operator.post(f"/p/ours/runs/{run.pk}/charts/new/", sent)
    assert response.status_code == 422
    assert words in html(response)
    assert ProjectChart.objects.count() == 1


def test_editing_offers_what_the_chart_has_though_this_run_lacks_it(
    operator: Client, run: Run, ours: Project, alice: User
) -> None:
    chart = chart_create(project=ours, actor=alice, title=f"a {HOSTILE}"[:80], metrics=["kl", "loss"])
    address = f"/p/ours/runs/{run.pk}/charts/{chart.pk}/"
    page = html(operator.get(address))
    assert ('value="loss"' in page, 'value="entropy"' in page, "<script>alert" in page) == (True, True, False)
    assert operator.post(address, {"title": "b", "metrics": ["loss"]}).status_code == 302
    chart.refresh_from_db()
    assert (chart.title, chart.metrics) == ("b", ["loss"])
    assert operator.post(f"{address}remove/").status_code == 302
    assert not ProjectChart.objects.exists()


def test_a_page_reads_all_charts_at_once(viewer: Client, run: Run, ours: Project, alice: User) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as captured:
            page_of(viewer, run)
        return len(captured)

    page_of(viewer, run)
    before = count()
    for number in range(5):
        chart_create(project=ours, actor=alice, title=f"{number}", metrics=["kl"] * min(number + 1, MOST_LINES))
    assert count() == before
