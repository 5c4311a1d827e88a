"""Runs of before a run knew how many GPUs it needs, brought up to date by the SQL of their migration."""

from importlib import import_module

import pytest
from django.db import connection

from cohort.runs.models import Run
from cohort.runs.services import gpus_needed
from grpo_core.config import RunConfig
from tests.web.run_rows import Maker


@pytest.mark.parametrize(
    ("engine", "before", "after"),
    [
        ({"device": "cuda"}, 0, 1),  # a config of before there were devices
        ({"device": "cuda", "devices": 1}, 0, 1),
        ({"device": "cuda", "devices": 4}, 0, 4),
        ({"device": "auto"}, 0, 0),
        ({"device": "auto", "devices": 1}, 0, 0),
        ({"device": "auto", "devices": 2}, 0, 2),
        ({"device": "cpu", "devices": 4}, 0, 0),
        ({"device": "cuda", "devices": 8}, 8, 8),
    ],
)
def test_an_earlier_run_needs_as_many_gpus_as_its_config_names(
    maker: Maker, engine: dict[str, object], before: int, after: int
) -> None:
    run = maker.run(state="failed")
    Run.objects.filter(pk=run.pk).update(config=run.config | {"engine": engine}, gpus=before)
    with connection.cursor() as cursor:
        cursor.execute(import_module("migrations.runs.0007_gpus_of_earlier_runs").BACKFILL)
    run.refresh_from_db()
    assert (run.gpus, run.state) == (after, "failed")
    assert run.gpus == gpus_needed(RunConfig.from_whole(run.config)), "as a run that is made now"
