"""Several runs side by side: the choice in the address, settings that differ, curves, paired evaluations, answers."""

import csv
import io
import json
from typing import Any

import pytest
from django.test import Client

from cohort.audit.models import AuditEntry
from cohort.evaluations.across_runs import results_across, suite_across
from cohort.runs.models import Attempt, EvalResult, Run
from cohort.web.compare.chosen import COLOURS, DASHES, MOST_RUNS, styles_of
from cohort.web.compare.curves import curves, last_rewards
from cohort.web.compare.settings_table import settings_table
from tests.factories.runs import HOSTILE, Maker, add_evaluation, add_group, add_steps, gone_on
from tests.web.compare_page import PAGE, address, evaluated, trained
from tests.web.pages import html
from tests.web.run_page import queries, words

# ---------------------------------------------------------------- the choice


def test_a_run_keeps_its_colour_and_dash_when_others_leave() -> None:
    styles = styles_of([3, 7, 40])
    assert styles_of([3, 40]) == {3: styles[3], 40: styles[40]}
    many = styles_of(range(100, 100 + COLOURS * DASHES))
    assert len(set(many.values())) == COLOURS * DASHES, "each its own while there are enough"


def test_runs_are_added_by_number_and_name_made_baseline_and_removed(viewer: Client, maker: Maker) -> None:
    first, second, third = (maker.run(name) for name in ("alpha", "beta one", "beta two"))
    added = viewer.get(address(first, add=f"%23{second.pk}"))
    assert added.headers["Location"] == address(first, second)
    page = html(viewer.get(address(first, add="beta")))
    assert "2 fit:" in words(page)
    assert f'href="?run={first.pk}&amp;run={third.pk}"' in page
    assert viewer.get(address(first, add="beta", all="1")).headers["Location"] == address(first, third, second)
    assert "No other run has “gamma”" in words(html(viewer.get(address(first, add="gamma"))))
    pressed = f"{address(first, second, third, baseline=str(first.pk))}&"
    assert viewer.get(f"{pressed}baseline={third.pk}").headers["Location"] == address(
        first, second, third, baseline=str(third.pk)
    )
    assert viewer.get(f"{pressed}drop={first.pk}").headers["Location"] == address(second, third)
    page = html(viewer.get(address(first, second, baseline=str(second.pk))))
    assert f'name="drop" value="{second.pk}"' in page
    assert f'name="baseline" value="{first.pk}">make baseline' in page


def test_clones_and_parents_are_suggested(viewer: Client, maker: Maker) -> None:
    parent, child, sibling, other = (maker.run(name) for name in ("parent", "child", "sibling", "other"))
    Run.objects.filter(pk__in=[child.pk, sibling.pk]).update(cloned_from=parent)
    page = html(viewer.get(address(child)))
    offered = page[page.index("cloned from or into:") : page.index("</section>", page.index("cloned from or into:"))]
    assert all(f"run={run.pk}" in offered for run in (parent, sibling))
    assert f"run={other.pk}" not in offered
    assert f'href="{PAGE}?run={child.pk}"' in html(viewer.get(f"/p/ours/runs/{child.pk}/"))


@pytest.mark.parametrize("query", ["run=999999", "run=x", "run=1&run=-1"])
def test_what_is_no_run_of_the_project_is_404(viewer: Client, maker: Maker, query: str) -> None:
    maker.run()
    assert viewer.get(f"{PAGE}?{query}").status_code == 404


def test_more_runs_than_fit_are_counted_in_words(viewer: Client, maker: Maker) -> None:
    made = maker.run("run 0")
    kept = [field.attname for field in Run._meta.concrete_fields if field.attname not in ("id", "name")]
    Run.objects.bulk_create(
        Run(**{name: getattr(made, name) for name in kept}, name=f"run {number}") for number in range(1, MOST_RUNS + 3)
    )
    page = words(html(viewer.get(address(*Run.objects.order_by("pk")))))
    assert "The address names 3 more runs than the 100 that are compared at once" in page


# ---------------------------------------------------------------- settings


