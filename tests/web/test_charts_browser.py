"""Charts in a real browser: a range dragged across one is fetched exactly and shown on all, what a viewer chose is in
the address, a click leads to the step's groups, a project's own chart is on its other runs, nothing breaks the CSP, and
all of it stands by axe's rules and on a phone.
"""

import re
from collections.abc import Callable, Iterator

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from cohort.runs.models import Run
from tests.browser import picture
from tests.factories.runs import Maker, add_group, add_steps
from tests.factories.series import add_series
from tests.web.windows import serious_faults, windows

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]
DRAWN = "() => (document.querySelector('[data-chart=\"reward\"] .plot')?.data?.length ?? 0) > 0"
EVALUATED = {
    step: {f"eval/{suite}/{part}": level + step / 4000 + off for suite, level in (("held-out", 0.3), ("algebra", 0.2))
           for part, off in (("score", 0.0), ("low", -0.05), ("high", 0.05))}
    for step in range(100, 1201, 100)
}  # fmt: skip


@pytest.fixture
def open_page(browser: Browser, transactional_db: None, maker: Maker, live_server: LiveServer) -> Iterator[OpenPage]:
    with windows(browser, live_server.url, meant=["422 ("]) as opened:
        yield opened


@pytest.fixture
def run(transactional_db: None, maker: Maker) -> Run:
    """1,200 steps, which are joined by four, with groups at each tenth of the first hundred."""
    run = maker.run("long", state="training", algorithm={"kl": {"coef": 0.1}, "mini_batches": 2})
    attempt = maker.attempt(run)
    add_series(attempt, 1200, EVALUATED)
    for step in range(1, 101):
        add_group(attempt, [1.0, 0.0], step=step)
    return run


def drag(page: Page, chart: str, first: float, last: float) -> None:
    """Across parts of a chart's width."""
    plot = page.locator(f"[data-chart='{chart}'] .nsewdrag").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    height = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + first * box["width"], height)
    page.mouse.down()
    page.mouse.move(box["x"] + last * box["width"], height, steps=4)
    page.mouse.up()


def test_a_dragged_range_is_exact_on_all_charts_and_in_the_address(open_page: OpenPage, run: Run) -> None:
    page = open_page(f"runs/{run.pk}/")
    status = page.locator("#chart-status")
    expect(status).to_contain_text("the last of each 4")
    with page.expect_response(re.compile(r"series\.json\?from=")) as answer:
        drag(page, "reward", 0.25, 0.5)
    part = answer.value.json()
    assert (part["width"], part["low"]) == (1, {})
    expect(status).to_have_text(re.compile(r"^Steps \d+ to \d+: each drawn"))
    first, last = (int(page.locator(f"[name={name}]").input_value()) for name in ("from", "to"))
    assert part["step"] == list(range(first, last + 1))
    shown = "id => document.querySelector(`[data-chart='${id}'] .plot`).layout.xaxis.range"
    assert page.evaluate(shown, "reward") == [first, last]
    page.locator("[data-chart=signal]").scroll_into_view_if_needed()  # it is drawn once it is near
    page.wait_for_function(f"range => String(({shown})('signal')) === String(range)", arg=[first, last])
    page.locator("[name=smooth]").fill("0.6")
    page.locator("[name=x]").select_option("time")
    page.locator("[data-chart=signal] [data-line=mixed]").click()
    page.locator("[data-group=hardware] > summary").click()
    expect(page.locator("[data-group=hardware] .chart").first).to_be_hidden()
    address = page.url
    for part in (f"from={first}", f"to={last}", "smooth=0.6", "x=time", "hide=signal%3Amixed", "fold=hardware"):
        assert part in address
    with page.expect_response(re.compile(r"series\.json\?from=")):
        page.reload()
    expect(status).to_contain_text("Lines are smoothed (0.6)")
    assert page.url == address
    expect(page.locator("[name=x]")).to_have_value("time")
    expect(page.locator("[data-chart=signal] [data-line=mixed]")).to_have_attribute("aria-pressed", "false")
    expect(page.locator("[data-group=hardware] .chart").first).to_be_hidden()
    page.get_by_role("button", name="all steps").click()
    expect(status).to_contain_text("1,200 steps: the last of each 4")
    assert "from=" not in page.url


