"""The frame and the catalog in a real browser: themes, narrow screens, the policy, keyboard, and axe's rules."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from cohort.accounts.models import Project, Role, User
from cohort.accounts.services import membership_set
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from tests.browser import PATIENCE
from tests.web.conftest import PASSWORD
from tests.web.windows import serious_faults

PAGES = [
    "projects/", "projects/new/", "password/", "p/ours/members/", "p/ours/nodes/", "p/ours/models/",
    "p/ours/models/new/", "p/ours/models/{model}/", "p/ours/datasets/", "p/ours/datasets/new/",
    "p/ours/datasets/{dataset}/", "p/ours/rewards/", "p/ours/rewards/new/", "p/ours/rewards/{verifier}/",
    "p/ours/rewards/{verifier}/new-version/", "p/never-made/datasets/",
]  # fmt: skip


@pytest.fixture
def site(
    transactional_db: None,
    alice: User,
    base_model: BaseModel,
    dataset: PromptDataset,
    verifier_version: VerifierVersion,
    charlie: User,
    live_server,
) -> dict[str, str]:
    """A server with a filled project; the addresses of PAGES by their template."""
    theirs = Project.objects.get(slug="theirs")
    membership_set(project=theirs, actor=charlie, user=alice, role=Role.VIEWER)
    ids = {"model": base_model.pk, "dataset": dataset.pk, "verifier": verifier_version.verifier_id}
    return {page: f"{live_server.url}/{page.format(**ids)}" for page in ["login/", *PAGES]}


@pytest.fixture
def open_page(browser: Browser, site: dict[str, str]) -> Iterator[Callable[..., Page]]:
    """A browser window, signed in as alice. What the browser complains about fails the test."""
    complaints: list[str] = []
    contexts = []

    def make(*, width: int = 1280) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme="light")
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.goto(site["login/"])
        page.get_by_label("Name").fill("alice")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/projects/")
        return page

    yield make
    for context in contexts:
        context.close()
    # The browser also reports answers that are meant: the page that is not there, the form that is refused.
    assert [text for text in complaints if "404 (Not Found)" not in text and "422" not in text] == []


def test_axe_finds_nothing_serious(open_page: Callable[..., Page], site: dict[str, str]) -> None:
    page = open_page()
    found = []
    for name, address in [*site.items(), ("signed out", site["login/"])]:
        if name == "signed out":
            page.context.clear_cookies()
        page.goto(address)
        found += serious_faults(page, name)
    assert found == []


def test_no_page_is_wider_than_a_phone(open_page: Callable[..., Page], site: dict[str, str]) -> None:
    page = open_page(width=360)
    for address in site.values():
        page.goto(address)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, address


def test_menu_opens_on_a_narrow_screen_and_stands_open_on_a_wide_one(
    open_page: Callable[..., Page], site: dict[str, str]
) -> None:
    narrow = open_page(width=360)
    narrow.goto(site["p/ours/datasets/"])
    link = narrow.get_by_role("link", name="Rewards")
    expect(link).to_be_hidden()
    narrow.get_by_text("Menu", exact=True).click()
    expect(link).to_be_visible()
    wide = open_page()
    wide.goto(site["p/ours/datasets/"])
    expect(wide.get_by_role("link", name="Rewards")).to_be_visible()
    expect(wide.get_by_text("Menu", exact=True)).to_be_hidden()


def test_theme_switch_is_remembered(open_page: Callable[..., Page], site: dict[str, str]) -> None:
    page = open_page()
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(247, 247, 245)"
    page.get_by_role("button", name="Dark theme").click()
    assert page.evaluate(ground) == "rgb(19, 20, 21)"
    page.goto(site["p/ours/models/"])
    assert page.evaluate(ground) == "rgb(19, 20, 21)"
    page.get_by_role("button", name="Light theme").click()
    assert page.evaluate(ground) == "rgb(247, 247, 245)"


def test_first_tab_stop_skips_to_the_content(open_page: Callable[..., Page], site: dict[str, str]) -> None:
    page = open_page()
    page.goto(site["p/ours/models/"])
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Register a model")).to_be_focused()


def test_project_switcher(open_page: Callable[..., Page], site: dict[str, str]) -> None:
    page = open_page()
    page.goto(site["p/ours/models/"])
    page.locator(".switcher summary").click()
    page.get_by_role("link", name="Their project").click()
    page.wait_for_url("**/p/theirs/runs/")


def test_reward_is_built_from_rows_and_tried(open_page: Callable[..., Page], site: dict[str, str]) -> None:
    page = open_page()
    page.goto(site["p/ours/rewards/new/"])
    page.get_by_label("Name").first.fill("two parts")
    page.get_by_role("button", name="Add a component").click()
    rows = page.locator("fieldset.component")
    expect(rows).to_have_count(2)
    expect(page.get_by_role("group", name="Component 2")).to_be_visible()
    rows.nth(0).get_by_label("Name").fill("answer")
    rows.nth(1).get_by_label("Kind").select_option("r1_format")
    expect(rows.nth(1).get_by_label("Allow whitespace")).to_be_visible()  # the kind's own fields have come
    rows.nth(1).get_by_label("Name").fill("format")
    rows.nth(1).get_by_label("Weight").fill("0.5")
    page.get_by_role("button", name="Add a component").click()
    expect(rows).to_have_count(3)
    rows.nth(2).get_by_role("button", name="Remove component").click()
    expect(rows).to_have_count(2)
    expect(rows.nth(1).get_by_role("button", name="Remove component")).to_be_focused()
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("two parts version 1 is saved")).to_be_visible()

    page.get_by_role("main").get_by_role("link", name="Reward lab").click()
    address = page.url
    page.get_by_label("Reference answer").fill("7")
    page.get_by_label("Completion", exact=True).fill("<think>3+4</think><answer>7</answer>")
    page.get_by_role("button", name="Score", exact=True).click()
    expect(page.get_by_text("Reward 1.5")).to_be_visible()
    expect(page.get_by_role("button", name="Score", exact=True)).to_be_focused()
    assert page.url == address, "scored in place"


def test_dataset_upload_names_the_bad_line(open_page: Callable[..., Page], site: dict[str, str]) -> None:
    page = open_page()
    page.goto(site["p/ours/datasets/new/"])
    page.get_by_label("Name").fill("broken")
    content = b'{"prompt": "x", "answer": "1"}\n{"prompt": "y"\n'
    file = {"name": "problems.jsonl", "mimeType": "text/plain", "buffer": content}
    page.locator("#id_file").set_input_files(files=[file])
    page.get_by_role("button", name="Check and store").click()
    expect(page.locator("#id_file_error")).to_contain_text("problems.jsonl, line 2: is not JSON")
