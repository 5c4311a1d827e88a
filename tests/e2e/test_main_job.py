"""The main job as a person does it, in a real browser against a real `cohort up`: sign in, register a model, upload
problems, define a reward, define a run, launch it, watch it, open a group, take the card away and check it.

With COHORT_TEST_SCREENSHOTS set to a folder, pictures of the pages are kept there; docs/images came so.
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cohort.evidence.verify import verify_card
from tests.browser import chromium
from tests.forged_card import each_changed
from tests.processes import cohort, grpo, up

pytestmark = pytest.mark.e2e

STEPS = int(os.environ.get("COHORT_TEST_STEPS", "24"))
COLD_STEPS = os.environ.get("COHORT_TEST_COLD_STEPS", "60")
MINUTES = 60_000  # Playwright counts milliseconds


@pytest.fixture
def browser_page(tmp_path: Path) -> Iterator:
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(30_000)
        yield page


@pytest.fixture
def picture(request: pytest.FixtureRequest) -> Callable:
    """Keeps a picture of the page, in light, dark and at 360 px, when COHORT_TEST_SCREENSHOTS names a folder."""
    folder = os.environ.get("COHORT_TEST_SCREENSHOTS")

    def keep(page, name: str) -> None:
        if not folder:
            return
        Path(folder).mkdir(parents=True, exist_ok=True)
        for scheme, width in (("light", 1440), ("dark", 1440), ("light", 360)):
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_timeout(400)
            suffix = "" if (scheme, width) == ("light", 1440) else f"-{scheme if width == 1440 else 'phone'}"
            page.screenshot(path=f"{folder}/{name}{suffix}.png", full_page=width == 360)
        page.emulate_media(color_scheme="light")
        page.set_viewport_size({"width": 1440, "height": 900})

    return keep


def test_from_sign_in_to_a_verified_card(browser_page, cohort_home: Path, picture, tmp_path: Path) -> None:
    page = browser_page
    violations: list[str] = []
    page.on("console", lambda message: violations.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: violations.append(str(error)))

    grpo("cold-start", "--out", str(cohort_home / "models" / "adder"), "--steps", COLD_STEPS)
    grpo("demo-data", "--out", str(tmp_path))
    with up(cohort_home) as (_, address):
        made = cohort("user", "alice", "--project", "lab", "--home", str(cohort_home))
        password = re.search(r"password (\S+)", made.stdout)
        assert password is not None, made.stderr
        drive(page, address, password[1], tmp_path, picture)
    # The one refused form is answered 422, which the console counts as an error; nothing else may be there.
    assert [text for text in violations if "status of 422" not in text] == []


def drive(page, address: str, password: str, tmp_path: Path, picture: Callable) -> None:
    page.goto(address)
    page.locator("#id_username").fill("alice")
    page.locator("#id_password").fill(password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/p/lab/runs/")
    page.get_by_role("link", name="Change it").click()  # the password that was handed out
    page.locator("#id_old_password").fill(password)
    for field in ("#id_new_password1", "#id_new_password2"):
        page.locator(field).fill("a sentence of her own")
    page.get_by_role("button", name="Change password").click()
    page.get_by_text("Your password is changed.").wait_for()

    # What the run is made from.
    page.goto(f"{address}/p/lab/models/new/")
    page.locator("#id_name").fill("adder")
    page.locator("#id_path").fill("adder")
    page.get_by_role("button", name="Register").click()
    page.get_by_role("heading", name="adder").wait_for()
    for name, file in (("additions", "add-train.jsonl"), ("additions held out", "add-heldout.jsonl")):
        page.goto(f"{address}/p/lab/datasets/new/")
        page.locator("#id_name").fill(name)
        page.locator("#id_file").set_input_files(tmp_path / file)
        page.get_by_role("button", name="Check and store").click()
        page.get_by_role("heading", name=name, exact=True).wait_for()
    page.goto(f"{address}/p/lab/rewards/new/")
    page.locator("#id_name").fill("right sum")
    page.locator("#id_component-0-kind").select_option("exact")
    page.locator("#id_component-0-name").fill("correct")
    page.locator("#id_component-0-p_extract").select_option("answer_tag")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("heading", name="right sum", exact=True).wait_for()

    # The run form: a fault is shown beside its field, then mended.
    page.goto(f"{address}/p/lab/runs/new/")
    page.locator("#f-preset").select_option("demo")
    page.wait_for_load_state("networkidle")
    page.locator("#f-name").fill("Two-digit addition")
    choose(page, "base_model", "adder")
    choose(page, "dataset", "additions")
    choose(page, "eval_dataset", "additions held out")
    choose(page, "verifier_version", "right sum")
    page.get_by_text("every setting is valid").wait_for()
    picture(page, "launch")
    page.locator("#f-sampling-group-size").fill("1")
    page.get_by_role("button", name="Launch").click()
    fault = page.locator(".field", has=page.locator("#f-sampling-group-size")).locator(".error-text")
    fault.wait_for()
    assert "2" in fault.inner_text()
    picture(page, "launch-fault")
    page.locator("#f-sampling-group-size").fill("8")
    page.locator("#f-optim-steps").fill(str(STEPS))
    page.get_by_role("button", name="Launch").click()
    page.wait_for_url(re.compile(r"/p/lab/runs/\d+/$"))
    page.get_by_text("is in the queue.").wait_for()

    # Live: the chart of the reward gets more points while the run trains.
    page.locator(".badge", has_text="Training").first.wait_for(timeout=5 * MINUTES)
    page.get_by_text("is in the queue.").wait_for(state="detached")
    first = until(page, lambda: drawn_points(page), at_least=2)
    until(page, lambda: drawn_points(page), at_least=first + 1)
    until(page, lambda: drawn_points(page), at_least=STEPS // 2)
    picture(page, "run-live")

    page.locator("#card-link").wait_for(timeout=15 * MINUTES)
    page.locator(".title .badge", has_text="Succeeded").wait_for()
    assert page.locator("#count-runs").inner_text() == ""
    picture(page, "run")

    # A group: G samples with reward and advantage.
    mixed = page.locator("#live-groups tbody tr").filter(has_not_text="no signal")
    (mixed.first if mixed.count() else page.locator("#live-groups tbody tr").first).locator("a").first.click()
    page.wait_for_url(re.compile(r"/groups/\d+/$"))
    assert page.locator("article.sample").count() == 8
    assert page.get_by_text("How rewards became advantages").is_visible()
    picture(page, "group")

    page.go_back()
    for tab in ("Groups", "Evaluations", "Logs", "Config", "Events"):
        page.locator(".tabs").get_by_role("link", name=re.compile(f"^{tab}")).click()
        page.wait_for_load_state("networkidle")
        picture(page, tab.lower())
    page.locator(".tabs").get_by_role("link", name=re.compile("^Record")).click()
    page.locator("#record-seal").wait_for()
    assert page.get_by_text("not stated").count() > 0
    picture(page, "record")
    with page.expect_download() as downloading:
        page.locator("#download-card").click()
    card = tmp_path / "card.zip"
    downloading.value.save_as(card)

    checked = cohort("verify", str(card))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    for name, changed in each_changed(card):
        assert not verify_card(changed).accepted, name
    assert cohort("verify", str(changed)).returncode == 1


def choose(page, select: str, text: str) -> None:
    """Choose the option whose label is `text`, or begins with it and goes on after a separator."""
    options = page.locator(f"select[name={select}] option")
    label = next(
        option
        for option in options.all_inner_texts()
        if option == text or option.startswith((f"{text} ·", f"{text} v"))
    )
    page.locator(f"select[name={select}]").select_option(label=label)


def drawn_points(page) -> int:
    """Steps that the reward chart has drawn (its last trace only marks the newest)."""
    return page.evaluate("() => document.querySelector('[data-chart=reward] .plot')?.data?.at(-2)?.x?.length ?? 0")


def until(page, ask: Callable[[], int], *, at_least: int, minutes: int = 10) -> int:
    """Ask again and again; the page's CSP forbids Playwright's own way of waiting for an expression."""
    for _ in range(minutes * 300):
        if (found := ask()) >= at_least:
            return found
        page.wait_for_timeout(200)
    raise AssertionError(f"{ask()} after {minutes} minutes, not {at_least}")
