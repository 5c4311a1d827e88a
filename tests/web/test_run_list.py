"""The list of runs: what a row shows, pages, filters, polling."""

import re
from datetime import UTC, datetime
from html import unescape

import pytest
from django.db.models import Value
from django.db.models.functions import Concat
from django.test import Client

from cohort.accounts.models import Project
from cohort.catalog.models import BaseModel, PromptDataset, Verifier
from cohort.catalog.run_inputs import ChosenSuite
from cohort.catalog.suites import starters_add
from cohort.runs.marks import run_archive
from cohort.runs.models import Run, RunValue
from cohort.runs.run_values import config_values_store, evaluation_values_store, verdict_values_store
from tests.factories.runs import HOSTILE, HOSTILE_SHOWN, Maker, add_evaluation, add_steps, put_in
from tests.tables import cases
from tests.web.control import poll_of
from tests.web.pages import html
from tests.web.run_page import queries, words

LIST = "/p/ours/runs/"


def many(maker: Maker, count: int) -> None:
    """`count` runs copied from one made through the service."""
    made = maker.run("run 0")
    kept = [field.attname for field in Run._meta.concrete_fields if field.attname not in ("id", "name")]
    copies = Run.objects.bulk_create(
        Run(**{name: getattr(made, name) for name in kept}, name=f"run {number}") for number in range(1, count)
    )
    for copy in copies:
        config_values_store(run_id=copy.pk)


def names(page: str) -> list[str]:
    return re.findall(r'<a id="run-\d+" href="[^"]+">([^<]*)</a>', page)


def test_an_empty_list_offers_the_form_to_who_may_use_it(ours: Project, admin: Client, viewer: Client) -> None:
    assert 'href="/p/ours/runs/new/"' in html(admin.get(LIST))
    assert "/runs/new/" not in html(viewer.get(LIST))


def test_a_row_shows_state_progress_reward_and_scores(viewer: Client, maker: Maker) -> None:
    run = maker.run("adder", state="training", preset="dapo", optim={"steps": 120})
    attempt = maker.attempt(run)
    add_steps(attempt, [{"reward": 0.25}, {"reward": 0.75}])
    add_evaluation(attempt, "before", [1, 0, 0, 0])
    add_evaluation(attempt, "after", [1, 1, 1, 0])
    evaluation_values_store(run_id=run.pk)
    undecided = "undecided at margin 5; about 640 items would decide it"
    verdict_values_store(run=run, verdicts={"held-out": undecided, "other": "better"})
    maker.run("reported nothing")
    page = rows_of(html(viewer.get(LIST)))
    empty, full = page[page.index("<tbody>") : page.index("</tbody>")].split("<tr")[1:]
    assert "25.0 % → 75.0 %" in words(full)
    assert undecided in full
    assert ">better<" not in full, "of a suite that is not shown"
    parts = ("Training", 'max="120" value="2"', ">0.75<", "tiny", "DAPO · population std", "alice")
    for part in (*parts, "Reward from 0.25 at step 1 to 0.75 at step 2"):
        assert part in full
    assert empty.count(">–<") == 2, "dashes, not zeros"
    assert "0.00" not in empty


def test_a_column_shows_a_field_of_any_kind(viewer: Client, maker: Maker) -> None:
    """Of a run with a value for each, and of one that reported nothing and was in no sweep."""
    run = maker.run(
        "full", algorithm={"kl": {"coef": 1e-6}}, eval={"holdout": 4, "before": False}, optim={"steps": 1000}
    )
    attempt = maker.attempt(run)
    add_steps(attempt, [{"reward": 0.5, "completions/mean_length": 1234.5}])
    add_evaluation(attempt, "before", [1, 0, 0], suite="heldout")
    evaluation_values_store(run_id=run.pk)
    moment = datetime(2026, 11, 3, 14, 5, tzinfo=UTC)
    Run.objects.filter(pk=run.pk).update(tags=["a", "b"], note="seen", started_at=moment)
    maker.run("empty")
    shown = {  # column: what the full run shows, and the other; a dash where there is nothing
        "beta": ("1e\u22126", "0"),
        "eval.before": ("no", "yes"),
        "reward.components.1.kind": ("exact", "exact"),
        "variant": ("group/group_std/0", "group/group_std/0"),
        "completions/mean_length": ("1,234", "–"),
        "eval.heldout.before": ("33.3 %", "–"),
        "eval.heldout.after": ("–", "–"),
        "started": ("2026-11-03 14:05", "–"),
        "archived": ("–", "–"),
        "tag": ("a b", "–"),
        "note": ("seen", "–"),
        "steps": ("1,000", "100"),
        "ended": ("–", "–"),
        "dataset": ("additions", "additions"),
        "verifier": ("r1 + exact", "r1 + exact"),
        "sweep": ("–", "–"),
    }
    page = rows_of(html(viewer.get(LIST, {"columns": list(shown)})))
    rows = re.findall(r"<tr.*?</tr>", page[page.index("<tbody>") : page.index("</tbody>")], re.DOTALL)
    cells = [
        [words(cell) for cell in re.findall(r"<td class=[^>]*data-label[^>]*>.*?</td>", row, re.DOTALL)] for row in rows
    ]
    empty, full = (dict(zip(shown, texts, strict=True)) for texts in cells)
    assert {name: (full[name], empty[name]) for name in shown} == shown