def test_what_people_choose_first_comes_first_and_equal_fields_are_folded(maker: Maker) -> None:
    first = maker.run("a", seed=1, optim={"steps": 5, "lr": 1e-6})
    second = maker.run(
        "b",
        seed=2,
        optim={"steps": 5, "lr": 2e-6},
        sampling={"group_size": 4, "temperature": 0.5},
        traces={"groups_per_step": 3},
    )
    table = settings_table([first, second], first)
    assert [row.path for row in table.first] == ["sampling.group_size", "optim.lr", "seed"]
    assert [row.path for row in table.rest] == ["sampling.temperature", "traces.groups_per_step"]
    assert [cell.as_baseline for cell in table.first[0].cells] == [True, False]
    assert [cell.text for cell in table.first[0].cells] == ["8", "4"]
    assert ("Steps", "5") in table.equal
    assert table.seeds == {}


def test_a_setting_without_effect_is_not_among_those_that_matter(maker: Maker) -> None:
    """The KL estimator means nothing at β 0."""
    runs = [maker.run(name, algorithm={"kl": {"coef": 0, "estimator": name}}) for name in ("k1", "k2")]
    table = settings_table(runs, runs[0])
    assert table.differing == ()
    assert [row.path for row in table.idle] == ["algorithm.kl.estimator"]


def test_runs_that_differ_in_the_seed_alone_are_found(maker: Maker) -> None:
    one, two, other = (
        maker.run(f"seed {seed}", seed=seed, optim={"lr": lr}) for seed, lr in ((1, 1e-6), (2, 1e-6), (3, 1e-5))
    )
    assert settings_table([other, one, two], one).seeds == {one.pk: one.pk, two.pk: one.pk}


# ---------------------------------------------------------------- curves


def test_curves_hold_current_steps_on_every_axis(viewer: Client, maker: Maker) -> None:
    run, other = trained(maker, "a", [0.1, 0.2, 0.3]), trained(maker, "b", [0.5])
    Attempt.objects.filter(run=run).update(state="lost")
    second = maker.attempt(run)
    gone_on(second, 1)
    add_steps(second, [{"reward": 0.9, "num_tokens": 200.0}], first=2)
    got = viewer.get(address(run, other, part="series.json", metric="reward")).json()
    assert got == {
        "width": 1,
        "runs": {
            str(run.pk): {"step": [1, 2], "value": [0.1, 0.9]},
            str(other.pk): {"step": [1], "value": [0.5]},
        },
    }
    assert curves([run], "reward", axis="tokens").by_run[run.pk].x == (100.0, 200.0)
    assert curves([run], "reward", axis="samples").by_run[run.pk].x == (256.0, 512.0), "32 prompts by 8"
    began, later = curves([run], "reward", axis="time").by_run[run.pk].x
    assert began == 0
    assert later is not None
    assert later > 0
    assert curves([run], "seconds/sample").by_run[run.pk].value == (0.9, 0.9)
    assert curves([run], "never").by_run[run.pk].step == ()


