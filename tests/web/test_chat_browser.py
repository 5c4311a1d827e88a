"""A chat in a real browser: Ctrl+Enter sends, the answer comes by itself, and a judgement stays on the page."""

import pytest
from playwright.sync_api import Browser, expect
from pytest_django.live_server_helper import LiveServer

from cohort.lab.models import Conversation
from cohort.review.models import AnswerJudgement
from tests.factories.lab import answers_given
from tests.factories.runs import Maker
from tests.web.windows import windows

pytestmark = pytest.mark.slow


def test_a_message_is_sent_by_keys_and_its_answer_comes_by_itself(
    browser: Browser, transactional_db: None, maker: Maker, live_server: LiveServer
) -> None:
    with windows(browser, live_server.url) as opened:
        page = opened(f"lab/chat/?model={maker.base_model.pk}")
        expect(page.get_by_label("Model", exact=True)).to_have_value(str(maker.base_model.pk))
        page.get_by_label("Message", exact=True).fill("2 + 3 =")
        page.keyboard.press("Control+Enter")
        page.wait_for_url("**/lab/chat/*/")
        newest = page.locator("#chat-newest")
        expect(newest).to_contain_text("Waits for a worker")
        conversation = Conversation.objects.get()
        page.get_by_label("Message", exact=True).fill("half written")
        answers_given(conversation, model="it is 5")
        expect(newest).to_contain_text("it is 5")
        expect(newest).to_contain_text("end of turn")
        expect(page.get_by_label("Message", exact=True)).to_have_value("half written")
        newest.get_by_label("Note").fill("sums are fine")
        newest.get_by_role("button", name="Right").click()
        expect(newest.get_by_role("button", name="Right")).to_have_attribute("aria-pressed", "true")
        page.locator("#next").get_by_role("button", name="Send").click()
        expect(page.locator("#message-2")).to_contain_text("half written")
        page.once("dialog", lambda dialog: dialog.accept())
        with page.expect_event("dialog"), page.expect_navigation():
            page.locator("#end-chat").click()
    assert Conversation.objects.get().jobs.latest("pk").cancel_asked
    judged = AnswerJudgement.objects.get()
    assert (judged.verdict, judged.note, judged.answer.text) == ("right", "sums are fine", "it is 5")
