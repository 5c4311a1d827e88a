"""The pages of a run: the numbers are those of the rows, what is polled and when that ends, what each tab shows."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from cohort.launch.creation import run_submit
from cohort.nodes.models import Node
from cohort.records.services import record_seal
from cohort.runs.models import Attempt, Run, RunEvent
from cohort.web.runs.header import Header
from cohort.web.runs.tiles import Tile, tiles, windows
from tests.factories.runs import HOSTILE, HOSTILE_SHOWN, UNPROBED, Maker, add_evaluation, add_group, add_steps
from tests.factories.series import add_series
from tests.tables import cases
from tests.web.control import poll_of
from tests.web.pages import html
from tests.web.run_page import freeze, page_of, queries, words


def tiles_of(run: Run) -> dict[str, Tile]:
    header = Header(Run.objects.get(pk=run.pk))
    return {tile.label: tile for tile in tiles(header, windows(header.run))}


def shown(tile: Tile) -> tuple[str, str]:
    return (tile.absent if tile.value is None else tile.shown.replace("\u00a0", " "), tile.change_shown)


# ---------------------------------------------------------------- header and tiles


def test_a_run_in_training(viewer: Client, maker: Maker) -> None:
    run = maker.run(
        state="training", preset="dapo", optim={"steps": 120}, sampling={"group_size": 8, "prompts_per_step": 16}
    )
    Run.objects.filter(pk=run.pk).update(phase="training", seconds_per_step=2.0)
    run.refresh_from_db()
    attempt = maker.attempt(run)
    first = {"reward": 0.55, "frac_informative": 0.97, "entropy": 0.38, "completions/mean_length": 41.0}
    last = {"reward": 0.86, "frac_informative": 0.54, "entropy": 0.18, "completions/mean_length": 41.2}
    odd = {"reward": -9.0, "frac_informative": 0.0, "entropy": 9.0, "completions/mean_length": 999.0}
    add_steps(attempt, [*[first] * 10, *[odd] * 64, *[last | {"samples_per_second": 64.0}] * 10])
    with freeze(attempt.heartbeat_at + timedelta(seconds=3)):
        page = page_of(viewer, run)
    text = words(page)
    for part in ("step 84 of 120", "1 min 12 s left", "attempt 1 on node-a", "3 s ago", "DAPO, 2 differences"):
        assert part in text
    assert {label: shown(tile) for label, tile in tiles_of(run).items()} == {
        "Reward": ("0.860", "+0.310"),
        "Groups with signal": ("54 %", "−43 points"),
        "KL to reference": ("n/a, β 0", ""),
        "Clipped tokens": ("–", ""),
        "Entropy": ("0.180", "−0.200"),
        "Length, tokens": ("41.2", "+0.2"),
        "Samples per second": ("64.0", ""),
    }, "16 mini-batches, and no step has reported a clip yet"
    assert re.search(r'<div class="label">Reward</div>\s*<div class="value">\s*0\.860', page)
    assert "Mean of the last 10 steps, and its difference from the mean of the first 10." in text


@pytest.mark.parametrize(
    ("rewards", "expected", "meaning"),
    [
        ([1.0], ("1.00", ""), "Mean of one step. A change is shown from step 20 on."),
        ([0.0, 1.0, 0.5, 0.5], ("0.500", ""), "Mean of 4 steps. A change is shown from step 20 on."),
        ([9.0, *[0.5] * 10], ("0.500", ""), "Mean of the last 10 steps. A change is shown from step 20 on."),
        ([0.25] * 19, ("0.250", ""), "Mean of the last 10 steps. A change is shown from step 20 on."),
        ([*[0.0, 1.0] * 5, *[0.5, 1.0] * 5], ("0.750", "+0.250"), "Mean of the last 10 steps, and its difference"),
        ([*[0.5] * 10, 9.0, *[0.5] * 10], ("0.500", ""), "Mean of the last 10 steps, and its difference"),
    ],
)
def test_a_tile_compares_windows_that_share_no_step(
    maker: Maker, rewards: list[float], expected: tuple[str, str], meaning: str
) -> None:
    run = maker.run(state="training")
    add_steps(maker.attempt(run), [{"reward": reward} for reward in rewards])
    tile = tiles_of(run)["Reward"]
    assert shown(tile) == expected
    assert tile.meaning.startswith(meaning)


def test_tiles_count_no_step_that_was_superseded(maker: Maker) -> None:
    run = maker.run(state="training")
    lost = maker.attempt(run, state="lost")
    add_steps(lost, [{"reward": 0.5}] * 30)
    Attempt.objects.filter(pk=lost.pk).update(valid_through=15)
    add_steps(maker.attempt(run), [{"reward": 0.75}] * 5, first=16)
    assert shown(tiles_of(run)["Reward"]) == ("0.625", "+0.125"), "steps 11 to 15 at 0.5, 16 to 20 at 0.75"


def test_tiles_read_twenty_rows_of_any_run(maker: Maker) -> None:
    run = maker.run(state="training")
    add_series(maker.attempt(run), 300)
    read = windows(Run.objects.get(pk=run.pk))
    assert (len(read.first), len(read.newest)) == (10, 10)
    assert queries(lambda: windows(run)) == 1


def test_the_tile_of_clipped_tokens_agrees_with_its_chart(viewer: Client, maker: Maker) -> None:
    """At 0.1 to 0.3 % it is not 0 %."""
    run = maker.run(state="training", algorithm={"mini_batches": 2})
    add_series(maker.attempt(run), 40)
    got = viewer.get(f"/p/ours/runs/{run.pk}/series.json").json()["metrics"]
    charted = [low + high for low, high in zip(got["clip_ratio/low_mean"], got["clip_ratio/high_mean"], strict=True)]
    text, _ = shown(tiles_of(run)["Clipped tokens"])
    assert text == f"{100 * sum(charted[-10:]) / 10:.2f} %"
    assert 0.1 < float(text.removesuffix(" %")) < 0.3


@pytest.mark.parametrize(("algorithm", "clip", "variant"), cases("runs/header", "algorithm", "clip", "variant"))
def test_the_header_names_clip_and_variant(maker: Maker, algorithm: dict[str, Any], clip: str, variant: str) -> None:
    header = Header(maker.run(state="training", algorithm=algorithm))
    assert (header.clip, header.variant) == (clip, variant)


@pytest.mark.parametrize(
    ("algorithm", "numbers", "label", "expected"), cases("runs/tiles", "algorithm", "numbers", "label", "expected")
)
def test_a_tile_is_not_0_where_there_is_nothing_to_measure(
    maker: Maker, algorithm: dict[str, Any], numbers: dict[str, float], label: str, expected: str
) -> None:
    run = maker.run(state="training", algorithm=algorithm)
    add_steps(maker.attempt(run), [{"reward": 0.5, **numbers}] * 2)
    by_label = tiles_of(run)
    assert shown(by_label[label]) == (expected, ""), "no change is not shown as one"


def test_a_waiting_run_says_why(viewer: Client, maker: Maker) -> None:
    run = maker.run(state="queued")
    Node.objects.create(name="node-c", token_digest="2" * 64, last_seen_at=timezone.now() - timedelta(seconds=125))
    assert "Place 1 in the queue : no node is here" in words(page_of(viewer, run))
    Node.objects.create(name="node-b", token_digest="1" * 64, last_seen_at=timezone.now() - timedelta(seconds=5))
    assert "no node is here" not in words(page_of(viewer, run))


@pytest.mark.parametrize(("state", "phase", "doing"), cases("runs/doing", "state", "phase", "doing"))
def test_what_it_is_doing(maker: Maker, state: str, phase: str, doing: str) -> None:
    run = maker.run(state=state)
    run.phase = phase
    maker.attempt(run)
    assert Header(run).doing == doing


def test_a_silent_worker_is_news_although_no_row_changed(viewer: Client, maker: Maker) -> None:
    run = maker.run(state="training")
    attempt = maker.attempt(run)
    with freeze(attempt.heartbeat_at + timedelta(seconds=3)):
        address = poll_of(page_of(viewer, run))
        assert viewer.get(address).status_code == 204
    with freeze(attempt.heartbeat_at + timedelta(seconds=45)):
        page = viewer.get(address)
    assert page.status_code == 200
    assert "has sent no heartbeat for 45 s" in words(html(page))


# ---------------------------------------------------------------- tabs


def test_a_failed_run_shows_reason_and_log_on_top(operator: Client, maker: Maker) -> None:
    run = maker.run(state="failed")
    log = "\n".join(f"line {number}" for number in range(40)) + f"\nMemoryError {HOSTILE}"
    Run.objects.filter(pk=run.pk).update(
        reason="The trainer died at step 3.", error_code="trainer_died", log_tail=log, ended_at=timezone.now()
    )
    maker.attempt(run, state="failed")
    page = page_of(operator, run)
    top = page[: page.index("Newest groups")]
    for part in ("The trainer died at step 3.", "trainer_died", f"MemoryError {HOSTILE_SHOWN}", "line 39"):
        assert part in top
    assert "line 20" not in page, "only the last lines; the rest is under Logs"
    assert f"?clone={run.pk}" in page
    assert "line 0" in page_of(operator, run, "logs/")


def test_events_are_newest_first_with_who_and_cut_with_their_count(viewer: Client, maker: Maker) -> None:
    run, client, now = maker.run(), viewer, timezone.now()
    RunEvent.objects.create(run=run, at=now, actor="node:node-a", kind="claimed", message=HOSTILE, data={"fence": 1})
    page = page_of(client, run, "events/")
    assert page.index("node:node-a") < page.index("user:alice")
    assert HOSTILE_SHOWN in page
    assert "&quot;fence&quot;: 1" in page
    RunEvent.objects.bulk_create(
        RunEvent(run=run, at=now, actor="trainer", kind="warning", message=f"event {n}") for n in range(250)
    )
    assert "showing 100 of 252" in words(page_of(client, run, "events/"))
    last = page_of(client, run, "events/", page="3")
    assert "showing 52 of 252" in words(last)
    assert "node:node-a" in last


def test_config_names_each_difference_from_the_preset(viewer: Client, maker: Maker) -> None:
    page = page_of(viewer, maker.run(preset="dapo", sampling={"group_size": 8}), "config/")
    assert "sampling.group_size 16 8" in words(page)
    assert "optim.lr" not in words(page).split("Config sha256")[0]
    assert "group_size: 8" in page


def test_what_the_trainer_waits_for_is_shown_until_it_is_over(viewer: Client, maker: Maker) -> None:
    attempt = maker.attempt(maker.run(state="training"))

    def reports(seq: int, message: str, **data: Any) -> str:
        RunEvent.objects.create(
            run=attempt.run,
            attempt=attempt,
            seq=seq,
            at=timezone.now(),
            actor="trainer",
            kind="waiting",
            message=message,
            data=data,
        )
        return page_of(viewer, attempt.run)

    assert "waits for 5 min" in reports(1, "waits for 5 min", seconds=300.0, moves=False)
    assert "The trainer waits" not in reports(2, "continues after 6 min", seconds=360.0, over=True)
    assert "The trainer waits" in reports(3, "waits for 5 min", seconds=300.0, moves=False)
    Attempt.objects.filter(pk=attempt.pk).update(state="lost", ended_at=timezone.now())
    assert "The trainer waits" not in page_of(viewer, attempt.run)
    assert page_of(viewer, attempt.run, "events/").count("waits for 5 min") == 2, "among its events for good"


# ---------------------------------------------------------------- live


def test_an_idle_poll_is_empty_and_a_change_brings_all_parts(viewer: Client, maker: Maker) -> None:
    run = maker.run(state="training")
    attempt = maker.attempt(run)
    add_steps(attempt, [{"reward": 0.25}])
    address = poll_of(page_of(viewer, run))
    idle = viewer.get(address)
    assert (idle.status_code, idle.content) == (204, b"")
    add_steps(attempt, [{"reward": 0.75}], first=2)
    add_group(attempt, [1.0, 0.0], step=2)
    changed = viewer.get(address)
    page = html(changed)
    assert changed.status_code == 200
    assert 'data-step="2"' in page
    for part in ("live-top", "live-tiles", "live-groups", "live-evals"):
        assert re.search(rf'id="{part}"[^>]* hx-swap-oob="true"', page), part
    assert "Reward 0.500" in words(page), "the mean of the two"
    assert "what is 49 + 78?" in page
    assert viewer.get(poll_of(page)).status_code == 204
    other_tab = poll_of(page_of(viewer, run, "groups/")).split("&v=")[0]
    page = html(viewer.get(other_tab))
    assert ('id="live-header"' in page, "live-tiles" in page) == (True, False)


def test_beats_are_news_once_in_ten_seconds(maker: Maker) -> None:
    """A worker beats every 2.5 s; were each beat news, no poll would be idle."""
    run = maker.run(state="training")
    attempt = maker.attempt(run)
    tens = timezone.now().replace(microsecond=0)
    tens -= timedelta(seconds=tens.second % 10)

    def version(seconds: float) -> str:
        Attempt.objects.filter(pk=attempt.pk).update(heartbeat_at=tens + timedelta(seconds=seconds))
        return Header(run).version

    with freeze(tens + timedelta(seconds=12)):
        assert len({version(seconds) for seconds in (0, 2.5, 5, 7.5, 9.9)}) == 1
        assert version(9.9) != version(10)


def test_an_evaluation_is_compared_and_sent_once(viewer: Client, maker: Maker) -> None:
    """Its problems are compared again when another one stands, not at each step."""
    run = maker.run(state="training")
    attempt = maker.attempt(run)
    add_evaluation(attempt, "before", [1, 0])
    address = poll_of(page_of(viewer, run))
    add_steps(attempt, [{"reward": 0.5}])
    with CaptureQueriesContext(connection) as queries:
        page = html(viewer.get(address))
    assert 'data-step="1"' in page
    assert "live-evals" not in page, "what the page shows stays"
    assert not [query for query in queries if "runs_evalitem" in query["sql"]]
    add_evaluation(attempt, "after", [1, 1])
    page = html(viewer.get(poll_of(page)))
    assert 'id="live-evals"' in page
    assert "100.0 %" in words(page)


def test_an_ended_run_polls_until_its_record_is_there(viewer: Client, maker: Maker) -> None:
    run = maker.run()
    run_submit(run=run, actor=maker.actor, probe_override=UNPROBED)
    maker.attempt(run, state="failed")
    ended = timezone.now()
    address = poll_of(page_of(viewer, run))
    Run.objects.filter(pk=run.pk).update(state="failed", ended_at=ended, ends=1)
    page = viewer.get(address)
    assert page.status_code == 200, "its record comes within seconds"
    assert "card-link" not in html(page)
    address = poll_of(html(page))
    assert viewer.get(address).status_code == 204
    with freeze(ended + timedelta(minutes=11)):
        assert viewer.get(address).status_code == 286, "but it is not waited for without end"
    record_seal(run=Run.objects.get(pk=run.pk))
    last = viewer.get(address)
    assert last.status_code == 286
    assert ('id="card-link"' in html(last), "data-poll" in html(last)) == (True, False)


def test_an_idle_poll_is_cheap_and_pages_cost_the_same_when_full(viewer: Client, maker: Maker) -> None:
    run = maker.run(state="training")
    attempt = maker.attempt(run)
    add_steps(attempt, [{"reward": 0.5}])
    add_group(attempt, [1.0, 0.0])
    with CaptureQueriesContext(connection) as few:
        address = poll_of(page_of(viewer, run))
    with CaptureQueriesContext(connection) as idle:
        assert viewer.get(address).status_code == 204
    assert len(idle) <= 6
    for index in range(1, 12):
        add_group(attempt, [1.0, 0.0, 1.0], index=index)
    add_steps(attempt, [{"reward": 0.5}] * 20, first=2)
    many = queries(lambda: page_of(viewer, run))
    assert many == len(few) <= 27


# ---------------------------------------------------------------- hostile text
