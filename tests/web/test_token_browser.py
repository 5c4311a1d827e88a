"""The token view in a real browser: keys over tokens, the panel with their numbers, the next clipped one in another
window; it stands by axe's rules and on a phone."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from cohort.review.models import Sample
from tests.browser import picture
from tests.factories.runs import Maker
from tests.factories.token_rows import columns
from tests.factories.tokens import stored_sample
from tests.web.windows import serious_faults, windows

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]
PROSE = "<think>\\n 48 + 79 : 8 + 9 = 17 , carry 1 , 4 + 7 + 1 = 12 \\n</think> <answer> 127 </answer>"
TEXT = PROSE.split(" ")


@pytest.fixture
def open_page(browser: Browser, transactional_db: None, maker: Maker, live_server: LiveServer) -> Iterator[OpenPage]:
    with windows(browser, live_server.url) as opened:
        yield opened


@pytest.fixture
def sample(transactional_db: None, maker: Maker) -> Sample:
    """2,500 tokens, of which two are clipped: one in each window."""
    count = 2500
    arrays = columns(
        [f" {TEXT[at % len(TEXT)]}" for at in range(count)],
        clipped=[at in (9, 2099) for at in range(count)],
        in_loss=[at < 2400 for at in range(count)],
        advantage=[(at % 11 - 5) / 5 for at in range(count)],
        entropy=[abs(at % 37 - 18) / 10 for at in range(count)],
    )
    return stored_sample(maker, maker.run(state="training"), arrays)


def test_keys_move_over_tokens_and_to_the_next_clipped(open_page: OpenPage, sample: Sample) -> None:
    address = f"runs/{sample.group.run_id}/groups/{sample.group_id}/samples/1/"
    page = open_page(address)
    panel, focused = page.locator("#token-numbers"), page.locator(".tok:focus")
    page.locator("#t1").focus()
    page.keyboard.press("ArrowRight")
    expect(focused).to_have_id("t2")
    expect(panel).to_contain_text("Token: 2")
    expect(panel).to_contain_text("Token id: 101")
    page.keyboard.press("ArrowDown")
    expect(focused).to_have_id("t12")
    page.keyboard.press("Home")
    page.keyboard.press("c")
    expect(focused).to_have_id("t10")
    expect(panel).to_contain_text("Clipped: yes")
    picture(page, "tokens")
    page.keyboard.press("c")
    page.wait_for_url("**at=2100#t2100")
    expect(focused).to_have_id("t2100")
    assert serious_faults(page, "tokens") == []
    page.get_by_role("link", name="Entropy").click()
    expect(page.locator("main h2").first).to_have_text("Entropy")
    expect(page.locator("#t2100")).to_be_visible()
    page.get_by_role("link", name="as a table").click()
    expect(page.locator("tr#t2100")).to_contain_text("2,199")
    picture(page, "tokens-table", whole=False)
    assert serious_faults(page, "tokens") == []
