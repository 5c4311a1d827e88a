"""Pages with sixty hostile completions in a real browser: no script of theirs runs, nothing is fetched from elsewhere,
the policy is never put to the test, and they add no element that could be clicked.
"""

from collections.abc import Iterator
from itertools import islice
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Request
from pytest_django.live_server_helper import LiveServer

from cohort.accounts.models import User
from tests.browser import picture
from tests.factories.runs import Maker
from tests.web.hostile_pages import PAGES, TEXTS, shown
from tests.web.hostile_review import REVIEW_PAGES, reviewed
from tests.web.windows import serious_faults, windows

pytestmark = pytest.mark.slow

WATCH = """() => {
    window.broken = [];
    document.addEventListener("securitypolicyviolation", (event) => window.broken.push(event.blockedURI));
}"""
OWN = """() => [...document.querySelectorAll(
    "main :is(script, iframe, object, embed, img, base, meta, link, style, form[action^=http], a[href^=http])"
)].map((one) => one.outerHTML.slice(0, 200))"""


def visits(maker: Maker, people: list[User]) -> Iterator[tuple[str, str]]:
    """(name, address) of a few pages of each kind, with all texts."""
    on = shown(maker, list(TEXTS.values()))
    for name, addresses in PAGES.items():
        yield from ((name, address) for address in islice(addresses(on), 4))
    of_review = reviewed(maker, list(TEXTS.values()), people)
    for name, every in REVIEW_PAGES.items():
        yield from ((name, address.removeprefix("/p/ours/")) for address in islice(every(of_review), 2))


def test_nothing_runs_and_nothing_is_fetched(
    browser: Browser, transactional_db: None, maker: Maker, alice: User, rita: User, live_server: LiveServer
) -> None:
    faults: list[object] = []

    def requested(request: Request) -> None:
        url = urlsplit(request.url)
        own = url.netloc == urlsplit(live_server.url).netloc or request.url.startswith("data:")
        if not own or request.method != "GET" or url.path.endswith(("/logout/", "/cancel/")):
            faults.append((request.method, request.url))

    def opened_all(page: Page) -> None:
        page.evaluate("() => document.querySelectorAll('details').forEach((one) => { one.open = true })")
        page.evaluate("() => document.querySelectorAll('[data-sample]').forEach((one) => one.focus())")

    with windows(browser, live_server.url) as opened:
        page = opened("")
        page.on("request", requested)
        page.on("dialog", lambda dialog: (faults.append(dialog.message), dialog.dismiss())[1])
        page.add_init_script(f"({WATCH})()")
        for name, address in visits(maker, [alice, rita]):
            page.goto(f"{live_server.url}/p/ours/{address}")
            opened_all(page)
            faults += [(name, address, fault) for fault in page.evaluate("() => window.broken")]
            faults += [(name, address, fault) for fault in page.evaluate(OWN)]
            assert page.evaluate("() => window.ran") is None, (name, address)
            assert page.url.startswith(f"{live_server.url}/p/ours/"), "it led nowhere else"
    assert faults == []


def test_a_group_s_page_by_axe_and_on_a_phone(
    browser: Browser, transactional_db: None, maker: Maker, live_server: LiveServer
) -> None:
    on = shown(maker, [text for name, text in TEXTS.items() if name in ("reasoning", "links", "phantom", "rtl name")])
    with windows(browser, live_server.url) as opened:
        for view in ("", "?view=rendered&first=1&second=2"):
            page = opened(f"runs/{on.run.pk}/groups/{on.groups[0].pk}/{view}")
            page.evaluate("() => document.querySelectorAll('details').forEach((one) => { one.open = true })")
            assert serious_faults(page, view) == []
            picture(page, f"group{'-rendered' if view else ''}")
            page.set_viewport_size({"width": 360, "height": 800})
            assert page.evaluate("() => document.documentElement.scrollWidth") <= 360
