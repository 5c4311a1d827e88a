"""A pipeline from fine-tuning to GRPO through a real Celery worker and the real trainer, on a tiny model: the weights
of the first stage travel to the second, and the pipeline's card passes the whole offline check."""

import json
import zipfile
from pathlib import Path

import pytest

from cohort.audit import services as audit
from cohort.background.reconcile import stages_launch
from cohort.base import artifacts
from cohort.evidence import pipeline as evidence
from cohort.evidence.verify.command import main
from cohort.pipelines.models import Pipeline, PipelineStage
from cohort.pipelines.services import pipeline_create, pipeline_start
from cohort.pipelines.states import pipeline_states
from cohort.records.pipeline_requests import pipeline_card_make, pipeline_card_request
from cohort.records.services import record_seal
from cohort.runs.models import Checkpoint, Run
from tests.factories.kinds import conversation, conversations, lines
from tests.factories.runs import UNPROBED
from tests.worker.conftest import Site, celery_worker, wait_offering
from tests.worker.test_celery_worker import wait_ended

TEXT = """
name: tiny r1
stages:
  cold_start:
    kind: sft
    model: {path: real}
    data: {path: chats}
    eval: {path: held out, reward: r1 + exact@1, before: true, after: true, max_completion_tokens: 4}
    optim: {steps: 2, batch_size: 4, lr: 1.0e-3}
    engine: {device: cpu, threads: 1}
  rl:
    kind: grpo
    model: {stage: cold_start}
    data: {path: additions}
    reward: r1 + exact@1
    eval: {path: held out, max_completion_tokens: 4}
    sampling: {group_size: 2, prompts_per_step: 2, max_completion_tokens: 4}
    optim: {steps: 1, lr: 1.0e-3}
    engine: {device: cpu, threads: 1}
"""


def sealed(pipeline: Pipeline, slug: str, log: Path) -> Run:
    """Waits until the stage's run has ended, and seals its record."""
    current = PipelineStage.objects.select_related("current__run").get(pipeline=pipeline, slug=slug).current
    assert current is not None, pipeline_states(pipeline)[slug].reason
    run = current.run
    wait_ended(run)
    assert run.state == "sealing", (run.reason, run.log_tail, log.read_text())
    record_seal(run=run)
    return run


@pytest.mark.slow
def test_the_card_of_a_pipeline_that_a_worker_ran(
    tiny: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conversations(tiny.project, tiny.actor, content=lines(*map(conversation, range(12))))
    pipeline = pipeline_create(project=tiny.project, actor=tiny.actor, text=TEXT)
    log = tmp_path / "worker.log"
    with celery_worker(tiny, tmp_path):
        pipeline_start(pipeline=pipeline, actor=tiny.actor, override=UNPROBED)
        cold = sealed(pipeline, "cold_start", log)

        def launched() -> bool:
            """As each round of the reconciler does."""
            stages_launch()
            return PipelineStage.objects.filter(pipeline=pipeline, slug="rl").exclude(current=None).exists()

        wait_offering(launched, "the weights arrive and the second stage is launched")
        rl = sealed(pipeline, "rl", log)
    final = Checkpoint.objects.get(run=cold, final=True)
    assert rl.base_model is not None
    assert rl.base_model.checkpoint == final

    card = pipeline_card_make(pipeline_card_request(pipeline=pipeline, actor=tiny.actor).pk)
    assert card is not None, pipeline.card_requests.get().fault
    path, known = tmp_path / "pipeline.zip", tmp_path / "keys.json"
    path.write_bytes(b"".join(artifacts.read_chunks(card.artifact)))
    known.write_text(json.dumps(audit.keys_file()), encoding="utf-8")
    assert main([str(path), "--key", str(known), "--offline"]) == 0, capsys.readouterr().out

    document = json.loads(zipfile.ZipFile(path).read(evidence.FILE))
    assert [(stage["name"], stage["kind"], stage["run"]) for stage in document["stages"]] == [
        ("cold_start", "sft", cold.pk),
        ("rl", "grpo", rl.pk),
    ]
    (take,) = document["stages"][1]["takes"]
    assert (take["stage"], take["gave"]) == ("cold_start", "weights")
    assert set(take["digests"].values()) == {
        entry["sha256"] for name, entry in final.files.items() if name.endswith(".safetensors")
    }
    assert document["graph"] == pipeline.config
    changes = [(row["from"], row["to"]) for row in document["changes"]]
    assert changes == [("base", "cold_start"), ("cold_start", "rl"), ("base", "rl")]
    assert [row["comparisons"][0]["why_not"] for row in document["changes"]] == ["", "", ""]
