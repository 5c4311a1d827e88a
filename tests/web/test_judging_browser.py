"""Judging in a real browser by keys alone: verdicts, labels, the note and its Enter, undo, and what a refusal shows."""

import pytest
from django.db import connection
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from cohort.accounts.models import User
from cohort.review.filters import SampleFilter
from cohort.review.models import Annotation, Group, PairVote
from cohort.review.queues import item_judge, queue_create
from tests.browser import picture
from tests.factories.runs import Maker, add_group
from tests.web.windows import serious_faults, windows


@pytest.fixture
def group(transactional_db: None, maker: Maker) -> Group:
    return add_group(maker.attempt(maker.run("adder", state="training")), [1.0, 0.0, 1.0, 0.0], step=1)


def rows() -> list[tuple[int, str, list[str], str]]:
    return list(Annotation.objects.order_by("sample", "pk").values_list("sample__index", "verdict", "labels", "note"))


def in_focus(page: Page, number: int) -> None:
    expect(page.locator(f"#sample-{number}")).to_be_focused()


def test_samples_are_judged_by_keys(browser: Browser, group: Group, live_server: LiveServer) -> None:
    with windows(browser, live_server.url) as opened:
        page = opened(f"runs/{group.run_id}/groups/{group.pk}/?sample=1&fold=off")
        page.keyboard.press(".")
        page.keyboard.press(",")
        in_focus(page, 1)
        page.keyboard.press("n")
        page.keyboard.type("1 and h", delay=1)
        page.keyboard.press("Escape")
        expect(page.get_by_label("Note").first).to_be_hidden()
        page.keyboard.press("n")
        expect(page.get_by_label("Note").first).to_have_value("1 and h")
        page.keyboard.press("Enter")
        expect(page.locator("#stored")).to_have_text("Sample 1: not judged; note saved.")
        in_focus(page, 1)
        assert rows() == [(0, "", [], "1 and h")]

        page.keyboard.press("h")
        page.keyboard.press("f")
        page.keyboard.press("2")  # the next open sample is in focus at once
        in_focus(page, 2)
        page.keyboard.press("1")
        page.keyboard.press("Control+2")
        page.keyboard.press("u")  # of sample 3, where there is nothing to undo
        in_focus(page, 3)
        expect(page.locator("#judgement-0")).to_have_attribute("data-verdict", "wrong")
        expect(page.locator("#judgement-1")).to_have_attribute("data-verdict", "right")
        assert rows() == [
            (0, "", [], "1 and h"),
            (0, "", ["reward_hack"], "1 and h"),
            (0, "", ["false_positive", "reward_hack"], "1 and h"),
            (0, "wrong", ["false_positive", "reward_hack"], "1 and h"),
            (1, "right", [], ""),
        ]
        page.keyboard.press(",")
        page.keyboard.press("u")
        expect(page.locator("#judgement-1")).to_have_attribute("data-verdict", "")
        expect(page.locator("#stored")).to_have_text("Sample 2: not judged.")
        assert rows()[4:] == [(1, "right", [], ""), (1, "", [], "")]
        page.keyboard.press("?")
        expect(page.locator("#keys-text")).to_contain_text("h: reward hack")
        picture(page, "group-judged")
        assert serious_faults(page, "group") == []


@pytest.mark.slow
def test_folded_samples_are_judged_one_by_one(browser: Browser, group: Group, live_server: LiveServer) -> None:
    """Samples 1 and 3 are one card, and so are 2 and 4."""
    with windows(browser, live_server.url) as opened:
        page = opened(f"runs/{group.run_id}/groups/{group.pk}/?sample=1")
        for number, key in ((1, "1"), (3, "2"), (2, "3")):
            page.locator(f"#judgement-{number - 1}").wait_for()
            page.keyboard.press(key)
            expect(page.locator(f"#judgement-{number - 1}")).not_to_have_attribute("data-verdict", "")
        in_focus(page, 4)
    assert [(index, verdict) for index, verdict, _, _ in rows()] == [(0, "right"), (1, "unsure"), (2, "wrong")]


@pytest.mark.slow
def test_keys_lead_through_the_groups_of_a_step(
    browser: Browser, group: Group, maker: Maker, live_server: LiveServer
) -> None:
    later = add_group(group.attempt, [1.0, 0.0], step=1, index=1)
    with windows(browser, live_server.url) as opened:
        page = opened(f"runs/{group.run_id}/groups/{group.pk}/")
        page.keyboard.press("j")
        page.wait_for_url(f"**/groups/{later.pk}/")
        page.keyboard.press("k")
        page.wait_for_url(f"**/groups/{group.pk}/")
        page.keyboard.press("g")
        page.wait_for_url("**/groups/?step=1")


