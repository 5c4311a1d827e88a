"""Runs of before a run knew how many GPUs it needs, brought up to date by the migration itself."""

from typing import Any

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from cohort.runs.models import Run, RunEvent
from cohort.runs.services import gpus_needed
from grpo_core.config import RunConfig
from tests.web.run_rows import Maker

CASES: list[tuple[dict[str, Any], int, int]] = [
    ({"device": "cuda"}, 0, 1),  # a config of before there were devices
    ({"device": "cuda", "devices": 1}, 0, 1),
    ({"device": "cuda", "devices": 4}, 0, 4),
    ({"device": "auto"}, 0, 0),
    ({"device": "auto", "devices": 1}, 0, 0),
    ({"device": "auto", "devices": 2}, 0, 2),
    ({"device": "cpu", "devices": 4}, 0, 0),
    ({"device": "cuda", "devices": 8}, 8, 8),
]
"""(engine, gpus before, gpus after)"""


@pytest.mark.django_db(transaction=True)
def test_earlier_runs_need_as_many_gpus_as_their_configs_say(maker: Maker) -> None:
    """Whatever state they are in: one that has ended may be retried."""
    runs = [maker.run(state=("queued", "failed", "training", "paused")[place % 4]) for place in range(len(CASES))]
    events = RunEvent.objects.count()
    try:
        MigrationExecutor(connection).migrate([("runs", "0006_claim_id")])
        # Only columns that the tables had then are named here.
        for run, (engine, gpus, _) in zip(runs, CASES, strict=True):
            Run.objects.filter(pk=run.pk).update(config=run.config | {"engine": engine}, gpus=gpus)
    finally:
        newest = MigrationExecutor(connection)
        newest.migrate(newest.loader.graph.leaf_nodes())
    for run, (_, _, wanted) in zip(runs, CASES, strict=True):
        state = run.state
        run.refresh_from_db()
        assert (run.gpus, run.state) == (wanted, state), run.config["engine"]
        assert run.gpus == gpus_needed(RunConfig.from_whole(run.config)), "as a run that is made now"
    assert RunEvent.objects.count() == events
