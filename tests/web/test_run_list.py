"""The list of runs: what a row says, pages, filters, polling, and who sees it."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.html import escape

from cohort.accounts.models import Project, User
from cohort.runs.models import Run
from tests.web.run_rows import HOSTILE, HOSTILE_SHOWN, Maker, add_steps, put_in

ClientFor = Callable[[User], Client]
LIST = "/p/ours/runs/"


def many(maker: Maker, count: int, **fields: object) -> None:
    """`count` runs copied from one made through the service."""
    made = maker.run("run 0")
    Run.objects.bulk_create(
        Run(
            **{
                field.attname: getattr(made, field.attname)
                for field in Run._meta.concrete_fields
                if field.attname not in ("id", "name", *fields)
            },
            **fields,
            name=f"run {number}",
        )
        for number in range(1, count)
    )


def names(page: str) -> list[str]:
    return re.findall(r'<a id="run-\d+" href="[^"]+">([^<]*)</a>', page)


def test_an_empty_list_says_what_to_do_next(client_for: ClientFor, ours: Project, alice: User, bob: User) -> None:
    assert 'href="/p/ours/runs/new/">Define the first run' in client_for(alice).get(LIST).content.decode()
    seen_by_bob = client_for(bob).get(LIST).content.decode()
    assert "/runs/new/" not in seen_by_bob
    assert "An operator or admin of Our project can define the first one" in seen_by_bob


def test_a_row_says_state_progress_reward_and_change(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run("adder", state="training", preset="dapo", optim={"steps": 120})
    add_steps(maker.attempt(run), [{"reward": 0.25}, {"reward": 0.75}])
    page = client_for(bob).get(LIST).content.decode()
    row = page[page.index("<tbody>") : page.index("</tbody>")]
    assert "Training" in row
    assert '<progress class="progress" max="120" value="2"' in row
    assert ">0.75<" in row
    assert "+0.50" in row
    assert "tiny" in row
    assert "DAPO · population std" in row
    assert "alice" in row


@pytest.mark.parametrize(
    ("algorithm", "short"),
    [
        ({"std_ddof": 1}, "sample std"),
        ({"scale": "batch_std"}, "batch std"),
        ({"scale": "none"}, "mean only"),
        ({"advantage": "rloo", "scale": "none"}, "RLOO"),
        ({"advantage": "reinforce_pp", "scale": "batch_std"}, "REINFORCE++"),
        ({"advantage": "gae", "scale": "batch_std"}, "PPO"),
        ({"advantage": "pass_at_k", "pass_k": 2}, "Pass@k"),
    ],
)
def test_a_row_says_how_rewards_become_advantages(
    client_for: ClientFor, bob: User, maker: Maker, algorithm: dict[str, Any], short: str
) -> None:
    maker.run("adder", algorithm=algorithm)
    assert f'<td class="muted">{short}</td>' in client_for(bob).get(LIST).content.decode()


def test_a_run_that_reported_nothing_shows_dashes_not_zeros(client_for: ClientFor, bob: User, maker: Maker) -> None:
    maker.run()
    row = client_for(bob).get(LIST).content.decode().split("<tbody>")[1]
    assert row.count(">–<") == 2
    assert "0.00" not in row


def test_pages_are_newest_first_whole_and_honest(client_for: ClientFor, bob: User, maker: Maker) -> None:
    many(maker, 120)
    client, seen, address = client_for(bob), [], LIST
    for count in (50, 50, 20):
        page = client.get(address).content.decode()
        assert f"showing {count} of 120" in page
        seen += names(page)
        older = re.search(r'href="(\?[^"]*before=\d+)" rel="next"', page)
        address = LIST + older[1].replace("&amp;", "&") if older else ""
    assert address == "", "the last page has no older one"
    assert seen == [f"run {number}" for number in reversed(range(120))]


def test_back_to_newer_shows_the_page_before(client_for: ClientFor, bob: User, maker: Maker) -> None:
    many(maker, 120)
    client = client_for(bob)
    second = client.get(LIST + "?before=" + str(Run.objects.get(name="run 70").pk)).content.decode()
    newer = re.search(r'href="\?(after=\d+)" rel="prev"', second)
    assert newer is not None
    assert names(client.get(f"{LIST}?{newer[1]}").content.decode()) == [f"run {n}" for n in reversed(range(70, 120))]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("state=training", ["live one"]),
        ("state=live", ["live one"]),
        ("state=failed", ["broken"]),
        ("q=BROK", ["broken"]),
        ("q=dapo", ["live one"]),
        ("q=alice", ["live one", "broken"]),
        ("q=tiny", ["live one", "broken"]),
        ("q=additions&state=failed", ["broken"]),
        ("q=nothing+like+it", []),
        ("state=no-such-state", ["live one", "broken"]),
    ],
)
def test_filters(client_for: ClientFor, bob: User, maker: Maker, query: str, found: list[str]) -> None:
    maker.run("broken", state="failed")
    maker.run("live one", state="training", preset="dapo")
    page = client_for(bob).get(f"{LIST}?{query}").content.decode()
    assert names(page) == found
    if 0 < len(found) < 2:
        assert "showing 1 of 1 that fit, 2 in all" in page
    if not found:
        assert "None of the 2 runs matches" in page


def test_older_keeps_the_filter(client_for: ClientFor, bob: User, maker: Maker) -> None:
    many(maker, 60)
    page = client_for(bob).get(LIST, {"q": "run", "state": "draft"}).content.decode()
    assert re.search(r'href="\?q=run&amp;state=draft&amp;before=\d+"', page)


def test_it_costs_the_same_for_one_run_and_for_fifty(client_for: ClientFor, bob: User, maker: Maker) -> None:
    client = client_for(bob)
    maker.run()
    with CaptureQueriesContext(
        connection,
    ) as one:
        client.get(LIST)
    many(maker, 60)
    with CaptureQueriesContext(connection) as sixty:
        client.get(LIST)
    assert len(sixty) == len(one) <= 10


def test_only_a_list_with_live_runs_polls(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run(state="training")
    client = client_for(bob)
    page = client.get(LIST).content.decode()
    poll = re.search(r'data-poll hx-get="([^"]+)"', page)
    assert poll is not None
    address = poll[1].replace("&amp;", "&")
    assert client.get(address).status_code == 204, "nothing has changed"
    Run.objects.filter(pk=run.pk).update(step=7)
    changed = client.get(address)
    assert changed.status_code == 200
    assert "<html" not in changed.content.decode()
    assert 'value="7"' in changed.content.decode()
    put_in(run, "succeeded")
    ended = client.get(address).content.decode()
    assert "Succeeded" in ended
    assert "data-poll" not in ended, "and polls no more"


def test_a_hostile_name_is_shown_and_does_not_run(client_for: ClientFor, bob: User, maker: Maker) -> None:
    maker.run(HOSTILE[:100])
    page = client_for(bob).get(LIST).content.decode()
    assert HOSTILE_SHOWN in page
    assert "<script>alert" not in page
    assert "\u202e" not in page
    text = client_for(bob).get(LIST, {"q": HOSTILE}).content.decode()
    assert escape(HOSTILE) in text
    assert "<script>alert" not in text


@pytest.mark.parametrize("query", ["q=%00", "q=%ED%A0%80", f"before={'9' * 18}", f"after={'9' * 5000}"])
def test_odd_addresses_are_answered(client_for: ClientFor, bob: User, maker: Maker, query: str) -> None:
    maker.run()
    page = client_for(bob).get(f"{LIST}?{query}")
    assert page.status_code == 200
    assert ("None of the 1 runs matches" in page.content.decode()) == query.startswith("q=")


def test_a_stranger_sees_nothing_and_nobody_posts(
    client_for: ClientFor, charlie: User, bob: User, maker: Maker
) -> None:
    maker.run()
    assert client_for(charlie).get(LIST).status_code == 404
    assert client_for(bob).post(LIST).status_code == 405
