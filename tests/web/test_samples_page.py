"""The page of a run's samples: its table, pages, counts, filters ready made and saved, and what is refused."""

import re
from typing import Any

import pytest
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.review.services import sample_judge
from cohort.runs.models import Run, SavedView
from cohort.runs.saved_views import view_save
from tests.factories.runs import HOSTILE, HOSTILE_SHOWN, Maker, add_group, add_samples
from tests.web.pages import html
from tests.web.run_page import queries, words


@pytest.fixture
def run(maker: Maker) -> Run:
    return maker.run(state="training")


def page_of(client: Client, run: Run, query: str = "", status: int = 200, **headers: Any) -> str:
    response = client.get(f"/p/ours/runs/{run.pk}/samples/?{query}", **headers)
    assert response.status_code == status
    return html(response)


def numbers(page: str) -> list[tuple[str, str]]:
    """(group, sample) of each row, in order."""
    return re.findall(r"/groups/(\d+)/\?sample=(\d+)#", page)


def test_a_row_shows_what_decided_about_a_sample(viewer: Client, maker: Maker, run: Run, rita: User) -> None:
    group = add_group(
        maker.attempt(run), [1.0, 0.0, None], advantages=[0.5, -1.5, 0.0], step=7, masked={1: "truncated"}
    )
    sample_judge(sample=group.samples.get(index=0), actor=rita, verdict="wrong")
    page = page_of(viewer, run)
    assert numbers(page) == [(str(group.pk), "2"), (str(group.pk), "1"), (str(group.pk), "3")]
    text = words(page)
    assert "showing 3 of 3 samples kept" in text
    assert "✓ right, 1" in text
    assert "p0 · sample 1" in text
    assert "+0.5" in text
    assert "−1.5" in text
    assert "masked: truncated" in text
    assert "with an error: unknown" in text
    assert re.search(r"52\s+–\s+Wrong", text), "judged"


