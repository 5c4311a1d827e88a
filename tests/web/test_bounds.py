"""What one request may cost: a page of a list and a file of any length take the memory of one page, a poll a handful of
queries, and what it shows is prepared once for all viewers of a role."""

import re
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from django.core.cache import cache
from django.http import HttpResponse
from django.test import Client

from cohort.accounts.models import Membership, Project, Role, User
from cohort.accounts.services import membership_set
from cohort.audit import services as audit
from cohort.catalog.models import EvalSuiteVersion, VerifierVersion
from cohort.lab.models import LabJob
from cohort.nodes.models import Node
from cohort.runs.models import Checkpoint, EvalItem, EvalResult, ImportedResult, Run, StepMetric
from cohort.runs.run_values import config_values_store
from cohort.web import context
from cohort.web.context import prepared
from tests.factories.runs import Maker, add_checkpoint, add_evaluation, add_steps
from tests.factories.stock import R1_EXACT
from tests.factories.suites import add_suite
from tests.web.control import poll_of
from tests.web.pages import html
from tests.web.run_page import page_of, queries

FEW, MANY = 120, 1200
"""Rows of a list: more than a page has, and ten times as many."""
LINES, MORE_LINES = 1000, 4000
"""Rows of a file: more than are read at once, and four times as many."""


def copies(row: Any, count: int, **fields: Callable[[int], Any]) -> list[Any]:
    """New rows like this one, but for `fields`, which are given the number of each; stored."""
    model = type(row)
    kept = {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields if not field.primary_key}
    start = model.objects.count()
    made = [model(**kept | {name: made(start + n) for name, made in fields.items()}) for n in range(count)]
    return list(model.objects.bulk_create(made))


@pytest.fixture
def finished(maker: Maker) -> Run:
    run = maker.run("listed", state="succeeded")
    attempt = maker.attempt(run, state="finished")
    add_steps(attempt, [{"reward": 0.5}])
    add_checkpoint(attempt, 0)
    for phase, score in (("before", 0.0), ("after", 1.0)):
        add_evaluation(attempt, phase, [score])
    return run


# ---------------------------------------------------------------- lists


def _runs(run: Run, count: int) -> None:
    copies(run, count, name=lambda n: f"run {n}")
    for copy in Run.objects.filter(values=None):
        config_values_store(run_id=copy.pk)


def _events(run: Run, count: int) -> None:
    data = {"data": lambda n: {"n": n}}
    copies(run.events.order_by("pk")[0], count, message=lambda n: f"event {n}", **data)


def _attempts(run: Run, count: int) -> None:
    digests: dict[str, Callable[[int], Any]] = {"token_digest": lambda n: f"{n:064d}", "state": lambda n: "failed"}
    copies(run.attempts.get(fence=1), count, fence=lambda n: n + 1, **digests)


def _checkpoints(run: Run, count: int) -> None:
    copies(Checkpoint.objects.filter(run=run)[0], count, step=lambda n: n, seq=lambda n: 10**6 + n)


def _more_items(run: Run, count: int) -> None:
    """The same problems before and after."""
    EvalResult.objects.filter(run=run, phase="before").update(seq=10**9)
    EvalResult.objects.filter(run=run, phase="after").update(seq=10**9 + 1)
    start = EvalItem.objects.filter(run=run, phase="before").count()
    for phase, first in (("before", 10**6), ("after", 10**7)):
        item = EvalItem.objects.filter(run=run, phase=phase)[0]
        fields = {f.attname: getattr(item, f.attname) for f in item._meta.concrete_fields if not f.primary_key}
        EvalItem.objects.bulk_create(
            EvalItem(**fields | {"problem_id": f"p{n}", "seq": first + n}) for n in range(start, start + count)
        )


def _imported(run: Run, count: int) -> None:
    stated = {
        "tool": "inspect",
        "phase": "before",
        "task": "t",
        "value": 0.5,
        "file_name": "f",
        "file_sha256": "0" * 64,
    }
    rows = (ImportedResult(run=run, by=run.created_by, metric=f"m{n}", **stated) for n in range(count))
    ImportedResult.objects.bulk_create(rows)


def _superseded(run: Run, count: int) -> None:
    run.attempts.filter(fence=1).update(valid_through=-1)
    if not run.attempts.filter(fence=2).exists():
        copies(
            run.attempts.get(fence=1),
            1,
            fence=lambda n: 2,
            token_digest=lambda n: "9" * 64,
            valid_through=lambda n: None,
        )
    copies(EvalResult.objects.filter(run=run, phase="before")[0], count, seq=lambda n: 10**6 + n)


def _people(run: Run, count: int) -> None:
    start = User.objects.count()
    users = User.objects.bulk_create(User(username=f"person {start + n}") for n in range(count))
    Membership.objects.bulk_create(Membership(project=run.project, user=user) for user in users)


