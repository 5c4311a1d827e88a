"""Suites in a real browser: a starter suite added and launched with, what the form says meanwhile, axe's rules on every
page of suites, and narrow screens."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from cohort.accounts.models import Project, User
from cohort.catalog.models import EvalSuiteVersion
from cohort.catalog.suites import starters_add
from cohort.runs.models import ImportedResult, Run
from cohort.runs.services import ChosenSuite, run_create
from tests.web.run_rows import HOSTILE, Maker, add_evaluation, put_in
from tests.web.suite_rows import CHOICES, HARMFUL, add_suite
from tests.web.windows import serious_faults, windows


@pytest.fixture
def run(transactional_db: None, ours: Project, alice: User, maker: Maker) -> Run:
    """Ended, measured on two suites, one of them sensitive and hostile, with an imported result."""
    made = [add_suite(ours, alice), add_suite(ours, alice, "locks", spec=HARMFUL, content=CHOICES)]
    run = run_create(
        **maker._named("measured"), settings={"eval": {"holdout": 4}}, suites=[ChosenSuite(one) for one in made]
    )
    put_in(run, "succeeded")
    attempt = maker.attempt(run, state="finished")
    for name, before, after in (
        ("heldout", [0, 0, 0, 0, 0, 0, 0, 0, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1, 1, 0]),
        ("capitals", [1] * 10, [0] * 8 + [1] * 2),
        ("locks", [0, 1] * 5, [1, 1] * 5),
    ):
        slices = ["even", "odd"] if name == "locks" else []
        for phase, scores in (("before", before), ("after", after)):
            add_evaluation(attempt, phase, scores, suite=name, completion=HOSTILE, slices=slices)
    ImportedResult.objects.create(
        run=run,
        tool="inspect",
        task="sums",
        phase="after",
        metric="match/accuracy",
        value=0.75,
        stderr=0.1637,
        n=8,
        higher_is="better",
        facts={"inspect_ai": "0.3.285", "model": "mockllm/model", "task_version": 3},
        file_name="sums.eval",
        file_sha256="ab" * 32,
        samples={"n": 8, "mean": 0.75, "sha256": None},
        by=alice,
    )
    return run


@pytest.fixture
def open_page(browser: Browser, run: Run, live_server: LiveServer) -> Iterator[Callable[..., Page]]:
    with windows(browser, live_server.url) as opened:
        yield opened


def test_a_starter_suite_is_added_and_launched_with(open_page: Callable[..., Page], run: Run) -> None:
    page = open_page("suites/")
    row = page.locator(".starters tbody tr").first
    name = row.locator(".mono").inner_text()
    row.get_by_role("button").click()
    expect(page.get_by_role("status")).to_contain_text("1 starter suite is added")
    version = EvalSuiteVersion.objects.get(builtin=name)

    page.get_by_role("link", name="Runs").first.click()
    page.goto(page.url.rstrip("/") + "/new/")
    page.get_by_label("Name", exact=True).fill("with a starter")
    suites = page.locator("#suites")
    suites.get_by_label(version.title, exact=True).check()
    suites.locator(f"[name='suite.{version.pk}.margin']").fill("0.5x")
    expect(page.locator(f"#said-f-suite-{version.pk}-margin")).to_contain_text("Margin must be a number")
    suites.locator(f"[name='suite.{version.pk}.margin']").fill("0.02")
    expect(page.locator("#outlook")).to_contain_text(f"{2 * version.items} more completions")
    expect(page.locator(f"#said-f-suite-{version.pk}-margin")).not_to_contain_text("must be")
    page.get_by_role("button", name="Launch").click()
    page.wait_for_url(lambda url: "/new/" not in url)
    launched = Run.objects.get(name="with a starter")
    (suite,) = launched.config["eval"]["suites"]
    assert (suite["path"], suite["margin"], suite["sha256"]) == (f"builtin:{name}", 0.02, version.sha256)
    assert list(launched.suites.all()) == [version]
    assert launched.state == "queued"


def test_texts_of_a_sensitive_suite_are_a_click_away(open_page: Callable[..., Page], run: Run) -> None:
    page = open_page(f"runs/{run.pk}/evaluations/?suite=locks&show=all")
    expect(page.locator("#items")).not_to_contain_text("alert(1)")
    page.get_by_role("link", name="show the texts of this sensitive suite").click()
    expect(page.locator("#items tbody tr")).to_have_count(10)
    expect(page.locator("#items")).to_contain_text("<script>alert(1)</script>")


def test_pages_of_suites_have_no_serious_faults_and_fit_a_phone(
    open_page: Callable[..., Page], run: Run, ours: Project, alice: User
) -> None:
    starters_add(project=ours, actor=alice)
    suite = EvalSuiteVersion.objects.get(suite__name="locks").suite_id
    pages = [
        "suites/",
        "suites/new/",
        f"suites/{suite}/",
        "runs/new/",
        f"runs/{run.pk}/evaluations/?suite=locks&texts=1",
        f"runs/{run.pk}/evaluations/import/",
    ]
    for path in pages:
        page = open_page(path)
        for fold in page.locator("details").all():
            fold.evaluate("one => one.open = true")
        assert serious_faults(page, path) == []
        narrow = open_page(path, width=360)
        assert narrow.evaluate("document.documentElement.scrollWidth") <= 360, path
