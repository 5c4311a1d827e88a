"""Fine-tuning in a real browser: a dataset of conversations is read as it is chosen, its run is launched from the form,
and its page draws its loss."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from cohort.runs.models import Run
from tests.browser import picture
from tests.factories.kinds import CONVERSATIONS, PAIRS, sft_run
from tests.factories.runs import Maker, add_steps
from tests.web.windows import GIVEN_UP, serious_faults, windows

OpenPage = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser, transactional_db: None, maker: Maker, live_server: LiveServer) -> Iterator[OpenPage]:
    with windows(browser, live_server.url, meant=["422", *GIVEN_UP]) as opened:
        yield opened


def add_dataset(page: Page, name: str, content: bytes, chosen: str) -> None:
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("What its rows are").select_option(chosen)
    page.get_by_label("File", exact=True).set_input_files(
        {"name": f"{name}.jsonl", "mimeType": "application/jsonl", "buffer": content}
    )
    expect(page.locator("#dataset-reading")).to_contain_text("every row read")


def test_conversations_are_added_learned_from_and_watched(open_page: OpenPage, maker: Maker) -> None:
    page = open_page("datasets/new/")
    add_dataset(page, "pairs", PAIRS, "auto")
    expect(page.locator("#dataset-reading")).to_contain_text("20 preferences")
    picture(page, "dataset-preferences")
    page.reload()
    add_dataset(page, "chats", CONVERSATIONS, "conversations")
    page.get_by_role("button", name="Check and store").click()
    expect(page.get_by_role("heading", name="chats")).to_be_visible()
    assert serious_faults(page, "dataset") == []
    picture(page, "dataset-conversations")

    page.get_by_role("link", name="Fine-tuning…").click()
    expect(page.locator(".run-kinds [aria-current]")).to_contain_text("Fine-tuning")
    page.get_by_label("Steps", exact=True).fill("8")
    page.get_by_label("Batch size").fill("4")
    expect(page.locator("#outlook")).to_contain_text("32, 2 epochs")
    assert serious_faults(page, "form") == []
    picture(page, "run-form-sft")
    page.get_by_role("button", name="Launch").click()
    expect(page.locator("h1")).to_contain_text("chats")
    run = Run.objects.get()
    assert (run.kind, run.state, run.steps_total) == ("sft", "queued", 8)

    watched = sft_run(maker.project, maker.actor, maker.base_model, run.dataset, name="watched", state="training")
    falls = [{"loss": 2 / step, "mean_token_accuracy": 1 - 1 / step, "grad_norm": 1.0} for step in range(1, 25)]
    held = [row | {"learning_rate": 2e-5, "eval/loss": 2.2 / (at + 1), "epoch": at / 4} for at, row in enumerate(falls)]
    add_steps(maker.attempt(watched), held)
    page.goto(f"{page.url.rsplit('/', 2)[0]}/{watched.pk}/")
    expect(page.locator("#charts")).to_contain_text("Held-out loss")
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
    assert serious_faults(page, "run page") == []
    picture(page, "run-page-sft")
    page.goto(f"{page.url.rsplit('/', 2)[0]}/?q=kind:sft")
    expect(page.locator("#run-rows")).to_contain_text("watched")
    picture(page, "run-list-kinds", whole=False)


@pytest.mark.parametrize("kind", ["reward_model", "sample", "distill"])
def test_each_form_is_readable(open_page: OpenPage, kind: str) -> None:
    page = open_page(f"runs/new/?kind={kind}")
    expect(page.locator("#outlook")).to_be_visible()
    assert serious_faults(page, "form of the kind") == []
    picture(page, f"run-form-{kind}")
