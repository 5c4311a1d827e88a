"""The run form in a real browser: what was typed is there after a reload, Back and in another window; copies stay on
the page; a press is answered at once and makes one run."""

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from pytest_django.live_server_helper import LiveServer

from cohort.runs.models import LaunchDraft, Run
from grpo_core.config.run import RunConfig
from tests.browser import picture
from tests.factories.runs import UNPROBED, Maker
from tests.needs import needs
from tests.processes import wait_for
from tests.web.windows import GIVEN_UP, serious_faults, windows

OpenPage = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser, transactional_db: None, maker: Maker, live_server: LiveServer) -> Iterator[OpenPage]:
    permissions = ["clipboard-read", "clipboard-write"]
    with windows(browser, live_server.url, permissions=permissions, meant=["422", *GIVEN_UP]) as opened:
        yield opened


def test_a_draft_survives_reload_back_and_an_abrupt_leave(open_page: OpenPage) -> None:
    page = open_page("runs/new/?preset=dapo")
    page.get_by_label("Name", exact=True).fill("long thought")
    expect(page.locator("#draft-state")).to_contain_text("Draft saved")
    draft = LaunchDraft.objects.get()
    expect(page).to_have_url(re.compile(rf"/runs/new/\?draft={draft.form_token}$"))
    page.reload()
    expect(page.get_by_label("Name", exact=True)).to_have_value("long thought")
    page.get_by_label("Group size G").fill("12")
    page.get_by_role("link", name="Base models").first.click()  # typed and left at once
    page.wait_for_url("**/models/")
    wait_for(lambda: LaunchDraft.objects.get().texts["sampling.group_size"] == "12", "the draft is saved")
    page.go_back()
    expect(page.get_by_label("Group size G")).to_have_value("12")
    expect(page.get_by_label("Preset")).to_have_value("dapo")

    other = page.context.new_page()
    other.goto(page.url)
    other.get_by_label("Group size G").fill("6")
    expect(page.locator("#draft-state")).to_contain_text("Changed in another window")
    page.get_by_label("Group size G").fill("24")
    expect(page.locator("#draft-state")).to_contain_text("Another window had saved this draft")

    page.goto(page.url.split("?")[0])
    expect(page.locator("#drafts")).to_contain_text("long thought")
    picture(page, "launch-drafts", whole=False)
    page.get_by_role("link", name="Continue").click()
    expect(page.get_by_label("Group size G")).to_have_value("24")


def test_copies_stay_on_the_page(open_page: OpenPage) -> None:
    page = open_page("runs/new/?preset=dapo")
    for button, expected in (("YAML", "Copied as YAML"), ("command", "Copied as command")):
        page.locator(f"[data-copy-as={button}]").click()
        expect(page.locator("#copied")).to_contain_text(expected)
    script = page.evaluate("navigator.clipboard.readText()")
    assert script.rstrip().splitlines()[-1].startswith("grpo train config.yaml --out ")
    config = RunConfig.from_text(script.split("END_OF_CONFIG'\n")[1].split("\nEND_OF_CONFIG")[0], source="the script")
    assert config.preset == "dapo"
    with page.expect_download() as download:
        page.locator("#copies button:not([data-copy-as])").first.click()
    assert download.value.suggested_filename.endswith(".yaml")
    page.get_by_label("Group size G").fill("1")
    page.locator("[data-copy-as=YAML]").click()
    expect(page.locator("#copied")).to_contain_text("Nothing was copied. Group size G")
    page.get_by_label("Group size G").fill("8")
    page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.locator("[data-copy-as=YAML]").click()
    expect(page.locator("#copied-text pre")).to_contain_text("group_size: 8")
    picture(page, "launch-copied", whole=False)
    assert page.get_by_label("Group size G").input_value() == "8"


def test_the_copied_api_call_launches_the_form_s_run(open_page: OpenPage, live_server: LiveServer) -> None:
    """Run as it is, with a token made on the page that the copy names; twice, which makes one run."""
    needs("curl")
    page = open_page("runs/new/?preset=dapo")
    page.get_by_label("Group size G").fill("4")
    page.locator("[name=probe_override]").fill(UNPROBED)
    page.locator("[data-copy-as='API call']").click()
    expect(page.locator("#copied")).to_contain_text("Copied as API call")
    script = page.evaluate("navigator.clipboard.readText()")
    picture(page, "launch-copied-api", whole=False)
    page.get_by_role("button", name="Launch").click()
    page.wait_for_url(re.compile(r"/runs/\d+/$"))

    tokens = re.search(rf"{re.escape(live_server.url)}/\S*", script)
    assert tokens is not None
    page.goto(tokens[0])
    assert serious_faults(page, "the list of tokens") == []
    page.emulate_media(color_scheme="light")
    page.get_by_label("Name").fill("from the terminal")
    page.get_by_label("Scope").select_option("launch")
    picture(page, "tokens-none")
    page.get_by_role("button", name="Make token").click()
    expect(page.locator("#token")).to_contain_text("cohort_pat_")
    assert serious_faults(page, "a new token") == []
    page.emulate_media(color_scheme="light")
    picture(page, "token-made")
    token = page.locator("#token").inner_text()
    page.get_by_role("button", name="Copy").first.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == token

    shell = {"PATH": os.environ["PATH"], "COHORT_API_TOKEN": token, "LC_ALL": "C"}
    calls = [subprocess.run(["sh"], input=script.encode(), env=shell, capture_output=True) for _ in range(2)]
    assert [(done.returncode, done.stderr) for done in calls] == [(0, b"")] * 2
    assert calls[0].stdout == calls[1].stdout
    of_form, by_call = Run.objects.order_by("pk")
    assert json.loads(calls[0].stdout)["id"] == by_call.pk
    assert by_call.config_digest == of_form.config_digest
    assert (by_call.state, by_call.created_by, by_call.preset) == ("queued", of_form.created_by, "dapo")
    assert by_call.parsed_config.sampling.group_size == 4

    page.goto(tokens[0])
    assert serious_faults(page, "tokens") == []
    page.emulate_media(color_scheme="light")
    picture(page, "tokens")
    page.get_by_role("link", name="Revoke").click()
    assert serious_faults(page, "the question before revoking") == []
    page.emulate_media(color_scheme="light")
    picture(page, "token-revoke")
    page.get_by_role("button", name="Revoke").click()
    expect(page.get_by_text("is revoked")).to_be_visible()
    refused = subprocess.run(["sh"], input=script.encode(), env=shell, capture_output=True)
    assert (refused.returncode, json.loads(refused.stdout)["code"]) == (22, "bad_token")