def test_pages_hold_every_sample_once(viewer: Client, maker: Maker, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where many have the same value, or none."""
    monkeypatch.setattr("cohort.web.review.samples.PAGE", 4)
    attempt = maker.attempt(run)
    for step in range(1, 7):
        add_group(attempt, [1.0, 1.0, None, 0.0], step=step, advantages=[0.5, 0.5, 0.0, -0.5])
    assert "showing 4 of more samples kept" in words(page_of(viewer, run))
    assert "showing 4 of 24 samples kept" in words(page_of(viewer, run, "facets=1"))
    for order in ("", "sort=reward", "sort=-reward", "sort=step", "component=answer&sort=-component", "reward_max=0"):
        shown, pages = [], []
        page = page_of(viewer, run, order)
        while True:
            pages.append(numbers(page))
            shown += pages[-1]
            following = re.search(r'rel="next" href="\?([^"]*)"', page)
            if following is None:
                break
            page = page_of(viewer, run, following[1].replace("&amp;", "&"))
        assert len(shown) == len(set(shown)) == (6 if order == "reward_max=0" else 24), order
        for earlier in reversed(pages[:-1]):
            preceding = re.search(r'rel="prev" href="\?([^"]*)"', page)
            assert preceding is not None
            page = page_of(viewer, run, preceding[1].replace("&amp;", "&"))
            assert numbers(page) == earlier, order
        assert 'rel="prev"' not in page


@pytest.mark.parametrize("sort", ["-tokens", "step", "-step", "-advantage"])
def test_an_edge_that_no_page_linked_to_is_no_error(viewer: Client, maker: Maker, run: Run, sort: str) -> None:
    add_group(maker.attempt(run), [1.0, None])
    for edge in ("1e308~1", "-1e308~1", "0.5~1", "~1", f"0~{'9' * 18}"):
        for way in ("after", "before"):
            page_of(viewer, run, f"sort={sort}&{way}={edge}")
    for edge in ("inf~1", "nan~1", "1e999~1", "x~1", "0~x", "0~", "~", "\0~1"):
        assert len(numbers(page_of(viewer, run, f"sort={sort}&after={edge}"))) == 2, "the first page"


def test_counts_come_by_themselves_and_each_filters(viewer: Client, maker: Maker, run: Run) -> None:
    group = add_group(maker.attempt(run), [1.0, 1.0, 0.0])
    made = {"tokens": 3, "reward": 1.0, "components": {}, "advantage": 0.0, "completion": "x"}
    other = add_group(group.attempt, [], index=1)
    add_samples(other, [{**made, "finish_reason": "length", "flags": ["near_duplicate", "format_only"]}] * 2)
    assert "near-duplicate 2" not in words(page_of(viewer, run)).split("Judged")[-1].split("showing")[-1]
    part = page_of(viewer, run, "facets=1", headers={"HX-Request": "true"})
    assert "<html" not in part
    assert '<span id="sample-count" hx-swap-oob="true">5</span>' in part
    counted = words(part)
    assert "Finish ended by itself 3 truncated 2" in counted
    assert "Verifier right by the verifier 2 wrong by the verifier 1" in counted
    assert "Flag format only 2 near-duplicate 2" in counted
    assert 'href="?finish=length"' in part
    whole = page_of(viewer, run, "facets=1")
    assert "near-duplicate 2" in words(whole), "without JavaScript too"
    assert whole.count('id="sample-count"') == 1
    narrowed = page_of(viewer, run, "verifier=right&facets=1", headers={"HX-Request": "true"})
    assert "ended by itself 2" in words(narrowed)
    assert "truncated" not in words(narrowed)
    assert "?finish=eos&amp;verifier=right" in narrowed


def test_parts_of_a_filter_can_be_removed(viewer: Client, maker: Maker, run: Run) -> None:
    add_group(maker.attempt(run), [1.0, 0.0])
    page = page_of(viewer, run, "reward_min=0.5&finish=eos&sort=reward")
    assert '<a class="chip remove" href="?finish=eos&amp;sort=reward">' in page
    assert '<a class="chip remove" href="?reward_min=0.5&amp;sort=reward">' in page
    assert "showing 1 of 1 that fit" in words(page)


def test_nonsense_is_marked_where_it_was_typed(viewer: Client, maker: Maker, run: Run) -> None:
    add_group(maker.attempt(run), [1.0])
    page = page_of(viewer, run, "reward_min=%3Cb%3Emuch&tokens_min=3")
    assert 'name="reward_min" value="&lt;b&gt;much"' in page
    assert 'name="tokens_min" value="3"' in page
    text = words(page)
    assert "Nothing was looked for. See the field marked below." in text
    assert "'<b>much' is not a number." in text or "is not a number." in text
    assert numbers(page) == []
    for odd in ("after=nan~1", "after=~", "before=1~x", "after=%00~%ED%A0%80", f"step_min={'9' * 40}", "problem=%00"):
        page_of(viewer, run, odd)


def test_empty_pages_say_what_comes_next(viewer: Client, maker: Maker, run: Run) -> None:
    assert "No samples yet" in words(page_of(viewer, run))
    add_group(maker.attempt(run), [1.0])
    text = words(page_of(viewer, run, "reward_min=2"))
    assert "No sample fits" in text
    assert "No sample that was kept is so" in text


def test_text_of_models_does_nothing(viewer: Client, maker: Maker, run: Run) -> None:
    add_group(maker.attempt(run), [1.0], completion=HOSTILE, problem_id=HOSTILE)
    page = page_of(viewer, run, "facets=1")
    assert "<script>alert" not in page
    assert page.count(HOSTILE_SHOWN) == 2
    assert "\u202e" not in page


def test_a_deleted_text_is_named_so(viewer: Client, maker: Maker, run: Run) -> None:
    group = add_group(maker.attempt(run), [1.0], completion="secret")
    group.samples.update(completion="", redacted_at="2026-01-01T00:00:00Z")
    page = page_of(viewer, run)
    assert "text deleted" in page
    assert "secret" not in page


def test_as_many_queries_for_a_hundred_as_for_few(viewer: Client, maker: Maker, run: Run, rita: User) -> None:
    attempt = maker.attempt(run)
    group = add_group(attempt, [1.0, 0.0])
    sample_judge(sample=group.samples.get(index=0), actor=rita, verdict="wrong")
    address = f"/p/ours/runs/{run.pk}/samples/?facets=1&reward_min=-9"
    few = queries(lambda: viewer.get(address))
    for step in range(2, 40):
        added = add_group(attempt, [1.0, 0.0, 1.0], step=step)
        sample_judge(sample=added.samples.get(index=0), actor=rita, verdict="right")
    assert queries(lambda: viewer.get(address)) == few


def test_a_filter_is_saved_and_shared(viewer: Client, operator: Client, run: Run, ours: Project, bob: User) -> None:
    view_save(project=ours, actor=bob, name="mine", query="q=G%3E8")
    data = {"name": "mine", "query": "finish=length", "run": str(run.pk)}
    response = viewer.post("/p/ours/runs/views/", data)
    assert response.headers["Location"] == f"/p/ours/runs/{run.pk}/samples/?finish=length"
    assert {(view.page, view.query) for view in SavedView.objects.all()} == {
        ("runs", "q=G%3E8"), ("samples", "finish=length"),
    }  # fmt: skip
    page = page_of(viewer, run, "finish=length")
    assert re.search(r'class="chip" href="\?finish=length" aria-current="page"\s*>mine', page)
    assert "mine" not in page_of(operator, run)
    assert viewer.post("/p/ours/runs/views/", {**data, "shared": "on"}).status_code == 403
    operator.post("/p/ours/runs/views/", {**data, "name": "theirs", "shared": "on"})
    assert ">theirs" in page_of(viewer, run)
    assert "theirs" not in html(viewer.get("/p/ours/runs/?q="))
    view = SavedView.objects.get(page="samples", name="mine")
    viewer.post(f"/p/ours/runs/views/{view.pk}/", {"name": "other", "run": str(run.pk)})
    view.refresh_from_db()
    assert view.name == "other"
    assert viewer.post(f"/p/ours/runs/views/{view.pk}/", {"delete": "1", "run": str(run.pk)}).status_code == 302
    assert not SavedView.objects.filter(pk=view.pk).exists()
