"""Runs of before a run knew how many GPUs it needs, brought up to date by the SQL of their migration."""

from importlib import import_module

import pytest
from django.db import connection

from cohort.runs.models import Run
from cohort.runs.services import gpus_needed
from grpo_core.config import RunConfig
from tests.cases import cases
from tests.web.run_rows import Maker


@pytest.mark.parametrize(("engine", "before", "after"), cases("runs/gpus_of_earlier", "engine", "before", "after"))
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