def test_a_press_is_answered_and_a_second_one_does_nothing(open_page: OpenPage) -> None:
    page = open_page("runs/new/")
    page.evaluate("""() => {  // the request is under way as long as the test looks
        window.sent = 0;
        addEventListener("submit", (event) => { sent += !event.defaultPrevented; event.preventDefault(); });
    }""")
    launch = page.get_by_role("button", name="Launch")
    launch.dblclick()
    working = page.get_by_role("button", name="Launching…")
    expect(working).to_be_disabled()
    expect(working).to_have_attribute("aria-busy", "true")
    expect(page.get_by_role("button", name="Save draft")).to_be_disabled()
    page.locator("#run-form").evaluate("form => form.requestSubmit(form.querySelector('[value=launch]'))")
    assert page.evaluate("sent") == 1
    page.evaluate("dispatchEvent(new PageTransitionEvent('pageshow', {persisted: true}))")
    expect(launch).to_be_enabled()


def test_a_preset_is_undone_and_a_sweep_is_listed_on_a_phone(open_page: OpenPage) -> None:
    page = open_page("runs/new/", width=360)
    page.get_by_label("Group size G").fill("12")
    page.get_by_label("Preset").select_option("dapo")
    expect(page.locator("#preset-changes")).to_contain_text("The preset changed")
    page.locator("#preset-changes summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    picture(page, "launch-preset", whole=False)
    page.locator("#preset-changes").get_by_role("button", name="Undo").click()
    expect(page.get_by_label("Group size G")).to_have_value("12")
    expect(page.get_by_label("Preset")).to_have_value("")
    page.locator("#sweep summary").click()
    page.get_by_label("Fields and their values").fill("G: 4, 1\noptim.lr: 1e-6..1e-5 log 2")
    expect(page.locator("#sweep-plan")).to_contain_text("Sweep: 4 runs")
    expect(page.locator("#sweep-plan .wrong")).to_have_count(2)
    page.set_viewport_size({"width": 360, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    picture(page, "launch-sweep", whole=True)
    assert serious_faults(page, "sweep") == []


def test_a_run_is_launched_by_keyboard_alone(open_page: OpenPage) -> None:
    page = open_page("runs/new/")
    _tab_to(page, page.get_by_label("Name", exact=True))
    page.keyboard.type("by keys")
    _tab_to(page, page.get_by_label("Preset"))
    page.keyboard.type("DAPO")
    expect(page.locator("#preset-changes")).to_contain_text("The preset changed")
    _tab_to(page, page.get_by_label("Group size G"))
    page.keyboard.press("Control+a")
    page.keyboard.type("6")
    _tab_to(page, page.locator("[data-copy-as=YAML]"))
    page.keyboard.press("Enter")
    expect(page.locator("#copied")).to_contain_text("Copied as YAML")
    _tab_to(page, page.locator("[name=probe_override]"))
    page.keyboard.type("Read by two of us; no worker is free for a probe.")
    _tab_to(page, page.get_by_role("button", name="Launch"))
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="by keys")).to_be_visible()
    config = RunConfig.from_dict(Run.objects.get().config, source="the run")
    assert (config.preset, config.sampling.group_size) == ("dapo", 6)


def _tab_to(page: Page, target: Locator) -> None:
    """Press Tab until the target has the focus, and require that everything on the way shows that it has it."""
    for _ in range(300):
        page.keyboard.press("Tab")
        focused = page.evaluate("""() => {
            const {outlineStyle, outlineWidth, boxShadow} = getComputedStyle(document.activeElement);
            const shows = (outlineStyle !== "none" && parseFloat(outlineWidth) > 0) || boxShadow !== "none";
            const fine = shows || document.activeElement === document.body;
            return fine ? "" : document.activeElement.outerHTML.slice(0, 200);
        }""")  # after the last element the focus is on the page itself
        assert not focused, f"has the focus and does not show it: {focused}"
        if target.evaluate("element => element === document.activeElement"):
            return
    raise AssertionError(f"300 times Tab do not lead to {target}")