def _projects(run: Run, count: int) -> None:
    start = Project.objects.count()
    made = Project.objects.bulk_create(Project(slug=f"p-{start + n}", name=f"p {start + n}") for n in range(count))
    Membership.objects.bulk_create(Membership(project=one, user=run.created_by, role=Role.ADMIN) for one in made)


def _rewards(run: Run, count: int) -> None:
    made = copies(run.verifier_version.verifier, count, name=lambda n: f"reward {n}")
    version = {"number": 1, "spec": R1_EXACT, "digest": "0" * 64}
    VerifierVersion.objects.bulk_create(VerifierVersion(verifier=one, **version) for one in made)


def _versions(run: Run, count: int) -> None:
    copies(run.verifier_version, count, number=lambda n: n + 1)


def _suites(run: Run, count: int) -> None:
    first = EvalSuiteVersion.objects.first() or add_suite(run.project, run.created_by)
    made = copies(first.suite, count, name=lambda n: f"suite-{n}")
    fields = {f.attname: getattr(first, f.attname) for f in first._meta.concrete_fields if not f.primary_key}
    EvalSuiteVersion.objects.bulk_create(EvalSuiteVersion(**fields | {"suite_id": one.pk}) for one in made)


def _jobs(run: Run, count: int) -> None:
    job = {
        "project": run.project,
        "kind": "estimate",
        "spec": R1_EXACT,
        "state": "waiting",
        "created_by": run.created_by,
    }
    LabJob.objects.bulk_create(LabJob(**job) for _ in range(count))


def _nodes(run: Run, count: int) -> None:
    copies(Node.objects.all()[0], count, name=lambda n: f"node {n}", token_digest=lambda n: f"{n:064d}")


def _entries(run: Run, count: int) -> None:
    for n in range(count):
        audit.log(actor="user:alice", kind="run_cancelled", subject=f"run:{n}", project=run.project)


LISTS: dict[str, Callable[[Run, int], None]] = {
    "runs/{run}/events/": _events,
    "runs/{run}/attempts/": _attempts,
    "runs/{run}/attempts/?all=1": _checkpoints,
    "runs/{run}/evaluations/?show=all": _more_items,
    "runs/{run}/evaluations/": _imported,
    "runs/{run}/evaluations/?superseded=1": _superseded,
    "runs/": _runs,
    "members/": _people,
    "../../projects/": _projects,
    "models/": lambda run, count: [copies(run.base_model, count, name=lambda n: f"m {n}")][:0],
    "datasets/": lambda run, count: [copies(run.dataset, count, name=lambda n: f"d {n}")][:0],
    "rewards/": _rewards,
    "rewards/{verifier}/": _versions,
    "rewards/{verifier}/compare/": _versions,
    "lab/": _jobs,
    "suites/": _suites,
    "nodes/": _nodes,
    "audit/": _entries,
}
"""Address below the project → what adds to its list."""
MOST_ROWS = 600
"""With the choices in each of them; far fewer than there are."""


def peak(get: Callable[[], Any]) -> int:
    """Bytes that the most of Python's objects at once took while this ran."""
    tracemalloc.start()
    try:
        get()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("address", LISTS)
def test_a_list_costs_the_same_however_long_it_is(admin: Client, finished: Run, address: str) -> None:
    where = "/p/ours/" + address.format(run=finished.pk, verifier=finished.verifier_version.verifier_id)
    where = where.replace("/p/ours/../../", "/")
    pages: list[HttpResponse] = []
    LISTS[address](finished, FEW)
    admin.get(where)  # templates are compiled and statistics kept
    few = peak(lambda: pages.append(admin.get(where)))
    LISTS[address](finished, MANY - FEW)
    admin.get(where)
    many = peak(lambda: pages.append(admin.get(where)))
    rows = [len(re.findall(r"<(?:tr|article|option)\b", html(page))) for page in pages]
    assert [page.status_code for page in pages] == [200, 200]
    assert max(rows) <= MOST_ROWS
    assert min(rows) > 10, "the rows are on the page"
    assert many < 1.5 * few + 500_000


# ---------------------------------------------------------------- files


def _steps(run: Run, count: int) -> None:
    copies(StepMetric.objects.filter(run=run)[0], count, step=lambda n: n + 1, seq=lambda n: 10**6 + n)


FILES: dict[str, Callable[[Run, int], None]] = {
    "runs/{run}/metrics.csv": _steps,
    "audit/entries.csv": _entries,
    "audit/entries.jsonl": _entries,
}


@pytest.mark.parametrize("address", FILES)
def test_a_file_is_sent_as_it_is_read(admin: Client, finished: Run, address: str) -> None:
    where = f"/p/ours/{address.format(run=finished.pk)}"
    lines: list[int] = []

    def read() -> None:
        response: Any = admin.get(where)
        assert response.streaming
        lines.append(sum(1 for _ in response))

    FILES[address](finished, LINES)
    read()
    few = peak(read)
    FILES[address](finished, MORE_LINES - LINES)
    many = peak(read)
    assert lines[-1] - lines[-2] >= MORE_LINES - LINES, "every row is in the file"
    assert many < 1.3 * few + 200_000


