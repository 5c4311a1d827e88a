"""Chromium as the tests use it: headless, with nothing going out."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.needs import needs

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


PATIENCE = 240_000
"""Milliseconds that a test waits for what a page is to show: a busy machine is no defect."""


ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-quic"]
"""Of Chromium's command."""


@contextmanager
def chromium() -> Iterator["Browser"]:
    """A browser for as long as the block lasts. Skips the test where there is none (see needs.py)."""
    needs("chromium")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE)
    # Playwright keeps an event loop in this thread, and Django would take the tests' own queries for async code.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
            yield browser
            browser.close()
    finally:
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


def picture(page: "Page", name: str, *, whole: bool = True) -> None:
    """Keep a picture of the page, in light, dark and at 360 px, when COHORT_TEST_SCREENSHOTS names a folder. On a phone
    it is always of the whole page."""
    folder = os.environ.get("COHORT_TEST_SCREENSHOTS")
    if not folder:
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    for scheme, width in (("light", 1440), ("dark", 1440), ("light", 360)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(400)
        suffix = "" if (scheme, width) == ("light", 1440) else f"-{scheme if width == 1440 else 'phone'}"
        page.screenshot(path=f"{folder}/{name}{suffix}.png", full_page=whole or width == 360)
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1440, "height": 900})
