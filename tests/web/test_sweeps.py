"""Sweeps: lists of values in the form become runs that are checked first and launched together or not at all."""

from html import unescape

import pytest
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.audit.models import AuditEntry
from cohort.evidence.preregistration import REGISTERED
from cohort.launch.sweeps import MAX_RUNS, sweep_cancel
from cohort.runs.models import Priority, Run, Sweep
from cohort.runs.schedule import queue
from cohort.web.launch.run_form import RunForm
from cohort.web.launch.sweep import SweepPlan, sweep_plan
from tests.factories.runs import Maker, add_evaluation, put_in
from tests.web.form_page import as_browser
from tests.web.pages import html
from tests.web.records.records import logged
from tests.web.run_page import queries, words

NEW = "/p/ours/runs/new/"
HTMX = {"HX-Request": "true"}


def planned(maker: Maker, chosen: dict[str, str], text: str, **other: str) -> SweepPlan:
    form = RunForm.posted(maker.project, chosen | {"sweep": text} | other)
    form.check()
    plan = sweep_plan(form)
    assert plan is not None
    return plan


@pytest.mark.parametrize(
    ("text", "how", "runs"),
    [
        ("G: 4, 8\nseed: 1, 2", "product", [("4", "1"), ("4", "2"), ("8", "1"), ("8", "2")]),
        ("G: 4, 8\nseed: 1, 2", "zip", [("4", "1"), ("8", "2")]),
        ("optim.lr: 1e-6..1e-4 log 3", "product", [("1e-06",), ("1e-05",), ("0.0001",)]),
        ("β: 0..0.1 3", "product", [("0",), ("0.05",), ("0.1",)]),
        ("variant: group/group_std/0, group/none/0", "product", [("group/group_std/0",), ("group/none/0",)]),
        ("checkpoints.best: on, off", "product", [("true",), ("false",)]),
        ("Group size G: 4\n\nlr: 1e-6", "product", [("4", "1e-6")]),
    ],
)
def test_lists_become_runs(
    maker: Maker, chosen: dict[str, str], text: str, how: str, runs: list[tuple[str, ...]]
) -> None:
    plan = planned(maker, chosen, text, sweep_how=how)
    assert (plan.faults, [run.values for run in plan.runs], plan.ready) == ((), runs, True)
    assert len({config.digest() for config in plan.configs}) == len(runs)


@pytest.mark.parametrize(
    ("text", "how", "word"),
    [
        ("G 4, 8", "product", "line 1: write a field"),
        ("reward: 1", "product", "line 1: reward is no field"),
        ("data.template: a, b", "product", "line 1: data.template is no field"),
        ("G: 4\nG: 8", "product", "line 2: sampling.group_size has a line already"),
        ("G: 4, 4", "product", "line 1: G has a value twice"),
        ("G: 4,, 8", "product", "line 1: a value is missing"),
        ("lr: 1e-6..1e-5", "product", "line 1: 1e-6..1e-5: a range is written"),
        ("lr: 0..1 log 3", "product", "a log range is between numbers above 0"),
        ("lr: 1..2 99", "product", "a range has 2 to"),
        ("G: 4, 8\nseed: 1", "zip", "different lengths (1, 2)"),
        ("G: 4, 8", "chain", "combine is one of"),
        (f"seed: 0..{MAX_RUNS - 1} {MAX_RUNS}\nG: 4, 8", "product", "these are 64 runs; a sweep has 32 at most"),
    ],
)
def test_a_faulty_sweep_says_where(maker: Maker, chosen: dict[str, str], text: str, how: str, word: str) -> None:
    plan = planned(maker, chosen, text, sweep_how=how)
    assert len(plan.faults) == 1
    assert word in plan.faults[0]
    assert not plan.ready


def test_a_faulty_combination_is_named_and_nothing_is_launched(operator: Client, chosen: dict[str, str]) -> None:
    sent = chosen | {"sweep": "G: 4, 1, 8"}
    answer = html(operator.post(NEW, sent | {"action": "check"}, headers=HTMX))
    assert "Sweep: 3 runs" in answer
    assert answer.count('class="wrong anywhere"') == 1, "that of G 1"
    assert "1 of the sweep's 3 runs is not valid" in unescape(answer)
    assert operator.post(NEW, sent | {"action": "launch"}).status_code == 422
    assert not Run.objects.exists()
    assert not Sweep.objects.exists()


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        ("1,,x", "write a field, a colon and its values"),
        ("lr: 1,,x", "a value is missing"),
        ("lr: " + ", ".join(f"{number}e-6" for number in range(1, 10_001)), "10,000 runs"),
        ("lr: 1e-5, abc", "1 of its runs is not valid"),
    ],
)
def test_a_fault_is_beneath_the_lines_which_stay(
    operator: Client, chosen: dict[str, str], lines: str, word: str
) -> None:
    answer = operator.post(NEW, chosen | {"sweep": lines, "action": "launch"})
    page = html(answer)
    assert (answer.status_code, f"{lines}</textarea>" in page) == (422, True)
    assert word in page.partition('id="said-f-sweep"')[2].partition('class="help"')[0]


