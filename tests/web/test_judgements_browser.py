"""Judging samples in a real browser: one click, no reload, the note stays, nothing runs over at 360 px."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from cohort.accounts.models import User
from cohort.review.models import Annotation, Group
from cohort.review.services import sample_judge
from tests.web.run_rows import HOSTILE, Maker, add_group
from tests.web.windows import serious_faults, windows


@pytest.fixture
def group(transactional_db: None, maker: Maker, rita: User) -> Group:
    run = maker.run("add two digits", state="training", sampling={"group_size": 8, "prompts_per_step": 3})
    group = add_group(maker.attempt(run), [1.0, 1.0, 0.0, 0.0, 1.0, None, 0.0, 1.0], step=1)
    sample_judge(sample=group.samples.get(index=1), actor=rita, verdict="wrong", note=f"guessed {HOSTILE}")
    return group


@pytest.fixture
def open_page(browser: Browser, group: Group, live_server: LiveServer) -> Iterator[Callable[..., Page]]:
    with windows(browser, live_server.url) as opened:
        yield opened


def test_a_click_judges_without_leaving_the_page(open_page: Callable[..., Page], group: Group) -> None:
    page = open_page(f"runs/{group.run_id}/groups/{group.pk}/")
    page.evaluate("window.stayed = true")
    first = page.locator("#judgement-0")
    first.get_by_label("Note").fill('says "seven"')
    first.get_by_role("button", name="Wrong").click()
    expect(first.get_by_role("button", name="Wrong")).to_have_attribute("aria-pressed", "true")
    expect(first.get_by_label("Note")).to_have_value('says "seven"')
    first.get_by_role("button", name="Right", exact=True).click()
    expect(first.get_by_role("button", name="Right", exact=True)).to_have_attribute("aria-pressed", "true")
    assert page.evaluate("window.stayed")
    assert list(Annotation.objects.filter(sample__index=0).order_by("pk").values_list("verdict", "note")) == [
        ("wrong", 'says "seven"'),
        ("right", 'says "seven"'),
    ]
    expect(page.locator("#judgement-1")).to_contain_text("rita: wrong")


@pytest.mark.parametrize("width", [1440, 360])
def test_nothing_runs_over_and_axe_finds_nothing_serious(
    open_page: Callable[..., Page], group: Group, width: int
) -> None:
    page = open_page(f"runs/{group.run_id}/groups/{group.pk}/", width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert serious_faults(page, "group") == []
