"""A run of kind sample from its launch through a real worker and the real trainer to the dataset in the catalog."""

import json
from pathlib import Path

from cohort.base import artifacts
from cohort.catalog.models import PromptDataset
from cohort.launch.creation import run_launch
from cohort.runs.models import RunEvent, RunState, StepMetric
from tests.factories.runs import UNPROBED
from tests.processes import wait_for
from tests.worker.conftest import Site, celery_worker, wait_offering

SMALL = {
    "data": {"limit": 5},
    "sampling": {"group_size": 2, "prompts_per_step": 2, "max_completion_tokens": 4},
    "engine": {"device": "cpu", "threads": 1},
    "rows": "scores",
}


def test_from_launch_to_the_catalog(tiny: Site, tmp_path: Path) -> None:
    with celery_worker(tiny, tmp_path):
        run = run_launch(
            project=tiny.project,
            actor=tiny.actor,
            kind="sample",
            name="answers",
            base_model=tiny.base_model,
            dataset=tiny.dataset,
            verifier_version=tiny.verifier_version,
            settings=SMALL,
            probe_override=UNPROBED,
        )

        def ended() -> bool:
            run.refresh_from_db()
            return run.state in (RunState.SEALING, RunState.FAILED, RunState.CANCELLED)

        wait_offering(ended, "the run ends")
        log = (tmp_path / "worker.log").read_text()
        assert run.state == RunState.SEALING, (run.reason, run.log_tail, log)
        wait_for(lambda: PromptDataset.objects.filter(sampled_by=run).exists(), "its dataset is there")
    assert (run.step, run.steps_total, run.phase) == (3, 3, "sampling")
    dataset = PromptDataset.objects.get(sampled_by=run)
    assert (dataset.name, dataset.content, dataset.format) == ("answers", "preferences", "scores")
    rows = [json.loads(line) for line in b"".join(artifacts.read_chunks(dataset.artifact)).splitlines()]
    assert len(rows) == dataset.problems
    assert {row["from"]["step"] for row in rows} <= {1, 2, 3}
    assert sum(metric["dataset/kept"] for metric in StepMetric.objects.values_list("metrics", flat=True)) > 0
    moves = list(RunEvent.objects.filter(run=run, kind="state").values_list("data__to", flat=True))
    assert moves == ["queued", "starting", "training", "sealing"]