@pytest.mark.slow
def test_what_is_refused_comes_back_into_focus(browser: Browser, group: Group, live_server: LiveServer) -> None:
    with windows(browser, live_server.url, meant=["status of 422"]) as opened:
        page = opened(f"runs/{group.run_id}/groups/{group.pk}/?sample=1")
        with connection.cursor() as cursor:
            cursor.execute("UPDATE review_sample SET redacted_at = now() WHERE index = 0")
        page.keyboard.press("3")
        in_focus(page, 1)
        assert rows() == []


@pytest.mark.slow
def test_a_blind_queue_is_judged_by_keys(
    browser: Browser, group: Group, alice: User, rita: User, live_server: LiveServer
) -> None:
    queue = queue_create(run=group.run, actor=alice, name="sums", samples=SampleFilter(), size=4, reviewers=2)
    for item, verdict in zip(queue.items.order_by("number"), ("right", "wrong", "wrong", "right"), strict=True):
        item_judge(item=item, actor=rita, verdict=verdict)
    with windows(browser, live_server.url) as opened:
        page = opened("queues/")
        picture(page, "queues")
        assert serious_faults(page, "queues") == []
        page.reload()
        page.get_by_role("link", name="Judge 4").click()
        card = page.locator("[data-sample]")
        expect(card).to_be_focused()
        expect(card).to_have_attribute("aria-label", "Sample 1 of 4")
        page.keyboard.press("x")
        expect(page.locator("#stored")).to_contain_text("not judged, unsafe")
        expect(card).to_be_focused()
        page.keyboard.press("n")
        page.keyboard.type("odd")
        page.keyboard.press("Enter")
        expect(page.locator("#stored")).to_contain_text("note saved")
        expect(card).to_be_focused()
        picture(page, "queue-item")
        assert serious_faults(page, "item") == []
        page.reload()
        for number, key in ((1, "1"), (2, "1"), (3, "2")):
            expect(card).to_have_attribute("aria-label", f"Sample {number} of 4")
            expect(card).to_be_focused()
            page.keyboard.press(key)
        expect(card).to_have_attribute("aria-label", "Sample 4 of 4")
        page.wait_for_url(f"**/queues/{queue.pk}/4/")
        page.keyboard.press("u")  # nothing is known of this one yet: the last one is undone
        expect(card).to_have_attribute("aria-label", "Sample 3 of 4")
        expect(card).to_be_focused()
        page.keyboard.press("2")
        expect(card).to_have_attribute("aria-label", "Sample 4 of 4")
        page.keyboard.press("3")
        page.wait_for_url(f"**/queues/{queue.pk}/")
        expect(page.locator("#agreement + p, main")).to_contain_text("They differ on 2 samples")
        picture(page, "queue")
        assert serious_faults(page, "queue") == []
    given = Annotation.objects.filter(by=alice).exclude(verdict="").order_by("pk")
    assert [row.verdict for row in given] == ["right", "right", "wrong", "wrong", "unsure"]
    assert all(row.seconds is not None for row in given)


@pytest.mark.slow
def test_pages_of_a_queue_to_be(
    browser: Browser, group: Group, alice: User, rita: User, live_server: LiveServer
) -> None:
    queue_create(run=group.run, actor=alice, name="sums", samples=SampleFilter(), size=4, assignees=[alice])
    with windows(browser, live_server.url, meant=["status of 403"]) as opened:
        page = opened(f"runs/{group.run_id}/queues/new/?reward_min=0.5")
        picture(page, "queue-new")
        assert serious_faults(page, "new") == []
        page = opened(f"runs/{group.run_id}/groups/{group.pk}/")
        picture(page, "samples-closed")
        assert serious_faults(page, "blind") == []
        page = opened("")
        picture(page, "home-reviews")


@pytest.mark.slow
def test_pairs_are_compared_by_keys(browser: Browser, group: Group, live_server: LiveServer) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE review_sample SET completion = 'text ' || index")
    with windows(browser, live_server.url) as opened:
        page = opened(f"runs/{group.run_id}/groups/{group.pk}/pairs/")
        picture(page, "pair")
        assert serious_faults(page, "pair") == []
        page.reload()
        for number, key in enumerate("abeab", start=1):
            expect(page.locator("#pair [role=status]")).to_have_text(f"pair {number} of 6")
            page.keyboard.press(key)
        expect(page.locator("#pair [role=status]")).to_have_text("pair 6 of 6")
    votes = PairVote.objects.order_by("pk").values_list("choice", flat=True)
    assert list(votes) == ["left", "right", "equal", "left", "right"]