def test_long_runs_keep_their_spikes_in_few_points(maker: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn from steps and drawn from buckets alike: 64 steps in stretches, one of them with a spike at step 21."""
    from django.db import connection

    from cohort.ingest.buckets import buckets_store
    from cohort.web.compare import curves as module
    from grpo_core.records.types import StepMetrics

    rewards = [5.0 if step == 21 else 0.1 for step in range(1, 65)]
    run = trained(maker, "long", rewards, optim={"steps": 64})
    attempt = run.attempts.get()
    monkeypatch.setattr(module, "POINTS", 12)
    monkeypatch.setattr(module, "FEWEST_POINTS", 12)
    by_step = curves([run], "reward")
    assert (by_step.width, by_step.by_run[run.pk].step) == (16, (16, 32, 48, 64))
    steps = [
        StepMetrics(step=step, metrics={"reward": reward}, seconds={"total": 1.0})
        for step, reward in enumerate(rewards, 1)
    ]
    connection.ensure_connection()
    with connection.connection.cursor() as cursor:
        buckets_store(cursor, attempt_id=attempt.pk, run_id=run.pk, steps=steps)
    monkeypatch.setattr(module, "MOST_ROWS", 20)
    by_bucket = curves([run], "reward")
    assert by_bucket == by_step
    assert by_bucket.by_run[run.pk].high == (0.1, 5.0, 0.1, 0.1)


def test_the_last_reward_is_the_mean_of_ten_steps(maker: Maker) -> None:
    """1 … 10 after a first step of 100: mean 5.5, sample variance 82.5/9."""
    run, empty = trained(maker, "a", [100.0, *map(float, range(1, 11))]), maker.run("empty")
    got = last_rewards([run, empty])
    assert got.keys() == {run.pk}
    assert (got[run.pk].mean, got[run.pk].steps) == (5.5, 10)
    assert got[run.pk].std == pytest.approx((82.5 / 9) ** 0.5)


# ---------------------------------------------------------------- evaluations


def test_runs_are_paired_with_the_baseline_on_the_same_items(viewer: Client, maker: Maker) -> None:
    """Baseline right on items 0–4 of 10, the other on 1–8: only there 5, 6, 7, 8 … of 10: 4 fixed, 1 broken.

    Difference +3/10. Tango's score interval of 4 against 1 in 10: −15.3 to +64.0 points. Exact McNemar of 1 against 4:
    2·(1 + 5)/32 = 0.375.
    """
    base = evaluated(maker, "base", [1, 1, 1, 1, 1, 0, 0, 0, 0, 0])
    other = evaluated(maker, "other", [0, 1, 1, 1, 1, 1, 1, 1, 1, 0])
    results = results_across([base, other])["heldout"]
    across = suite_across([base, other], base, "heldout", results)
    of_base, of_other = across.rows
    assert of_base.against is None
    assert of_base.reason == ""
    assert of_other.against is not None
    assert of_other.points is not None
    change = of_other.against["change"]
    assert (change["fixed"], change["broken"]) == (4, 1)
    assert of_other.points.difference == "+30.0"
    assert (of_other.points.low, of_other.points.high) == ("−15.3", "+64.0")
    assert of_other.p == pytest.approx(0.375)
    text = words(html(viewer.get(address(base, other, part="suite/", suite="heldout"))))
    assert "+30.0 points" in text
    assert "4 · 1 0.38" in text


def test_p_values_are_adjusted_over_the_runs_that_are_compared(maker: Maker) -> None:
    """Exact p of 5 against 0: 2/32 = 0.0625; of 6 against 0: 2/64 = 0.03125. By Holm 0.03125 · 2, then 0.0625."""
    base = evaluated(maker, "base", [0.0] * 8)
    five, six = evaluated(maker, "five", [1.0] * 5 + [0.0] * 3), evaluated(maker, "six", [1.0] * 6 + [0.0] * 2)
    across = suite_across([five, base, six], base, "heldout", results_across([five, base, six])["heldout"])
    assert [row.p for row in across.rows] == [pytest.approx(0.0625), None, pytest.approx(0.0625)]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"temperature": 1.0}, "another temperature"),
        ({"items_digest": "x", "reward_digest": "y"}, "other items, another reward"),
        ({"seed": 7}, ""),
    ],
)
def test_why_two_evaluations_are_not_compared(maker: Maker, changed: dict[str, Any], reason: str) -> None:
    base, other = evaluated(maker, "base", [1, 0]), evaluated(maker, "other", [1, 1])
    result = EvalResult.objects.get(run=other, phase="after")
    EvalResult.objects.filter(pk=result.pk).update(protocol=result.protocol | changed)
    across = suite_across([base, other], base, "heldout", results_across([base, other])["heldout"])
    assert across.rows[1].reason == reason
    assert (across.rows[1].against is None) == bool(reason)
    assert across.seeds_differ == ("seed" in changed)


def test_other_items_and_a_missing_evaluation_are_named(maker: Maker) -> None:
    base, other, none = (
        evaluated(maker, "base", [1, 0]),
        evaluated(maker, "other", [1, 1, 1]),
        maker.run("none", state="training"),
    )
    add_evaluation(maker.attempt(none), "before", [1, 0], suite="heldout")
    runs = [base, other, none]
    across = suite_across(runs, base, "heldout", results_across(runs)["heldout"])
    assert [row.reason for row in across.rows] == ["", "not the same items", "not evaluated after training"]


# ---------------------------------------------------------------- the table


def test_the_table_as_csv_and_markdown(viewer: Client, maker: Maker) -> None:
    base = evaluated(maker, "=cmd()", [1, 1, 1, 1, 1, 0, 0, 0, 0, 0], optim={"lr": 1e-6})
    other = evaluated(maker, "a|b", [1] * 10, optim={"lr": 2e-6})
    add_steps(base.attempts.get(), [{"reward": 0.25}, {"reward": 0.75}])
    answer = viewer.get(address(base, other, format="csv"))
    rows = list(csv.DictReader(io.StringIO(b"".join(answer).decode())))  # type: ignore[arg-type]
    assert rows[0]["name"] == "'=cmd()", "no formula"
    assert (rows[0]["optim.lr"], rows[1]["optim.lr"]) == ("1e-06", "2e-06")
    assert (rows[0]["reward mean"], rows[1]["reward mean"]) == ("0.5", "")
    assert float(rows[0]["heldout low"]) == pytest.approx(0.2366, abs=1e-4), "Wilson of 5 in 10"
    text = viewer.get(address(base, other, format="md")).content.decode()
    assert "a\\|b (run" in text.replace("\\(", "(")
    assert "50.0 % \\[23.7 %, 76.3 %\\]" in text.replace("\u00a0", " ")
    kinds = AuditEntry.objects.filter(kind="runs_compared_downloaded").order_by("pk")
    assert [json.loads(bytes(entry.body))["data"]["form"] for entry in kinds] == ["csv", "md"]


# ---------------------------------------------------------------- cost and safety


def test_pages_cost_the_same_queries_for_two_runs_and_for_six(viewer: Client, maker: Maker) -> None:
    runs = []
    for number in range(6):
        run = evaluated(maker, f"run {number}", [1, 0, number % 2], seed=number)
        attempt = run.attempts.get()
        add_steps(attempt, [{"reward": 0.1 * number}])
        add_group(attempt, [1.0, 0.0])
        runs.append(run)
    parts = {
        "": {},
        "series.json": {"metric": "reward", "x": "time"},
        "suite/": {"suite": "heldout"},
        "answers/": {},
    }
    for part, more in [*parts.items(), ("answers/", {"suite": "heldout"})]:
        few = queries(lambda part=part, more=more: viewer.get(address(*runs[:2], part=part, **more)))
        many = queries(lambda part=part, more=more: viewer.get(address(*runs, part=part, **more)))
        assert many == few <= 14, part


def test_hostile_names_and_texts_run_nowhere(viewer: Client, maker: Maker) -> None:
    runs = [trained(maker, HOSTILE, [0.5]), trained(maker, "plain", [0.5])]
    for run in runs:
        attempt = run.attempts.get()
        add_group(attempt, [1.0, 0.0], prompt=HOSTILE, answer=HOSTILE, completion=HOSTILE)
        add_evaluation(attempt, "after", [1, 0], suite=HOSTILE, completion=HOSTILE)
    for part, more in (("", {"hide": HOSTILE, "metric": HOSTILE}), ("answers/", {})):
        page = viewer.get(f"{PAGE}{part}", {"run": [run.pk for run in runs], **more}).content.decode()
        assert "&lt;script&gt;" in page
        assert not [raw for raw in ("<script>alert", "<b hx-get", "\u202e", "\x07") if raw in page]
    for part in ("suite/", "answers/"):
        page = viewer.get(f"{PAGE}{part}", {"run": [run.pk for run in runs], "suite": HOSTILE}).content.decode()
        assert "&lt;script&gt;" in page
        assert "<script>alert" not in page


def test_settings_that_differ_are_above_the_curves_and_an_unknown_metric_is_named(viewer: Client, maker: Maker) -> None:
    runs = [trained(maker, f"seed {seed}", [0.5], seed=seed) for seed in (1, 2)]
    for run in runs:
        add_steps(run.attempts.get(), [{"eval/heldout/score": 0.5}], first=2)
    page = html(viewer.get(f"{address(*runs, metric='nope')}&metric=eval/heldout/score"))
    assert page.index('id="settings"') < page.index('id="curves"')
    assert "Held-out problems while training" in page
    assert "none of these runs has recorded: nope" in words(page)
    cut = html(viewer.get(address(*runs, metric="a" * 78 + "\u202e" * 9)))
    assert f'{"a" * 78}<span class="unseen"' in cut
    assert r"\u202e</span>…</span>" in cut, "cut between characters, not within their markup"


@pytest.mark.parametrize("value", ["%00", "9" * 30, "%ED%A0%80", "-1", "a%00b", "1e999"])
def test_odd_values_in_the_address_are_no_error_of_ours(viewer: Client, maker: Maker, value: str) -> None:
    runs = [evaluated(maker, name, [1, 0]) for name in ("a", "b")]
    for run in runs:
        add_steps(run.attempts.get(), [{"reward": 0.5}])
    for part in ("", "series.json", "suite/", "answers/"):
        for name in ("baseline", "hide", "add", "metric", "x", "suite", "item", "items", "show", "format"):
            answer = viewer.get(address(*runs, part=part, **{"suite": "heldout", "metric": "reward", name: value}))
            assert answer.status_code in (200, 302), (part, name)
