"""Rewards and the lab in a real browser: the editor, fields of the chosen kind, a try without leaving the page, the
hold-back as one fills the run form; axe's rules and narrow screens on every page of them.

With COHORT_TEST_SCREENSHOTS set to a folder, pictures of the pages are kept there.
"""

import os
import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from cohort.accounts.models import Project, User
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.catalog.services import verifier_version_create
from cohort.lab.models import LabJob
from cohort.lab.services import job_ask
from cohort.runs.models import Run
from cohort.runs.services import run_create, run_submit
from tests.browser import picture
from tests.web.lab_rows import claimed, failed, format_only, lab_node, probed, sampled
from tests.web.run_rows import Maker
from tests.web.windows import serious_faults, windows

OWN = '''def verify(sample):
    """Right when the last number is the answer."""
    words = sample.completion.split()
    return float(bool(words) and words[-1] == sample.answer)
'''
BETTER = OWN.replace("words[-1] ==", 'words[-1].strip(".") ==').replace("number", "word")
_TOO_WIDE = """() => document.documentElement.scrollWidth <= 360 ? [] : [...document.querySelectorAll("main *")]
    .filter((one) => one.getBoundingClientRect().right > 360 && !one.closest(".scroll, .editor, pre"))
    .map((one) => one.outerHTML.slice(0, 150))"""
REASON = "Only the form is to be learned in this warm-up."


@pytest.fixture
def form_alone(transactional_db: None, ours: Project, alice: User, dataset: PromptDataset) -> VerifierVersion:
    version = format_only(ours, alice)
    probed(version, alice, dataset)
    return version


@pytest.fixture
def own(transactional_db: None, ours: Project, alice: User) -> VerifierVersion:
    """Two versions of a function of one's own; the second."""
    lab_node()
    params = {"source": OWN}
    verifier_version_create(
        project=ours,
        actor=alice,
        name="own",
        spec={"components": [{"name": "own", "kind": "python", "params": params}]},
    )
    component = {"name": "own", "kind": "python", "weight": 0.5, "params": {"source": BETTER, "packages": ["regex"]}}
    return verifier_version_create(project=ours, actor=alice, name="own", spec={"components": [component]})


@pytest.fixture
def sample_job(
    transactional_db: None,
    ours: Project,
    alice: User,
    verifier_version: VerifierVersion,
    dataset: PromptDataset,
    base_model: BaseModel,
) -> LabJob:
    words = ["rrrrrrrr", "rwxrwxrx", "xxxxxxxx", "rwwewwwr", "rrrrrrrw", "wwwwwwww", "xwrxwrxw", "rrrrrrrr"]
    return sampled(verifier_version, alice, dataset, base_model, groups=words * 3)


@pytest.fixture
def open_page(
    browser: Browser, transactional_db: None, ours: Project, live_server: LiveServer
) -> Iterator[Callable[..., Page]]:
    with windows(browser, live_server.url, meant=["status of 422"]) as opened:
        yield opened


def test_the_editor_says_line_and_caret_as_one_types(open_page: Callable[..., Page]) -> None:
    page = open_page("rewards/new/?example=exact")
    page.locator("#id_component-0-kind").select_option("python")
    source = page.locator("#id_component-0-p_source")
    expect(source).to_be_visible()
    expect(page.locator("#id_component-0-name")).to_have_value("answer")
    source.click()
    page.keyboard.type("def verify(sample):")
    page.keyboard.press("Enter")
    page.keyboard.type("if sample.answer:")
    page.keyboard.press("Enter")
    page.keyboard.type("return (1")
    assert source.input_value() == "def verify(sample):\n    if sample.answer:\n        return (1"
    lines = page.locator(".editor-lines > span")
    expect(lines).to_have_count(3)
    said = page.locator("#source-said-0")
    expect(said).to_contain_text("line 3")
    expect(said).to_contain_text("^")
    expect(page.locator(".editor-lines > .faulty")).to_have_text("3")
    picture(page, "reward-editor-fault")
    page.keyboard.type(")")
    expect(said).to_contain_text("It parses")
    expect(page.locator(".editor-lines > .faulty")).to_have_count(0)
    page.keyboard.press("Enter")
    page.keyboard.press("Shift+Tab")
    page.keyboard.type("import os")
    expect(said).to_contain_text("os")
    page.keyboard.press("Tab")
    assert source.input_value().endswith("\n    import os  ") or source.input_value().endswith("    import os   ")
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    expect(source).not_to_be_focused()
    page.keyboard.press("Shift+Tab")
    expect(source).to_be_focused()


def test_a_row_that_is_added_works_as_the_first(open_page: Callable[..., Page]) -> None:
    page = open_page("rewards/new/")
    page.get_by_role("button", name="Add a component").click()
    page.locator("#id_component-1-kind").select_option("regex")
    expect(page.locator("#id_component-1-p_pattern")).to_be_visible()
    page.locator("#id_component-1-kind").select_option("python")
    expect(page.locator(".editor-lines > span")).to_have_count(1)
    page.get_by_role("button", name="Remove component 2").click()
    expect(page.locator(".component:visible")).to_have_count(1)


