"""Runs compared in a real browser: what only drawing, the address and the clipboard show; axe, 360 px."""

import math

import pytest
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from cohort.runs.models import Run
from tests.browser import picture
from tests.factories.runs import Maker, add_evaluation, add_group, add_steps
from tests.web.windows import serious_faults, windows

pytestmark = pytest.mark.slow


def run_of(maker: Maker, name: str, seed: int, lr: float, right: int) -> Run:
    run = maker.run(name, state="succeeded", seed=seed, optim={"lr": lr, "steps": 60}, algorithm={"kl": {"coef": 0.04}})
    attempt = maker.attempt(run, state="finished")
    add_steps(
        attempt,
        [
            {
                "reward": 1 - math.exp(-step * lr * 2e4) + 0.05 * math.sin(step * seed),
                "rewards/answer/mean": 1 - math.exp(-step * lr * 1e4),
                "frac_informative": 0.8 - step / 200,
                "kl": 0.001 * step * lr * 1e6 + 1e-5,
                "completions/mean_length": 120 + 10 * math.sin(step / 9 + seed),
                "num_tokens": 5000.0 * step,
                "entropy": float(seed),
            }
            for step in range(1, 61)
        ],
    )
    add_evaluation(attempt, "before", [1.0] * 5 + [0.0] * 15, suite="heldout")
    scores = [float(item < right) if item % 5 else float(seed % 2) for item in range(20)]
    add_evaluation(attempt, "after", scores, suite="heldout", completion=f"<answer>{name}</answer>")
    add_group(attempt, [1.0, 0.0, float(seed % 2), 1.0], step=60, completion=f"<think>{name} says 49 + 78</think>")
    return run


def drawn(page: Page, metric: str) -> int:
    """Lines on the chart of the metric."""
    return int(page.locator(f'[data-metric="{metric}"] canvas').get_attribute("data-drawn") or 0)


def test_runs_are_compared(browser: Browser, transactional_db: None, maker: Maker, live_server: LiveServer) -> None:
    runs = [run_of(maker, f"slow seed {seed}", seed, 1e-6, 12) for seed in (1, 2, 6)]
    runs.append(run_of(maker, "fast", 1, 3e-6, 18))
    Run.objects.filter(pk=runs[1].pk).update(cloned_from=runs[0])
    with windows(browser, live_server.url, permissions=["clipboard-read", "clipboard-write"]) as opened:
        page = opened(f"runs/{runs[0].pk}/")
        page.locator("#compare-run").click()
        page.get_by_role("link", name=f"+ slow seed 2 {runs[1].pk}").click()
        for name in ("seed 6", "fast"):
            page.locator("#add").fill(name)
            page.get_by_role("button", name="Add", exact=True).click()
        curves = page.locator("#curves[data-ready=step]")
        expect(curves).to_be_visible()
        assert drawn(page, "reward") == 2, "three seeds are one line, the other run is another"
        note = page.locator('[data-metric="reward"] [data-note]')
        expect(note).to_have_text("mean of 3 seeds, band lowest to highest")
        page.locator("#evaluations").scroll_into_view_if_needed()  # what is in sight is compared
        expect(page.get_by_text("+", exact=False).and_(page.locator("#evaluations b")).first).to_be_visible()
        picture(page, "compare")

        page.locator("#compare-band").select_option("single")
        expect(note).to_have_text("")
        assert drawn(page, "reward") == 4
        page.locator(f'[data-run="{runs[3].pk}"] [data-hide]').click()
        assert drawn(page, "reward") == 3
        assert f"hide={runs[3].pk}" in page.url
        assert "band=single" in page.url
        page.locator("#compare-x").select_option("tokens")
        expect(page.locator("#curves[data-ready=tokens]")).to_be_visible()
        page.locator("#compare-log").check()

        item = page.locator(f'.compare-runs [data-run="{runs[3].pk}"]')
        item.get_by_role("button", name="make baseline").click()
        expect(item.locator(".tag")).to_have_text("baseline")
        expect(page.locator("#curves[data-ready=tokens]")).to_be_visible()
        assert page.locator("#compare-log").is_checked(), "what was chosen comes along"
        assert drawn(page, "reward") == 3
        item.locator("[data-hide]").click()

        page.locator("#compare-log").uncheck()
        page.locator('[data-metric="reward"] canvas').hover(position={"x": 300, "y": 100})
        expect(page.locator('[data-metric="reward"] .compare-tip')).to_contain_text("fast")
        expect(page.locator('[data-metric="kl"] .compare-tip')).to_be_visible()
        picture(page, "compare-single")
        page.locator('[data-metric="kl"] [data-table]').click()
        expect(page.locator('[data-metric="kl"] .compare-values tbody tr')).to_have_count(60)
        with page.expect_download() as saved:
            page.locator('[data-metric="reward"] [data-png]').click()
        assert saved.value.suggested_filename == "reward.png"
        assert saved.value.path().read_bytes().startswith(b"\x89PNG")
        page.get_by_role("button", name="Copy as Markdown").click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        text = page.evaluate("navigator.clipboard.readText()")
        assert text.startswith("| run |")
        assert len(text.strip().splitlines()) == 6
        assert page.locator("#compare-parallel path").count() == 4
        chosen = "&".join(f"run={run.pk}" for run in runs)
        for band, shown in (("range", "3 [1, 6]"), ("sd", "3 [0.3542, 5.646]")):  # 1, 2, 6: variance 14/2
            page.goto(f"{live_server.url}/p/ours/runs/compare/?{chosen}&metric=entropy&band={band}")
            expect(page.locator("#curves[data-ready=step]")).to_be_visible()
            page.locator("[data-table]").click()
            expect(page.locator(".compare-values tbody tr").first).to_have_text(f"60{shown}1")
        page.wait_for_load_state("networkidle")
        page.locator("details").evaluate_all("folds => folds.forEach((fold) => (fold.open = true))")
        faults = serious_faults(page, "compare")

        page.goto(f"{live_server.url}/p/ours/runs/compare/answers/?{chosen}&suite=heldout")
        expect(page.locator("#opened h2")).to_have_text("held-0")
        page.keyboard.press("j")
        expect(page.locator("#opened")).to_contain_text("2 of")
        page.wait_for_load_state()  # the script that reads keys is run after the page is parsed
        page.keyboard.press("k")
        expect(page.locator("#opened")).to_contain_text("1 of")
        picture(page, "compare-answers")
        faults += serious_faults(page, "answers")
        page.get_by_role("link", name="Training problems").click()
        expect(page.locator(".sample").first).to_contain_text("49 + 78")
        picture(page, "compare-training")
        faults += serious_faults(page, "training problems")
        assert faults == []

        for path in ("", "answers/"):
            phone = opened(f"runs/compare/{path}?{chosen}&suite=heldout", width=360)
            phone.wait_for_load_state("networkidle")
            assert phone.evaluate("document.documentElement.scrollWidth") <= 360, path