def test_what_people_models_and_trainers_wrote_is_escaped(viewer: Client, maker: Maker) -> None:
    """Rows are put together without a template."""
    metric = 'x"><b hx-get=1>'
    run = maker.run(state="training")
    attempt = maker.attempt(run)
    add_evaluation(attempt, "after", [1, 0], suite=HOSTILE)
    evaluation_values_store(run_id=run.pk)
    Run.objects.filter(pk=run.pk).update(name=HOSTILE, note=HOSTILE, tags=[], latest_metrics={metric: 1.0})
    BaseModel.objects.update(name=HOSTILE)
    PromptDataset.objects.update(name=Concat("id", Value(HOSTILE)))
    Verifier.objects.update(name=HOSTILE)
    columns = ["state", "scores", "model", "note", "verifier", "dataset", metric]
    rows = rows_of(viewer.get(LIST, {"columns": columns}).content.decode())
    assert rows.count(HOSTILE_SHOWN) == 8, "name, its box, the note folded and as a column, four cells"
    assert "<script" not in rows
    assert "<b " not in rows
    assert 'data-label="x&quot;&gt;&lt;b hx-get=1&gt;"' in rows


def test_pages_are_newest_first_whole_and_lead_back(viewer: Client, maker: Maker) -> None:
    maker.run("another", state="failed")
    few = queries(lambda: viewer.get(LIST))
    many(maker, 120)
    full = queries(lambda: viewer.get(LIST))
    assert full == few <= 15, "it costs the same for one run and for fifty"
    assert pages(viewer, "q=state%3Ddraft") == [f"run {number}" for number in reversed(range(120))]


def pages(client: Client, query: str) -> list[str]:
    """Names on all pages in turn, from the first by the links to the next; and that the links back lead to the same."""
    names_of: dict[str, list[str]] = {}
    address, back = f"{LIST}?{query}", ""
    while address:
        page = html(client.get(address))
        names_of[address] = names(page)
        back = link(page, "prev")
        address = link(page, "next")
    addresses = list(names_of)
    for earlier in reversed(addresses[:-1]):
        page = html(client.get(back))
        assert names(page) == names_of[earlier]
        back = link(page, "prev")
    assert back == "", "the first page has no earlier one"
    return [name for shown in names_of.values() for name in shown]


def link(page: str, rel: str) -> str:
    match = re.search(rf'href="(\?[^"]*)" rel="{rel}"', page)
    return LIST + unescape(match[1]) if match else ""


def rows_of(page: str) -> str:
    return page[page.index('id="run-rows"') :]


@pytest.mark.parametrize(
    "sort", ["step", "-step", "G", "-G", "reward", "-reward", "preset", "-loss", "name", "started"]
)
def test_pages_by_equal_values_lose_no_run_and_show_none_twice(viewer: Client, maker: Maker, sort: str) -> None:
    """Steps, rewards and G of few values, and runs without any, over three pages."""
    many(maker, 120)
    for number, run in enumerate(Run.objects.order_by("pk")):
        metrics = {} if number % 4 == 3 else {"reward": 0.1 * (number % 3)}
        Run.objects.filter(pk=run.pk).update(step=number % 3, latest_metrics=metrics)
    group_size = {"run_id__in": Run.objects.values("pk")[:70], "key": "sampling.group_size"}
    RunValue.objects.filter(**group_size).update(number=4)
    shown = pages(viewer, f"sort={sort}")
    assert len(shown) == len(set(shown)) == 120


