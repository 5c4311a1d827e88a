"""The page that checks a card, in a real browser that nobody signed in to: sound by axe's rules and on a phone."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from pytest_django.live_server_helper import LiveServer

from tests.browser import PATIENCE
from tests.web.governance.card_made import Log, Sealed, card, cards, packed
from tests.web.windows import serious_faults


@pytest.mark.slow
@pytest.mark.usefixtures("transactional_db")
def test_a_card_is_checked_and_shown(browser: Browser, live_server: LiveServer, tmp_path: Path) -> None:
    log = Log()
    older = card(log, Sealed(head={**Sealed().head, "run": 6}))
    made = cards(log)["public"]
    for name, files in (("older", older), ("card", made), ("changed", {**made, "CARD.md": b"else"})):
        (tmp_path / f"{name}.zip").write_bytes(packed(files))
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light")
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.goto(f"{live_server.url}/verify/")
    for name, words in (("card", "accepted: the card is as it was issued"), ("changed", "rejected")):
        page.get_by_label("Card", exact=True).set_input_files(tmp_path / f"{name}.zip")
        page.get_by_label("Older card").set_input_files(tmp_path / "older.zip")
        page.get_by_role("button", name="Check").click()
        expect(page.locator("#verdict")).to_contain_text(words)
        assert serious_faults(page, name) == []
        for width in (360, 1440):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.emulate_media(color_scheme="light")
    assert complaints == []
    context.close()
