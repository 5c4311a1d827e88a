"""Windows of a real browser on the pages of the project `ours`: signed in as a person is, and quiet."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.browser import PATIENCE
from tests.web.conftest import PASSWORD

GIVEN_UP = ("htmx:sendAbort", "htmx:afterRequest")
"""What htmx tells as errors of a request that gives way to another, as a form's check under way to a chosen preset."""

_OF_COLOURS = ["color-contrast", "link-in-text-block"]


@contextmanager
def windows(
    browser: Browser, server: str, *, permissions: list[str] | None = None, meant: Collection[str] = ()
) -> Iterator[Callable[..., Page]]:
    """Opens windows signed in as alice, at an address below p/ours/. What the browser complains about fails the test,
    except complaints with one of the texts `meant`: it also reports answers that are meant, as of a form that is
    refused."""
    complaints: list[str] = []
    contexts = []

    def make(path: str, *, width: int = 1440) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="light",
            permissions=permissions,
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.goto(f"{server}/login/")
        page.get_by_label("Name").fill("alice")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/p/ours/")
        page.goto(f"{server}/p/ours/{path}")
        return page

    yield make
    for context in contexts:
        context.close()
    left = [text for text in complaints if not any(part in text for part in meant)]
    assert left == [], left


def serious_faults(page: Page, where: str) -> list[str]:
    """What axe finds on the page as it stands: by all its rules in the light theme, and in the dark one, where nothing
    but colours differs, by those of colours. Its polls are stopped first, as in a tab that nobody looks at: axe knows
    no colours of what is swapped away while it looks."""
    page.evaluate("Object.defineProperty(document, 'hidden', { value: true })")
    page.wait_for_load_state("networkidle")
    expect(page.locator("form.htmx-request")).to_have_count(0)  # its buttons are dimmed meanwhile
    page.evaluate(Axe().axe_script)
    faults = []
    for theme, rules in (("light", None), ("dark", {"type": "rule", "values": _OF_COLOURS})):
        page.emulate_media(color_scheme=theme)
        options = {"resultTypes": ["violations"], "preload": False, **({"runOnly": rules} if rules else {})}
        faults += [
            f"{where}, {theme}: {fault['id']} ({fault['impact']}): {fault['nodes'][0]['html'][:200]}"
            for fault in page.evaluate("options => axe.run(document, options)", options)["violations"]
            if fault["impact"] in ("serious", "critical")
        ]
    return faults