# ---------------------------------------------------------------- polls


@pytest.fixture
def live(maker: Maker) -> Run:
    run = maker.run(state="training")
    add_steps(maker.attempt(run), [{"reward": 0.5}, {"reward": 0.6}])
    return run


def test_a_poll_takes_few_queries(viewer: Client, live: Run) -> None:
    """Session, person, then: the run with the person's role and its attempt; or what else is named."""
    page = page_of(viewer, live)
    assert 'data-slowest="2000"' in page, "polls stay this near to each other, so that a step is seen within 3 s"
    address = poll_of(page)
    assert queries(lambda: viewer.get(address)) == 4
    epoch = {"after": "2", "epoch": ""}
    assert viewer.get(f"/p/ours/runs/{live.pk}/series.json", epoch).status_code == 204
    assert queries(lambda: viewer.get(f"/p/ours/runs/{live.pk}/series.json", epoch)) == 3, "the run alone"
    assert queries(lambda: viewer.get("/p/ours/counts/")) == 4, "membership, counts"


def test_what_changed_is_prepared_once_for_all_of_a_role(
    viewer: Client, admin: Client, stranger: Client, live: Run
) -> None:
    address, of_admin = poll_of(page_of(viewer, live)), poll_of(page_of(admin, live))
    add_steps(live.attempts.get(), [{"reward": 0.7}], first=3)
    first, again = html(viewer.get(address)), []
    assert 'data-step="3"' in first
    assert queries(lambda: again.append(html(viewer.get(address)))) == 4
    assert again == [first]
    assert "pause-run" not in first
    assert "pause-run" in html(admin.get(of_admin)), "not what was prepared for viewers"
    assert stranger.get(address).status_code == 404
    for _ in range(2):
        series = viewer.get(f"/p/ours/runs/{live.pk}/series.json", {"after": "2", "epoch": ""})
        assert series.json()["step"] == [3]


def test_what_is_prepared_takes_no_more_room_than_a_few_dozen_parts() -> None:
    """One viewer may ask for the charts beyond any step, each time by another address."""
    tracemalloc.start()
    try:
        for name in range(1000):
            prepared(f"charts-beyond-{name}", lambda: "x" * 100_000)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 100 * 100_000


def test_what_is_prepared_of_prepared_parts_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slot:
        """A lock that fails where another would wait for ever."""

        held = False

        def __enter__(self) -> None:
            assert not self.held, "this thread waits for itself"
            self.held = True

        def __exit__(self, *_: object) -> None:
            self.held = False

    monkeypatch.setattr(context, "_PREPARING", (Slot(),))
    made = iter(("inner", "never"))
    for _ in range(2):
        assert (
            prepared("an-outer-part", lambda: f"around {prepared('an-inner-part', lambda: next(made))}")
            == "around inner"
        )
    with pytest.raises(ZeroDivisionError):
        prepared("a-part-that-fails", lambda: str(1 // 0))
    assert prepared("a-part-after-it", lambda: "text") == "text"


def test_nothing_of_a_person_is_in_what_others_get(
    ours: Project, alice: User, oscar: User, charlie: User, live: Run
) -> None:
    """Both are operators: the second gets what was prepared for the first, with a token that is good for the second
    alone."""
    membership_set(project=ours, actor=alice, user=charlie, role=Role.OPERATOR)
    clients = [Client(enforce_csrf_checks=True) for _ in range(2)]
    for client, user in zip(clients, (oscar, charlie), strict=True):
        client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    address = poll_of(page_of(clients[0], live))
    cache.clear()
    add_steps(live.attempts.get(), [{"reward": 0.7}], first=3)
    parts = [html(client.get(address)) for client in clients]
    tokens = [re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', part)[0] for part in parts]
    assert parts[0].replace(tokens[0], "") == parts[1].replace(tokens[1], "")
    assert not any(user.username in part for user in (oscar, charlie) for part in parts)
    pause = f"/p/ours/runs/{live.pk}/pause/"
    assert clients[1].post(pause, {"csrfmiddlewaretoken": tokens[0]}).status_code == 403
    assert clients[1].post(pause, {"csrfmiddlewaretoken": tokens[1]}).status_code == 302


def test_the_role_of_a_poll_is_the_person_s_own(stranger: Client, viewer: Client, ours: Project, live: Run) -> None:
    """Also where the person has another role in another project, and the project many members."""
    address = poll_of(page_of(viewer, live))
    assert stranger.get(address).status_code == 404
    Membership.objects.filter(project=ours, user__username="bob").delete()
    assert viewer.get(address).status_code == 404
