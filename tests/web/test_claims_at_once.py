"""Many workers at once, each with a connection of its own: no run is given twice, no limit is passed."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, transaction

from cohort.accounts.models import Project, User
from cohort.accounts.services import project_create, user_create
from cohort.catalog.services import base_model_register, dataset_create, verifier_version_create
from cohort.runs.attempts import NotWaiting
from cohort.runs.models import Attempt, Node, Run
from tests.processes import DEADLINE
from tests.web.conftest import PASSWORD, PROBLEMS, R1_EXACT
from tests.web.control import claim, finish, node
from tests.web.run_rows import Maker

CLAIMERS, RUNS = 8, 30


@pytest.fixture
def makers(transactional_db: None, tiny_model_folder: str) -> list[Maker]:
    """Two projects; the second may have three runs at once."""
    alice = user_create(username="alice", password=PASSWORD)[0]
    made = [_maker(alice, slug, tiny_model_folder) for slug in ("free", "limited")]
    Project.objects.filter(pk=made[1].project.pk).update(max_running=3)
    return made


def _maker(user: User, slug: str, folder: str) -> Maker:
    project = project_create(slug=slug, name=slug, owner=user)
    return Maker(
        project,
        user,
        base_model_register(project=project, actor=user, name="tiny", path=folder),
        dataset_create(project=project, actor=user, name="d", format="jsonl", chunks=[PROBLEMS], source="tests"),
        verifier_version_create(project=project, actor=user, name="r", spec=R1_EXACT),
    )


def _work(on: Node, begin: threading.Barrier, most: list[int], limited: int, *, ends: bool) -> list[int]:
    """Claim until nothing is to be had; what was claimed, in order."""
    taken = []
    try:
        begin.wait(timeout=DEADLINE)
        while True:
            try:
                attempt = claim(on, 0)
            except (NotWaiting, Run.DoesNotExist):
                return taken
            taken.append(attempt.run_id)
            most.append(Attempt.objects.filter(state="running", run__project=limited).count())
            if ends:
                finish(attempt, "failed", "reward_error")
    finally:
        connection.close()


@pytest.mark.parametrize("ends", [False, True])
def test_thirty_runs_and_eight_claimers(makers: list[Maker], ends: bool) -> None:
    free, limited = makers
    for maker in makers:
        for _ in range(RUNS // 2):
            maker.run(state="queued")
    nodes = [node(f"gpu-{number}") for number in range(CLAIMERS)]
    begin, most = threading.Barrier(CLAIMERS), [0]
    with ThreadPoolExecutor(CLAIMERS) as pool:
        jobs = [pool.submit(_work, one, begin, most, limited.project.pk, ends=ends) for one in nodes]
        taken = [run_id for job in jobs for run_id in job.result()]
    assert [count for count in Counter(taken).values() if count > 1] == []
    # Without ends, three of the limited project's run and the rest of it waits. With ends, a claimer that found the
    # limit reached has gone home, but the last one to finish a run of it goes on.
    given = Run.objects.exclude(state="queued")
    assert given.filter(project=free.project).count() == RUNS // 2
    assert given.filter(project=limited.project).count() == (RUNS // 2 if ends else 3)
    assert Attempt.objects.count() == len(taken) == given.count()
    assert max(most) <= 3
    assert set(Attempt.objects.values_list("fence", flat=True)) == {1}


def test_a_limit_holds_while_a_person_holds_the_run(makers: list[Maker]) -> None:
    """A claim waits for whoever holds the row, and then sees what they did."""
    run = makers[0].run(state="queued")
    on = node("gpu-1")
    held, free = threading.Event(), threading.Event()

    def person() -> None:
        try:
            with transaction.atomic():
                Run.objects.select_for_update().get(pk=run.pk)
                held.set()
                free.wait(timeout=DEADLINE)
                Run.objects.filter(pk=run.pk).update(state="paused")
        finally:
            connection.close()

    def worker() -> str:
        try:
            claim(on, run.pk)
        except NotWaiting as why:
            return str(why)
        finally:
            connection.close()
        return "claimed"

    with ThreadPoolExecutor(2) as pool:
        pausing = pool.submit(person)
        assert held.wait(timeout=DEADLINE)
        claiming = pool.submit(worker)
        while not _someone_waits():
            assert not claiming.done()
        free.set()
        pausing.result()
        assert claiming.result() == f"run {run.pk} is paused, not queued, and no other waits for gpu-1"


def _someone_waits() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        return cursor.fetchone()[0] > 0
