"""The list of runs: what a row shows, pages, filters, polling."""

import re

import pytest
from django.test import Client

from cohort.accounts.models import Project
from cohort.runs.models import Run
from tests.factories.runs import Maker, add_steps, put_in
from tests.tables import cases
from tests.web.control import poll_of
from tests.web.pages import html
from tests.web.run_page import queries, words

LIST = "/p/ours/runs/"


def many(maker: Maker, count: int) -> None:
    """`count` runs copied from one made through the service."""
    made = maker.run("run 0")
    kept = [field.attname for field in Run._meta.concrete_fields if field.attname not in ("id", "name")]
    Run.objects.bulk_create(
        Run(**{name: getattr(made, name) for name in kept}, name=f"run {number}") for number in range(1, count)
    )


def names(page: str) -> list[str]:
    return re.findall(r'<a id="run-\d+" href="[^"]+">([^<]*)</a>', page)


def test_an_empty_list_offers_the_form_to_who_may_use_it(ours: Project, admin: Client, viewer: Client) -> None:
    assert 'href="/p/ours/runs/new/"' in html(admin.get(LIST))
    assert "/runs/new/" not in html(viewer.get(LIST))


def test_a_row_shows_state_progress_reward_and_change(viewer: Client, maker: Maker) -> None:
    run = maker.run("adder", state="training", preset="dapo", optim={"steps": 120})
    add_steps(maker.attempt(run), [{"reward": 0.25}, {"reward": 0.75}])
    maker.run("reported nothing")
    page = html(viewer.get(LIST))
    empty, full = page[page.index("<tbody>") : page.index("</tbody>")].split("<tr")[1:]
    for part in ("Training", 'max="120" value="2"', ">0.75<", "+0.50", "tiny", "DAPO · population std", "alice"):
        assert part in full
    assert empty.count(">–<") == 2, "dashes, not zeros"
    assert "0.00" not in empty


def test_pages_are_newest_first_whole_and_lead_back(viewer: Client, maker: Maker) -> None:
    maker.run("another", state="failed")
    few = queries(lambda: viewer.get(LIST))
    many(maker, 120)
    full = queries(lambda: viewer.get(LIST))
    assert full == few <= 10, "it costs the same for one run and for fifty"
    seen, address, newer = [], f"{LIST}?state=draft", None
    for count in (50, 50, 20):
        page = html(viewer.get(address))
        assert f"showing {count} of 120" in words(page)
        seen.append(names(page))
        newer = re.search(r'href="\?([^"]*after=\d+)" rel="prev"', page)
        older = re.search(r'href="(\?state=draft&amp;before=\d+)" rel="next"', page)
        address = LIST + older[1].replace("&amp;", "&") if older else ""
    assert address == "", "the last page has no older one"
    assert [name for page in seen for name in page] == [f"run {number}" for number in reversed(range(120))]
    assert newer is not None
    back = html(viewer.get(f"{LIST}?{newer[1].replace('&amp;', '&')}"))
    assert names(back) == seen[1]


@pytest.mark.parametrize(("query", "shown"), cases("runs/list_filters", "query", "names"))
def test_filters(viewer: Client, maker: Maker, query: str, shown: list[str]) -> None:
    maker.run("broken", state="failed")
    maker.run("live one", state="training", preset="dapo")
    page = html(viewer.get(f"{LIST}?{query}"))
    assert names(page) == shown
    assert ("showing 1 of 1 that fit, 2 in all" in words(page)) == (len(shown) == 1)


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