def test_the_address_is_what_is_drawn_and_a_stack_reaches_100_percent(open_page: OpenPage, run: Run) -> None:
    """What of an address cannot be read is taken out of it; a poll leaves the header's buttons as they are."""
    page = open_page(f"runs/{run.pk}/?smooth=-1&x=zzz&from=9&to=3&table=kl")
    expect(page.locator("#chart-status")).to_contain_text("1,200 steps")
    assert page.url.endswith(f"/runs/{run.pk}/?table=kl")
    page.locator("[data-chart=signal]").scroll_into_view_if_needed()
    expect(page.locator("[data-chart=signal] .ytick text", has_text="100%")).to_be_visible()
    opacity = """() => {
        document.getElementById("live-header").classList.add("htmx-request");
        return getComputedStyle(document.querySelector("#live-header form button")).opacity;
    }"""
    assert page.evaluate(opacity) == "1"


def test_axes_hold_the_numbers_after_each_change_of_the_view(open_page: OpenPage, run: Run) -> None:
    """The same number of steps is drawn along another axis."""
    page = open_page(f"runs/{run.pk}/")
    page.wait_for_function(DRAWN)
    axes = """() => {
        const { data, layout: { xaxis, yaxis } } = document.querySelector("[data-chart=reward] .plot");
        const around = ({ range: [low, high] }, column) => {
            const drawn = data.flatMap((trace) => [...trace[column]]).filter((value) => value !== null);
            const inside = (value) => value >= low - 1e-9 && value <= high + 1e-9;
            return drawn.every(inside) && high - low < 1.5 * (Math.max(...drawn) - Math.min(...drawn));
        };
        return [around(xaxis, "x"), around(yaxis, "y"), xaxis.title.text];
    }"""
    titles = []
    for name in ("tokens", "time", "samples", "step"):
        page.locator("[name=x]").select_option(name)
        held_x, held_y, title = page.evaluate(axes)
        assert (held_x, held_y) == (True, True), name
        titles.append(title)
    assert len(set(titles)) == 4
    page.get_by_label("log axes").check()
    expect(page.locator("#chart-status")).to_contain_text("leave out values of 0 and below")
    ticks = page.locator("[data-chart=reward] .ytick text").all_text_contents()
    assert 2 <= len(ticks) <= 8
    assert all(float(tick) > 0 for tick in ticks), "each as a number, not as the digit of a power of ten"
    assert len({float(tick) for tick in ticks}) == len(ticks)


def test_a_point_and_a_row_lead_to_the_groups_of_their_step(open_page: OpenPage, run: Run) -> None:
    """By the mouse, and by the keyboard through the table."""
    page = open_page(f"runs/{run.pk}/?from=1&to=100")
    expect(page.locator("#chart-status")).to_contain_text("Steps 1 to 100: each drawn")
    plot = page.locator("[data-chart=reward] .nsewdrag").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    expect(page.locator("[data-chart=reward] .hovertext")).to_have_count(1)
    page.mouse.click(x, y)
    page.wait_for_url("**/groups/?step=*")
    step = int(page.url.rsplit("=", 1)[1])
    assert 45 <= step <= 56
    expect(page.locator("#step")).to_have_value(str(step))
    expect(page.locator(".table.groups")).to_contain_text("what is 49 + 78?")
    page.go_back()
    button = page.locator("[data-chart=kl] [data-table]")
    button.focus()
    page.keyboard.press("Enter")
    row = page.locator("[data-chart=kl] tbody tr").first.get_by_role("link")
    expect(row).to_have_text("100")
    row.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/groups/?step=100")