def test_text_is_tried_without_leaving_the_page(
    open_page: Callable[..., Page], verifier_version: VerifierVersion
) -> None:
    page = open_page(f"rewards/{verifier_version.verifier_id}/lab/")
    page.evaluate("window.stayed = true")
    page.get_by_label("Reference answer").fill("7")
    page.get_by_label("Completion", exact=True).fill("<think>3+4</think><answer>7</answer>")
    page.locator("#try-score").click()
    expect(page.locator("#try")).to_contain_text("Reward 1.2")
    assert page.evaluate("window.stayed")
    picture(page, "lab")


def test_the_run_form_holds_it_back_until_a_reason_is_typed(
    open_page: Callable[..., Page], maker: Maker, form_alone: VerifierVersion
) -> None:
    page = open_page("runs/new/")
    reason = page.get_by_label("Reason to launch all the same")
    page.locator("select[name=verifier_version]").select_option(str(maker.verifier_version.pk))
    expect(page.locator("#reward-gate")).to_contain_text("never probed")
    expect(reason).not_to_be_visible()
    page.locator("select[name=verifier_version]").select_option(str(form_alone.pk))
    expect(page.locator("#reward-gate")).to_contain_text("pays wrong answers")
    expect(page.locator("#said-f-verifier-version")).to_contain_text("Probe: pays")
    expect(reason).to_be_visible()
    picture(page, "launch-held")
    page.get_by_role("button", name="Launch").click()
    expect(page.locator("#override-said")).to_contain_text("Held back")
    reason.click()
    page.keyboard.type(REASON, delay=30)  # the form is checked meanwhile, and takes nothing that was typed
    expect(reason).to_have_value(REASON)
    page.get_by_role("button", name="Launch").click()
    page.wait_for_url(lambda url: "/new/" not in url)
    expect(page.locator("#reward-at-launch")).to_contain_text(REASON)
    picture(page, "run-overridden")
    assert Run.objects.get().launch_probes.get().overridden


def test_a_job_ends_on_the_page_that_waits_for_it(
    open_page: Callable[..., Page], ours: Project, alice: User, verifier_version: VerifierVersion
) -> None:
    page = open_page(f"rewards/{verifier_version.verifier_id}/lab/")
    page.locator("#probe").get_by_label("Problems", exact=True).fill("3")
    page.locator("#ask-probe").click()
    page.wait_for_url(re.compile(r"/lab/jobs/\d+/"))
    expect(page.locator("#lab-job")).to_contain_text("Waits for a worker")
    job = LabJob.objects.get()
    taken = claimed(job)
    LabJob.objects.filter(pk=job.pk).update(progress={"phase": "classes", "done": 40, "total": 130})
    expect(page.locator("#lab-job")).to_contain_text("40 of 130")
    picture(page, "job-running")
    page.locator("#cancel-job").click()
    expect(page.locator("#lab-job")).to_contain_text("being called off")
    from cohort.lab.jobs import job_finish
    from grpo_core.wire import JobFinish

    job_finish(job=taken, finish=JobFinish(fence=taken.fence, end="cancelled", seconds=1))
    expect(page.get_by_text("It was called off.")).to_be_visible()


def test_pages_have_no_serious_faults_and_fit_a_phone(
    open_page: Callable[..., Page],
    maker: Maker,
    ours: Project,
    alice: User,
    form_alone: VerifierVersion,
    own: VerifierVersion,
    sample_job: LabJob,
) -> None:
    run = run_create(**{**maker._named("warm-up"), "verifier_version": form_alone}, settings={"eval": {"holdout": 4}})
    draft = run_create(**{**maker._named("draft"), "verifier_version": form_alone}, settings={"eval": {"holdout": 4}})
    run_submit(run=run, actor=alice, probe_override=REASON)
    probe = form_alone.probes.get()
    broken = failed(
        job_ask(project=ours, actor=alice, kind="probe", version=form_alone, options={}), "the folder is gone", "log"
    )
    pages = {
        "rewards": "rewards/",
        "reward-new": "rewards/new/",
        "reward-python": "rewards/new/?example=python",
        "reward-code": "rewards/new/?example=code",
        "reward": f"rewards/{form_alone.verifier_id}/",
        "reward-own": f"rewards/{own.verifier_id}/",
        "reward-compare": f"rewards/{own.verifier_id}/compare/",
        "lab-home": "lab/",
        "lab-own": f"rewards/{own.verifier_id}/lab/",
        "job-sample": f"lab/jobs/{sample_job.pk}/",
        "job-group": f"lab/jobs/{sample_job.pk}/groups/3/",
        "job-probe": f"lab/jobs/{probe.job_id}/",
        "job-failed": f"lab/jobs/{broken.pk}/",
        "launch": "runs/new/",
        "run": f"runs/{run.pk}/",
        "draft": f"runs/{draft.pk}/",
    }
    only = os.environ.get("COHORT_TEST_PAGES", "").split()
    for name, path in pages.items():
        if only and name not in only:
            continue
        page = open_page(path)
        picture(page, name)
        for fold in page.locator("details").all():
            fold.evaluate("one => one.open = true")
        assert serious_faults(page, path) == []
        page.set_viewport_size({"width": 360, "height": 900})
        assert page.evaluate(_TOO_WIDE) == [], path
