"""Runs of other kinds than GRPO through a real Celery worker and the real trainer, on a tiny model: conversations that
were uploaded are learned from, problems are sampled into a dataset, and a small model learns from that."""

from pathlib import Path
from typing import Any

import pytest

from cohort.catalog.models import PromptDataset
from cohort.launch.creation import run_launch
from cohort.runs.models import Attempt, Checkpoint, Run, RunState, StepMetric
from tests.factories.kinds import conversation, conversations, lines
from tests.factories.runs import UNPROBED
from tests.worker.conftest import Site, celery_worker, wait_offering
from tests.worker.test_celery_worker import wait_ended

ENGINE = {"device": "cpu", "threads": 1}


def launched(site: Site, **made: Any) -> Run:
    return run_launch(project=site.project, actor=site.actor, base_model=site.base_model, **made)


def test_fine_tuning_from_launch_to_sealing(tiny: Site, tmp_path: Path) -> None:
    chats = conversations(tiny.project, tiny.actor, content=lines(*map(conversation, range(12))))
    settings = {
        "optim": {"steps": 3, "batch_size": 4, "lr": 1e-3},
        "data": {"holdout": 4},
        "engine": ENGINE,
    }
    with celery_worker(tiny, tmp_path):
        run = launched(tiny, kind="sft", name="tuned", dataset=chats, settings=settings)
        wait_ended(run)
    log = (tmp_path / "worker.log").read_text()
    assert run.state == RunState.SEALING, (run.reason, run.log_tail, log)
    assert (run.step, run.steps_total) == (3, 3)
    rows = list(StepMetric.objects.filter(run=run).order_by("step").values_list("metrics", flat=True))
    assert [sorted({"loss", "grad_norm", "num_tokens"} - row.keys()) for row in rows] == [[], [], []]
    assert all("reward" not in row for row in rows)
    assert Checkpoint.objects.filter(run=run, step=3, final=True).exists()
    attempt = Attempt.objects.get(run=run)
    assert attempt.manifest is not None
    assert attempt.manifest["data"]["train"]["sha256"] == chats.sha256
    config = (tmp_path / "runs" / f"run-{run.pk}" / "attempt-1" / "config.yaml").read_text()
    assert config.startswith("kind: sft\n")


@pytest.mark.slow
def test_a_sampled_dataset_is_distilled(tiny: Site, tmp_path: Path) -> None:
    """What the first run wrote reaches the second with who answered it."""
    sampling = {"group_size": 2, "prompts_per_step": 4, "max_completion_tokens": 4}
    keep_all = {"passed": False, "finished": False, "duplicates": "keep"}
    with celery_worker(tiny, tmp_path):
        sampled = launched(
            tiny,
            kind="sample",
            name="sampled",
            dataset=tiny.dataset,
            verifier_version=tiny.verifier_version,
            settings={"sampling": sampling, "filter": keep_all, "engine": ENGINE},
            probe_override=UNPROBED,
        )
        wait_ended(sampled)
        assert sampled.state == RunState.SEALING, (sampled.reason, sampled.log_tail)
        wait_offering(lambda: PromptDataset.objects.filter(sampled_by=sampled).exists(), "the dataset arrives")
        dataset = PromptDataset.objects.get(sampled_by=sampled)
        settings = {"optim": {"steps": 2, "batch_size": 2, "lr": 1e-3}, "engine": ENGINE}
        small = launched(tiny, kind="distill", name="small", dataset=dataset, settings=settings)
        wait_ended(small)
    assert small.state == RunState.SEALING, (small.reason, small.log_tail)
    assert (small.step, small.parsed_config.data.path) == (2, f"inputs/{dataset.sha256}/rows.jsonl")
    manifest = Attempt.objects.get(run=small).manifest
    assert manifest is not None
    assert "sampled" in str(manifest["data"]), manifest["data"]
