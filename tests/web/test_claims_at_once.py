"""Many workers at once, each with a connection of its own: no run is given twice, no limit is passed."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, transaction

from cohort.accounts.models import Project
from cohort.catalog.services import base_model_register, dataset_create, verifier_version_create
from cohort.nodes.leases import NotWaiting
from cohort.nodes.models import Node
from cohort.runs.models import Attempt, Run
from tests.factories.runs import Maker
from tests.processes import DEADLINE
from tests.web.conftest import PROBLEMS, R1_EXACT
from tests.web.control import claim, finish, node

pytestmark = pytest.mark.django_db(transaction=True)
CLAIMERS, RUNS = 8, 12
"""Runs of each of two projects, one of which may have three at once."""


@pytest.fixture
def limited(tiny_model_folder: str) -> Maker:
    project = Project.objects.get(slug="theirs")
    user = project.memberships.get().user
    Project.objects.filter(pk=project.pk).update(max_running=3)
    what = {"project": project, "actor": user}
    return Maker(
        project,
        user,
        base_model_register(**what, name="tiny", path=tiny_model_folder),
        dataset_create(**what, name="d", format="plain", chunks=[PROBLEMS]),
        verifier_version_create(**what, name="r", spec=R1_EXACT),
    )


def work(on: list[Node], begin: threading.Barrier, most: list[int], *, ends: bool) -> list[int]:
    """Claim until nothing is to be had, each on the next node unless it `ends`; what was claimed, in order."""
    taken = []
    try:
        begin.wait(timeout=DEADLINE)
        while True:
            try:
                attempt = claim(on[0 if ends else len(taken)], 0)
            except (NotWaiting, Run.DoesNotExist):
                return taken
            taken.append(attempt.run_id)
            most.append(Attempt.objects.filter(state="running", run__project__slug="theirs").count())
            if ends:
                finish(attempt, "failed", "reward_error")
    finally:
        connection.close()


@pytest.mark.parametrize("ends", [False, True])
def test_no_run_is_given_twice_and_no_limit_is_passed(maker: Maker, limited: Maker, ends: bool) -> None:
    for each in (maker, limited):
        for _ in range(RUNS):
            each.run(state="queued")
    begin, most = threading.Barrier(CLAIMERS), [0]
    each_has = 1 if ends else RUNS + 4
    nodes = [[node(f"gpu-{number}-{worker}") for worker in range(each_has)] for number in range(CLAIMERS)]
    with ThreadPoolExecutor(CLAIMERS) as pool:
        jobs = [pool.submit(work, each, begin, most, ends=ends) for each in nodes]
        taken = Counter(run_id for job in jobs for run_id in job.result())
    assert set(taken.values()) == {1}
    # Without ends, three of the limited project's run and the rest of it waits. With ends, a claimer that found the
    # limit reached has gone home, but the last one to finish a run of it continues.
    given = Run.objects.exclude(state="queued")
    assert given.filter(project=maker.project).count() == RUNS
    assert given.filter(project=limited.project).count() == (RUNS if ends else 3)
    assert Attempt.objects.count() == len(taken) == given.count()
    assert max(most) <= 3
    assert set(Attempt.objects.values_list("fence", flat=True)) == {1}


def test_a_claim_waits_for_a_person_who_holds_the_run_and_sees_what_they_did(maker: Maker) -> None:
    run, on = maker.run(state="queued"), node("gpu-1")
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

    def worker() -> None:
        try:
            with pytest.raises(NotWaiting, match="is paused, not queued"):
                claim(on, run.pk)
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        pausing = pool.submit(person)
        assert held.wait(timeout=DEADLINE)
        claiming = pool.submit(worker)
        while not someone_waits():
            assert not claiming.done()
        free.set()
        pausing.result()
        claiming.result()


def someone_waits() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        return bool(cursor.fetchone()[0])