def test_runs_are_in_the_order_of_a_setting_and_those_without_are_last(viewer: Client, maker: Maker) -> None:
    for size in (4, 16, 8):
        maker.run(f"of {size}", sampling={"group_size": size})
    RunValue.objects.filter(run=maker.run("without"), key="sampling.group_size").delete()
    assert names(html(viewer.get(f"{LIST}?sort=-G"))) == ["of 16", "of 8", "of 4", "without"]
    page = html(viewer.get(f"{LIST}?sort=G&columns=G"))
    assert names(page) == ["of 4", "of 8", "of 16", "without"]
    assert 'aria-sort="ascending"' in page
    assert [int(text) for text in re.findall(r'<td class="num"\s*data-label="G">(\d+)<', page)][:3] == [4, 8, 16]


@pytest.mark.parametrize(("query", "shown"), cases("runs/list_filters", "query", "names"))
def test_filters(viewer: Client, maker: Maker, query: str, shown: list[str]) -> None:
    maker.run("broken", state="failed")
    maker.run("live one", state="training", preset="dapo")
    page = html(viewer.get(f"{LIST}?{query}"))
    assert names(page) == shown


def test_counts_are_of_all_that_match(viewer: Client, maker: Maker) -> None:
    many(maker, 60)
    maker.run("broken", state="failed")
    run_archive(run=maker.run("away"), actor=maker.actor, archived=True)
    shown = words(html(viewer.get(f"{LIST}?q=state%3Ddraft")))
    assert "showing 50 of 60 that match, 61 in all, 1 archived" in shown
    assert names(html(viewer.get(f"{LIST}?q=archived:yes"))) == ["away"]


def test_a_wrong_search_is_kept_and_says_where_it_is_wrong(viewer: Client, maker: Maker) -> None:
    maker.run("broken", state="failed")
    page = html(viewer.get(LIST, {"q": "broken rewrd>0.5"}))
    assert 'value="broken rewrd&gt;0.5"' in page
    assert "<mark>rewrd&gt;0.5</mark>" in page
    assert "Near it: reward" in page
    assert 'aria-invalid="true"' in page
    assert "No run matches" not in page
    assert "The order nothing is not known" in html(viewer.get(LIST, {"sort": "nothing"}))
    assert "is called nothing" in html(viewer.get(LIST, {"columns": "nothing"}))


def test_settings_that_differ_are_offered_as_columns(viewer: Client, maker: Maker) -> None:
    maker.run("small", sampling={"group_size": 4})
    maker.run("large", sampling={"group_size": 8})
    address = f"{LIST}?columns=state,seed"
    folded = html(viewer.get(address))
    assert 'name="columns" value="kl"' not in folded
    assert 'hx-get="?columns=state%2Cseed&amp;choose=columns"' in folded
    page = html(viewer.get(f"{address}&choose=columns", headers={"HX-Request": "true"}))
    assert "<html" not in page
    whole = html(viewer.get(f"{address}&choose=columns"))
    assert page in whole, "without scripts the link shows the same"
    offered = re.findall(r'name="columns" value="([^"]+)"', page)
    assert "G" in offered
    assert "beta" not in offered, "it is the same in both"
    assert whole.count('data-label="seed"') == 2


def test_a_suite_of_one_run_is_offered_by_its_scores_alone(viewer: Client, maker: Maker) -> None:
    """Not by each setting of its place in the list of suites."""
    version = starters_add(project=maker.project, actor=maker.actor, names=["format"]).added[0]
    run = maker.launched("measured", ChosenSuite(version), eval={"holdout": 4})
    maker.run("other")
    add_evaluation(maker.attempt(run), "after", [1, 0], suite="format")
    evaluation_values_store(run_id=run.pk)
    page = html(viewer.get(f"{LIST}?choose=columns"))
    offered = re.findall(r'name="columns" value="([^"]+)"', page)
    assert [name for name in offered if "suites" in name] == []
    assert "eval.format" in offered


def test_only_a_list_with_live_runs_polls(viewer: Client, maker: Maker) -> None:
    run = maker.run(state="training")
    address = poll_of(html(viewer.get(LIST)))
    assert viewer.get(address).status_code == 204, "nothing has changed"
    Run.objects.filter(pk=run.pk).update(step=7)
    changed = viewer.get(address)
    assert changed.status_code == 200
    assert "<html" not in html(changed)
    assert 'value="7"' in html(changed)
    put_in(run, "succeeded")
    ended = html(viewer.get(address))
    assert ("Succeeded" in ended, "data-poll" in ended) == (True, False)