def test_an_own_chart_is_on_the_project_s_other_runs(open_page: OpenPage, run: Run, maker: Maker) -> None:
    other = maker.run("other", state="training")
    add_series(maker.attempt(other), 30)
    page = open_page(f"runs/{run.pk}/")
    page.get_by_role("link", name="Add chart").click()
    page.get_by_role("searchbox").fill("entr")
    expect(page.locator(".metric-choices label:visible")).to_have_count(1)
    page.get_by_label("entropy", exact=True).check()
    page.get_by_role("searchbox").fill("kl")
    page.get_by_label("kl", exact=True).check()
    page.get_by_label("Title").fill("   ")
    page.get_by_role("button", name="Add chart").click()
    expect(page.locator("#id_title_error")).to_be_visible()
    assert serious_faults(page, "form") == []
    page.get_by_label("Title").fill("KL and entropy")
    page.get_by_role("button", name="Add chart").click()
    page.wait_for_url("**/#chart-group-own")
    page.goto(page.url.split("/runs/")[0] + f"/runs/{other.pk}/")
    chart = page.locator("[data-group=own] .chart")
    expect(chart.get_by_role("heading", name="KL and entropy")).to_be_visible()
    expect(chart.locator(".scatterlayer .trace").first).to_be_attached()
    chart.get_by_role("button", name="entropy", exact=True).click()
    expect(chart.get_by_role("button", name="entropy", exact=True)).to_have_attribute("aria-pressed", "false")
    chart.locator("summary").click()
    chart.get_by_role("link", name="edit").click()
    with page.expect_response("**/live/**"):  # the run moves while its form is open
        add_steps(other.attempts.get(), [{"reward": 0.5}], first=31)
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Remove it").click()
    expect(page.locator(".messages")).to_contain_text("removed")
    expect(page.locator("[data-group=own]")).to_have_count(0)


def test_charts_stand_by_axe_on_a_phone_and_by_the_csp(open_page: OpenPage, run: Run) -> None:
    """A picture of a chart too; whatever the CSP refuses is a line in the console, which fails the test."""
    page = open_page(f"runs/{run.pk}/?table=entropy")
    page.wait_for_function(DRAWN)
    page.locator("[data-chart=reward] .chart-more > summary").click()
    with page.expect_download() as saved:
        page.locator("[data-chart=reward] [data-png]").click()
    assert saved.value.suggested_filename == "reward.png"
    assert saved.value.path().read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    for fold in page.locator("#charts details").all():
        fold.evaluate("fold => fold.open = true")
    page.locator("[data-chart^='other/']").last.scroll_into_view_if_needed()
    assert serious_faults(page, "charts") == []
    picture(page, "charts")
    page.set_viewport_size({"width": 360, "height": 900})
    page.wait_for_function("() => document.documentElement.scrollWidth <= 360")


def test_health_stays_open_while_the_run_goes_on_and_leads_to_the_curve(open_page: OpenPage, maker: Maker) -> None:
    run = maker.run("live", state="training")
    attempt = maker.attempt(run)
    numbers = {"reward": 0.5, "completions/clipped_ratio": 0.25}
    add_steps(attempt, [numbers] * 3)
    data = {"cause": "cut_off", "step": 2, "text": "4 of 16 were cut off.", "advice": "Raise the limit."}
    run.events.create(kind="diagnosis", message="m", data=data, attempt=attempt, seq=900, at=timezone.now())
    page = open_page(f"runs/{run.pk}/", width=360)
    health = page.locator("#live-health")
    expect(health).to_contain_text("! 1 suspect")
    page.locator("#health-others > summary").click()
    page.locator("#health-length_drift > summary").click()
    expect(page.locator("#health-length_drift")).to_contain_text("mean length of the last ten steps")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    add_steps(attempt, [{**numbers, "completions/clipped_ratio": 0.5}] * 9, first=4)
    expect(page.locator("#health-cut_off > summary")).to_have_text(re.compile(r"^\s*47\.5\s%"))
    expect(page.locator("#health-length_drift")).to_have_attribute("open", "")
    page.locator("#health-cut_off > summary").click()
    page.locator("#health-cut_off").get_by_role("link", name="curve").click()
    expect(page.locator("#chart-truncated")).to_be_in_viewport()
    assert serious_faults(page, "health") == []
    picture(page, "health")
