"""The log of a run: taken by byte offsets, read as lines, searched, followed and taken away whole."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from cohort.runs import logs
from cohort.runs.logs import Line, log_append, log_bytes, log_lines, log_size
from cohort.runs.models import Attempt, LogChunk, Run
from cohort.web.runs import logs as page
from tests.factories.runs import HOSTILE, HOSTILE_SHOWN, Maker, add_group
from tests.web.pages import html
from tests.web.run_page import page_of, queries
from tests.web.worker_calls import AttemptCaller, refused, run, worker

__all__ = ["run", "worker"]  # fixtures

Printed = Callable[[str], Attempt]


@pytest.fixture
def printed(maker: Maker) -> Printed:
    """An attempt whose log holds this text, sent in small parts."""

    def make(text: str) -> Attempt:
        attempt = maker.attempt(maker.run("prints", state="training"))
        send(attempt, text.encode())
        return attempt

    return make


def send(attempt: Attempt, content: bytes, *, part: int = 5000) -> None:
    start = log_size(attempt)
    for offset in range(0, len(content), part):
        body = content[offset : offset + part]
        log_append(attempt=attempt, fence=attempt.fence, offset=start + offset, body=body)


def texts(lines: Any) -> list[str]:
    return [line.text for line in lines]


STEPS = "".join(f"step {n}/900 · reward 0.{n % 10} · 3 s left\n" for n in range(1, 901))


# ---------------------------------------------------------------------- taken


def test_parts_are_stored_end_to_end(worker: AttemptCaller, run: Run) -> None:
    assert worker.log(b"step 1", offset=0).json() == {"received": 6, "full": False}
    assert worker.log(b"/2\n", offset=6).json() == {"received": 9, "full": False}
    assert refused(worker.log(b"/2\n", offset=6)) == (409, "wrong_offset")
    assert worker.log().json()["received"] == 9
    assert refused(worker.log(b"x", offset=9, fence=worker.fence + 1)) == (409, "stale_fence")
    assert refused(worker.log(b"x")) == (422, "bad_request")
    assert b"".join(log_bytes(run.attempts.get())) == b"step 1/2\n"
    assert LogChunk.objects.count() == 1, "small parts make one row"


def test_a_log_ends_at_its_limit(worker: AttemptCaller, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LIMIT", 10)
    assert worker.log(b"0123456", offset=0).json() == {"received": 7, "full": False}
    assert worker.log(b"789abc", offset=7).json() == {"received": 10, "full": True}
    assert worker.log(b"abc", offset=10).json() == {"received": 10, "full": True}
    assert b"".join(log_bytes(run.attempts.get())) == b"0123456789"


@given(content=st.binary(max_size=400), parts=st.lists(st.integers(1, 90), max_size=8), start=st.integers(0, 500))
def test_lines_are_the_bytes_whatever_the_parts(content: bytes, parts: list[int], start: int) -> None:
    """Without a database: the reading is given the chunks."""
    chunks, at = [], 0
    for size in [*parts, len(content) or 1]:
        chunks.append(content[at : at + size])
        at += size
    start = content.rfind(b"\n", 0, min(start, len(content))) + 1
    pieces = [b"".join(chunks)[start:][i : i + 7] for i in range(0, len(content), 7)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "log_bytes", lambda attempt, begin=0: iter(pieces))
        lines = list(log_lines(Attempt(), start))
    assert b"".join(content[line.offset : line.end] for line in lines) == content[start:]
    assert all(line.whole == content[: line.end].endswith(b"\n") for line in lines)
    assert all(not re.search(r"[\x00-\x08\x1b\n\r]", line.text) for line in lines)


def test_what_was_overwritten_and_colours_are_left_out(printed: Printed) -> None:
    attempt = printed("loading  0 %\rloading 50 %\rloading 100 %\n\x1b[31mred\x1b[0m\r\nnaïve")
    assert [(line.text, line.whole) for line in log_lines(attempt)] == [
        ("loading 100 %", True),
        ("red", True),
        ("naïve", False),
    ]


@pytest.mark.parametrize(
    ("text", "level", "step"),
    [
        ("step 12/80 · reward 0.5", "", 12),
        ("warning: nothing scored", "warning", None),
        ("x.py:1: UserWarning: old", "warning", None),
        ("Traceback (most recent call last):", "error", None),
        ("ValueError: no", "error", None),
        ("the run failed", "error", None),
        ("0 terrors, 3 warned", "", None),
    ],
)
def test_a_line_has_a_level_and_a_step(text: str, level: str, step: int | None) -> None:
    line = Line(0, 1, text, True)
    assert (line.level, line.step) == (level, step)


# ---------------------------------------------------------------------- shown


def test_the_newest_lines_are_shown_first_and_the_earlier_ones_a_link_away(viewer: Client, printed: Printed) -> None:
    attempt = printed(STEPS)
    shown: list[str] = []
    run, before = attempt.run, None
    while True:
        window = page.window(attempt, page.Choice(), at=None, before=before, live=True)
        shown = texts(window.lines) + shown
        if window.earlier is None:
            break
        before = window.earlier
    assert shown == STEPS.splitlines()
    text = page_of(viewer, run, "logs/")
    assert ("step 900/900" in text, "step 400/900" in text) == (True, False)
    first = page_of(viewer, run, "logs/", at="0")
    assert ("step 1/900" in first, "Later lines" in first, "log-more" in first) == (True, True, False)


def test_windows_forward_cover_the_log(printed: Printed) -> None:
    shown: list[str] = []
    attempt, at = printed(STEPS), 0
    while True:
        window = page.window(attempt, page.Choice(), at=at, before=None, live=False)
        shown += texts(window.lines)
        if window.later is None:
            break
        at = window.later
    assert shown == STEPS.splitlines()


def test_a_step_is_gone_to(viewer: Client, printed: Printed) -> None:
    run = printed(STEPS).run
    response = viewer.get(f"/p/ours/runs/{run.pk}/logs/", {"step": "300"})
    offset = len("".join(STEPS.splitlines(keepends=True)[:299]).encode())
    assert response["Location"].endswith(f"?attempt=1&at={offset}#line-{offset}")
    assert f'id="line-{offset}"' in html(viewer.get(response["Location"]))
    assert "No line of step 901" in page_of(viewer, run, "logs/", step="901")


def test_lines_are_searched_and_filtered(viewer: Client, printed: Printed) -> None:
    run = printed(f"{STEPS}warning: {HOSTILE}\nValueError: bad\n").run
    text = page_of(viewer, run, "logs/", q="STEP 77/")
    assert ("1 line fits" in text, "step 77/900" in text, "step 78/900" in text) == (True, True, False)
    text = page_of(viewer, run, "logs/", level="warning")
    assert ("2 lines fit" in text, HOSTILE_SHOWN in text, "ValueError" in text) == (True, True, True)
    text = page_of(viewer, run, "logs/", level="error")
    assert ("1 line fits" in text, HOSTILE_SHOWN in text) == (True, False)
    many = page_of(viewer, run, "logs/", q="reward")
    assert "900 lines fit, the last 500 are shown" in many


def test_a_page_follows_until_the_attempt_ends(viewer: Client, printed: Printed) -> None:
    attempt = printed("one\ntw")
    run = attempt.run
    text = page_of(viewer, run, "logs/")
    assert ("tw" in re.sub(r"<[^>]+>", "", text.split('id="log"')[1].split("log-more")[0]), "from=4" in text) == (
        False,
        True,
    )
    more = f"/p/ours/runs/{run.pk}/logs/more/"
    assert viewer.get(more, {"attempt": 1, "from": 4}).status_code == 204, "no whole line yet"
    send(attempt, b"o\nwarning: three\n")
    answer = viewer.get(more, {"attempt": 1, "from": 4})
    assert (answer.status_code, ">two<" in html(answer), "from=23" in html(answer)) == (200, True, True)
    assert ">two<" not in html(viewer.get(more, {"attempt": 1, "from": 4, "level": "warning"}))
    send(attempt, b"last")
    Attempt.objects.filter(pk=attempt.pk).update(state="failed", ended_at="2026-01-01T00:00Z")
    answer = viewer.get(more, {"attempt": 1, "from": 23})
    assert (answer.status_code, ">last<" in html(answer), "log-more" in html(answer)) == (286, True, False)


def test_the_whole_log_is_taken_away(viewer: Client, printed: Printed) -> None:
    attempt = printed(STEPS + "\x1b[31m\xff")
    answer = viewer.get(f"/p/ours/runs/{attempt.run_id}/log.txt", {"attempt": 1})
    assert b"".join(answer.streaming_content) == (STEPS + "\x1b[31m\xff").encode()  # type: ignore[attr-defined]
    assert answer["Content-Disposition"] == f'attachment; filename="prints-{attempt.run_id}.attempt-1.log.txt"'
    assert viewer.get(f"/p/ours/runs/{attempt.run_id}/log.txt", {"attempt": 7}).status_code == 404


def test_a_page_of_a_long_log_costs_no_more_queries(viewer: Client, printed: Printed) -> None:
    attempt = printed("one\n")
    page_of(viewer, attempt.run, "logs/")
    few = queries(lambda: page_of(viewer, attempt.run, "logs/"))
    send(attempt, STEPS.encode())
    assert queries(lambda: page_of(viewer, attempt.run, "logs/")) == few


def test_a_run_that_no_worker_took_has_no_log(viewer: Client, maker: Maker) -> None:
    run = maker.run(state="queued")
    assert "once a worker has taken the run" in page_of(viewer, run, "logs/")
    assert viewer.get(f"/p/ours/runs/{run.pk}/logs/more/").status_code == 404


def test_a_page_that_waits_for_a_worker_is_loaded_anew_with_the_first_attempt(viewer: Client, maker: Maker) -> None:
    run = maker.run("waits", state="queued")
    address, polled = f"/p/ours/runs/{run.pk}/logs/", {"HX-Request": "true"}
    page = html(viewer.get(address))
    assert re.search(r'id="log-awaited"\s+data-poll', page)
    waits = viewer.get(address, headers=polled)
    assert (waits.status_code, "HX-Refresh" in waits.headers) == (204, False)
    maker.attempt(run)
    assert viewer.get(address, headers=polled).headers["HX-Refresh"] == "true"


def test_prints_and_traceback_of_a_verifier_are_next_to_their_sample(viewer: Client, trained: Run) -> None:
    group = add_group(trained.attempts.get(), [1.0, 0.0], index=9)
    sample = group.samples.get(index=1)
    name = next(iter(sample.components))
    sample.components[name] |= {"printed": f"looked at {HOSTILE}", "traceback": "line 3, in reward"}
    sample.save()
    text = html(viewer.get(f"/p/ours/runs/{trained.pk}/groups/{group.pk}/"))
    assert (HOSTILE_SHOWN in text, "line 3, in reward" in text, text.count("what it printed")) == (True, True, 1)