def test_a_sweep_is_launched_whole_with_low_priority_and_once(
    operator: Client, chosen: dict[str, str], oscar: User, maker: Maker
) -> None:
    sent = as_browser(html(operator.get(NEW))) | chosen | {"sweep": "G: 4, 8\nseed: 1, 2", "action": "launch"}
    sent["hypotheses"] = "Accuracy rises with G."
    first, second = (operator.post(NEW, sent) for _ in range(2))
    sweep = Sweep.objects.get()
    assert first["Location"] == second["Location"] == f"/p/ours/sweeps/{sweep.pk}/"
    runs = list(sweep.runs.order_by("pk"))
    assert [(run.config["sampling"]["group_size"], run.config["seed"]) for run in runs] == [
        *((4, 1), (4, 2), (8, 1), (8, 2))
    ]
    assert {(run.state, run.priority, run.created_by) for run in runs} == {("queued", Priority.LOW, oscar)}
    assert runs[0].name == "adder · G 4 · seed 1"
    assert AuditEntry.objects.filter(kind="sweep_launched").count() == 1
    registered = [
        (body["subject"], body["data"]["config_sha256"], body["data"]["hypotheses"]) for body in logged(REGISTERED)
    ]
    assert registered == [(f"run:{run.pk}", run.config_digest, ["Accuracy rises with G."]) for run in runs]
    assert len({run.config_digest for run in runs}) == 4, "each run's own entry, of its own config"
    single = maker.launched("single", eval={"holdout": 4})
    assert queue().order()[0] == single, "what else the project launches goes first"
    page = html(operator.get("/p/ours/sweeps/"))
    assert f'href="/p/ours/sweeps/{sweep.pk}/"' in page
    assert "4, 8" in page
    listed = html(operator.get("/p/ours/runs/", {"q": f'sweep="{sweep.name}"', "columns": "state,sweep"}))
    assert all(f'href="/p/ours/runs/{run.pk}/"' in listed for run in runs)
    alone = html(operator.get("/p/ours/runs/", {"q": "sweep=none"}))
    assert f'href="/p/ours/runs/{single.pk}/"' in alone
    assert f'href="/p/ours/runs/{runs[0].pk}/"' not in alone
    page = html(operator.get(f"/p/ours/sweeps/{sweep.pk}/"))
    assert [f'href="/p/ours/runs/{run.pk}/"' in page for run in runs] == [True] * 4
    assert f"compare/?run={runs[0].pk}&amp;run={runs[1].pk}" in page
    assert f'href="/p/ours/sweeps/{sweep.pk}/"' in html(operator.get(f"/p/ours/runs/{runs[0].pk}/"))


def test_all_or_none(operator: Client, chosen: dict[str, str], ours: Project) -> None:
    Project.objects.filter(pk=ours.pk).update(max_waiting_runs=2)
    answer = operator.post(NEW, chosen | {"sweep": "seed: 1, 2, 3", "action": "launch"})
    assert answer.status_code == 422
    assert (Run.objects.count(), Sweep.objects.count()) == (0, 0)
    assert operator.post(NEW, chosen | {"sweep": "seed: 1, 2", "action": "launch"}).status_code == 302
    assert Run.objects.count() == 2


def test_all_of_it_is_cancelled(operator: Client, viewer: Client, chosen: dict[str, str], alice: User) -> None:
    operator.post(NEW, chosen | {"sweep": "seed: 1, 2, 3", "action": "launch"})
    sweep = Sweep.objects.get()
    ended, sealing, _ = sweep.runs.order_by("pk")
    put_in(ended, "failed")
    put_in(sealing, "sealing")
    address = f"/p/ours/sweeps/{sweep.pk}/"
    assert viewer.post(f"{address}cancel/").status_code == 403
    assert "Cancel all" not in html(viewer.get(address))
    operator.post(f"{address}cancel/")
    assert [run.state for run in sweep.runs.order_by("pk")] == ["failed", "sealing", "cancelled"]
    assert sweep_cancel(sweep=sweep, actor=alice) == 0


def test_each_run_has_its_score_after_training(operator: Client, chosen: dict[str, str], maker: Maker) -> None:
    operator.post(NEW, chosen | {"sweep": "seed: 1, 2", "action": "launch"})
    sweep = Sweep.objects.get()
    address = f"/p/ours/sweeps/{sweep.pk}/"
    assert "Held-out problems, after" not in html(operator.get(address)), "while none has one"
    first, _ = sweep.runs.order_by("pk")
    add_evaluation(maker.attempt(first), "after", [1, 1, 1, 0], suite="heldout")
    page = words(html(operator.get(address)))
    assert "Held-out problems, after" in page
    assert "75.0 % [30.1 %, 95.4 %]" in page  # Wilson's interval of 3 of 4


def test_the_page_costs_the_same_however_many_runs(operator: Client, chosen: dict[str, str], maker: Maker) -> None:
    operator.post(NEW, chosen | {"sweep": "seed: 1, 2", "action": "launch"})
    operator.post(NEW, chosen | {"sweep": f"seed: 3..{MAX_RUNS + 2} {MAX_RUNS}", "action": "launch"})
    for run in Run.objects.exclude(sweep=None):
        add_evaluation(maker.attempt(run), "after", [1, 0])
    few, many = (f"/p/ours/sweeps/{sweep.pk}/" for sweep in Sweep.objects.order_by("pk"))
    assert queries(lambda: operator.get(many)) == queries(lambda: operator.get(few))
