"""The scatter and the page of a problem in a real browser: drawn once in sight, a click on a point opens its group, a
colour is chosen, nothing breaks the CSP, and all of it stands by axe's rules and on a phone.
"""

import re
from collections.abc import Callable, Iterator
from hashlib import md5
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from cohort.review.models import Sample
from cohort.review.problems import problem_key
from cohort.runs.models import Run
from tests.browser import picture
from tests.factories.runs import Maker, add_group
from tests.web.windows import serious_faults, windows

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]
PROMPT = "A train leaves at 9:40 and arrives at 12:05. How many minutes does it take?"
TEXTS = (
    "<think>From 9:40 to 12:05 is 2 hours and 25 minutes, so 145.</think><answer>145</answer>",
    "<think>From 9:40 to 12:05 is 3 hours and 25 minutes, so 205.</think><answer>205</answer>",
)


@pytest.fixture
def open_page(browser: Browser, transactional_db: None, maker: Maker, live_server: LiveServer) -> Iterator[OpenPage]:
    with windows(browser, live_server.url) as opened:
        yield opened


@pytest.fixture
def run(transactional_db: None, maker: Maker) -> Run:
    """Twelve steps of one problem, which it learns, beside others."""
    run = maker.run("trains", state="training")
    attempt = maker.attempt(run)
    for step in range(1, 13):
        for index in range(3):
            rewards = [float(number < step // 3 + index) for number in range(4)]
            group = add_group(attempt, rewards, step=step, index=index, prompt=f"{PROMPT} {index or ''}")
            for sample in group.samples.order_by("index"):
                text = TEXTS[int(sample.reward != 1)]
                tokens = 40 + 7 * step + 11 * sample.index
                Sample.objects.filter(pk=sample.pk).update(completion=f"{text} ({step})", tokens=tokens)
    return run


def test_a_click_on_a_point_opens_its_group(open_page: OpenPage, run: Run) -> None:
    page = open_page(f"runs/{run.pk}/samples/scatter/")
    plot = page.locator("[data-scatter]")
    expect(plot).to_have_class(re.compile("js-plotly-plot"))
    assert page.evaluate("() => document.querySelector('[data-scatter]').data.length") == 2, "right and wrong"
    assert serious_faults(page, page.url) == []
    picture(page, "scatter")
    page.get_by_label("Coloured by").select_option("format")
    page.wait_for_function("() => document.querySelector('[data-scatter]').data?.[0].marker.colorbar")
    point = page.locator("[data-scatter] .points path").first
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    assert box is not None
    at = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.move(*at, steps=4)
    page.locator("[data-scatter] .hoverlayer .hovertext").first.wait_for()
    page.mouse.click(*at)
    page.wait_for_url(re.compile(r"/groups/\d+/\?sample=\d#sample-\d$"))


def test_the_samples_page_has_the_scatter_and_searches(open_page: OpenPage, run: Run) -> None:
    page = open_page(f"runs/{run.pk}/samples/")
    expect(page.locator("[data-scatter]")).to_have_class(re.compile("js-plotly-plot"))
    assert serious_faults(page, page.url) == []
    picture(page, "samples-with-scatter")


def test_a_problem_through_time(open_page: OpenPage, run: Run) -> None:
    page = open_page(f"runs/{run.pk}/problems/")
    assert serious_faults(page, page.url) == []
    picture(page, "problems")
    prompt = f"{PROMPT} "
    page.goto(f"{page.url}{quote(problem_key(md5(prompt.encode()).hexdigest(), 'p0'))}/")
    expect(page.locator(".problem-curve circle")).to_have_count(24)
    assert serious_faults(page, page.url) == []
    picture(page, "problem")
    page.get_by_label("Sample, first").select_option("worst")
    page.get_by_role("button", name="Compare").click()
    expect(page).to_have_url(re.compile("pick=worst"))
