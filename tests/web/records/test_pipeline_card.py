"""The card of a pipeline: cold start, GRPO, sampling, fine-tuning on what was sampled; made, checked, and forged."""

import json
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ValidationError

from cohort.audit import services as audit
from cohort.base import artifacts
from cohort.catalog.models import BaseModel, DatasetContent, PromptDataset
from cohort.catalog.services import verifier_version_create
from cohort.evidence import dsse, pipeline
from cohort.evidence.canonical import canonical
from cohort.evidence.verify import verify_card
from cohort.evidence.verify.command import main
from cohort.evidence.verify.report import EXIT_STATUS, Report
from cohort.records.cards.pack import Pack
from cohort.records.models import PipelineCard, Record
from cohort.records.pipeline_cards import Stage, pipeline_card
from cohort.records.services import record_seal
from cohort.runs.models import Run
from tests.factories import sealed_run, stage_runs
from tests.factories.sealed_run import BEFORE
from tests.web.records.conftest import World
from tests.web.records.records import entry, logged, page_text, platform_keys

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("quick_pdf")]
TUNED = [1.0] * 50 + [0.0] * 50
"""50 of 100: 20 more than before, none broken."""
SHORT = {"optim": {"steps": 3, "batch_size": 8}}


def judged(world: World, base_model: BaseModel, dataset: PromptDataset, name: str) -> Run:
    """A launched fine-tuning that is evaluated on the held-out problems."""
    return stage_runs.launch(
        "sft",
        project=world.ours,
        actor=world.alice,
        base_model=base_model,
        dataset=dataset,
        heldout=world.heldout,
        eval_verifier_version=world.verifier_version,
        settings={**SHORT, "eval": {"before": True, "after": True}},
        name=name,
    )


def stages_of(world: World) -> list[Stage]:
    """base 30 % → cold start 50 % → GRPO 80 %; samples of it → fine-tuning of the base on them, 50 %."""
    worked = stage_runs.dataset_of(world.ours, "worked", DatasetContent.CONVERSATIONS, stage_runs.CONVERSATIONS)
    run = judged(world, world.base_model, worked, "cold")
    sealed_run.attempted(run, stage_runs.fine_tuned(run, before=BEFORE, after=TUNED, weights="1" * 64))
    cold = record_seal(run=run)

    run = sealed_run.launch(
        project=world.ours,
        actor=world.alice,
        base_model=stage_runs.registered(cold, name="cold start", actor=world.alice),
        dataset=world.dataset,
        heldout=world.heldout,
        verifier_version=world.verifier_version,
        name="rl",
    )
    reported = [record for record in sealed_run.whole(run) if record.kind != "eval_item" or record.phase != "before"]
    reported = [record for record in reported if record.kind != "eval_result" or record.phase != "before"]
    sealed_run.attempted(run, reported)
    rl = record_seal(run=run)

    run = stage_runs.launch(
        "sample",
        project=world.ours,
        actor=world.alice,
        base_model=stage_runs.registered(rl, name="after rl", actor=world.alice),
        dataset=world.dataset,
        verifier_version=world.verifier_version,
        settings={"sampling": {"group_size": 4, "prompts_per_step": 2}},
        name="rejection",
    )
    ended = sealed_run.attempted(run, stage_runs.sampled(run))
    rows = [{"prompt": f"what is {a} + 7?", "completion": str(a + 7)} for a in range(14)]
    kept = stage_runs.dataset_of(world.ours, "kept", DatasetContent.CONVERSATIONS, rows, sampled_by=ended)
    rejection = record_seal(run=ended)

    run = judged(world, world.base_model, kept, "sft2")
    sealed_run.attempted(run, stage_runs.fine_tuned(run, before=BEFORE, after=TUNED, weights="2" * 64))
    return [Stage("cold", cold), Stage("rl", rl), Stage("rejection", rejection), Stage("sft2", record_seal(run=run))]


def made(world: World, stages: list[Stage]) -> PipelineCard:
    return pipeline_card(project=world.ours, title="small r1", stages=stages, actor=world.alice)


def content_of(card: PipelineCard) -> dict[str, bytes]:
    with zipfile.ZipFile(BytesIO(b"".join(artifacts.read_chunks(card.artifact)))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def checked(content: dict[str, bytes], folder: Path, *, known: bool = True) -> Report:
    with Pack(folder / "pack") as pack:
        files = [pack.whole(name, body) for name, body in content.items()]
        path = pack.zip("pipeline.zip", files, first=pipeline.FILE)
    return verify_card(path, platform_keys() if known else None)


def forged(content: dict[str, bytes], change: Callable[[dict[str, Any]], None]) -> dict[str, bytes]:
    """With pipeline.json changed and everything signed again by the platform's own key, so that only what the change
    says can be wrong: and the log, which has no entry of it."""
    document = json.loads(content[pipeline.FILE])
    change(document)
    document["seal"] = pipeline.seal_of(document)
    content = {**content, pipeline.FILE: canonical(document)}
    inside = {name: body for name, body in content.items() if name not in OUTSIDE}
    predicate = {"seal": document["seal"], "audience": "public", "issue": 1, "reason": "", "platform": ""}
    digests = {name: pipeline.sha256(body) for name, body in inside.items()}
    payload = dsse.statement(digests, pipeline.PREDICATE_TYPE, predicate)
    content["attestation.dsse.json"] = dsse.envelope(payload, dsse.PAYLOAD_TYPE, audit.signing_key())
    return content


OUTSIDE = ("attestation.dsse.json", "log-entry.json", "proof.tlog-proof")


def failed(report: Report) -> dict[str, str]:
    return {check.name: check.detail for check in report.checks if check.status == "failed"}


def test_a_pipeline_card_follows_its_stages_and_refuses_what_was_changed(world: World, tmp_path: Path) -> None:
    stages = stages_of(world)
    card = made(world, stages)
    content = content_of(card)
    document = json.loads(content[pipeline.FILE])

    report = checked(content, tmp_path)
    assert report.verdict == "accepted", report.why
    assert report.seal == card.seal == logged("pipeline_card_made")[-1]["data"]["seal"]
    assert checked(content, tmp_path, known=False).verdict == "unknown signer"

    page = page_text(world.client("alice").get(f"/p/ours/runs/{stages[1].record.run_id}/record/"))
    _, _, table = page.partition("What each stage changed")
    for line in ("+20.0 [+", "+30.0 [+", "+50.0 [+"):
        assert line in table

    path = tmp_path / "downloaded.zip"
    path.write_bytes(b"".join(artifacts.read_chunks(card.artifact)))
    known = tmp_path / "keys.json"
    known.write_text(json.dumps(audit.keys_file()), encoding="utf-8")
    assert main([str(path), "--key", str(known), "--offline"]) == 0
    assert main([str(path), "--key", str(known), "--against", str(path)]) == EXIT_STATUS["cannot check"]

    passed = next(check for check in report.checks if check.name == "what passed")
    assert [line.partition(":")[0] for line in passed.lines] == ["cold → rl", "rl → rejection", "rejection → sft2"]
    assert {(row["from"], row["to"]): difference_of(row) for row in document["changes"]} == {
        ("base", "cold"): 0.2,
        ("cold", "rl"): pytest.approx(0.3),
        ("base", "sft2"): 0.2,
        ("base", "rl"): 0.5,
    }

    for change, check in FORGERIES.values():
        assert check in failed(checked(forged(content, change), tmp_path))
    other = {**content, "stages/cold.zip": content["stages/sft2.zip"]}
    assert "stage cold" in failed(checked(other, tmp_path))
    assert set(failed(checked({**content, "more.txt": b"x"}, tmp_path))) == {"attestation"}


def difference_of(row: dict[str, Any]) -> float:
    (heldout,) = row["comparisons"]
    return float(heldout["change"]["difference"])


def credit_grpo(document: dict[str, Any]) -> None:
    """What fine-tuning did is said to be GRPO's."""
    row = next(row for row in document["changes"] if (row["from"], row["to"]) == ("cold", "rl"))
    row["comparisons"][0]["change"]["difference"] = 0.5


def no_input(document: dict[str, Any]) -> None:
    document["stages"][1]["takes"] = []


def other_kind(document: dict[str, Any]) -> None:
    document["stages"][0]["kind"] = "grpo"


def turned(document: dict[str, Any]) -> None:
    document["stages"].reverse()


FORGERIES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "credit": (credit_grpo, "what each stage changed"),
    "no input": (no_input, "what passed"),
    "kind": (other_kind, "stage cold"),
    "order": (turned, "what passed"),
}


def test_stages_that_make_no_pipeline_are_refused(world: World) -> None:
    cold, rl, rejection, sft2 = stages_of(world)
    for stages, words in (
        ([], "at least one stage"),
        ([rl], "took its weights from run"),
        ([cold, rejection], "took its weights from run"),
        ([cold, Stage("cold", rl.record)], "one name"),
        ([Stage("../x", cold.record)], "no stage's name"),
    ):
        with pytest.raises(ValidationError, match=words):
            made(world, stages)
    assert not PipelineCard.objects.exists()
    lineage = entry(Record.objects.get(pk=sft2.record.pk), "subject.lineage").value["stages"]
    assert [(stage["kind"], stage["gave"]) for stage in lineage] == [
        ("sample", "dataset"),
        ("grpo", "weights"),
        ("sft", "weights"),
    ]
    assert lineage[0]["seal"] == rejection.record.seal
    assert lineage[0]["card"] == rejection.record.card("public").sha256


def test_a_reward_model_is_an_earlier_stage_by_the_digest_of_its_weights(world: World) -> None:
    data = stage_runs.dataset_of(world.ours, "pairs", DatasetContent.PREFERENCES, stage_runs.PAIRS)
    rows = {"project": world.ours, "actor": world.alice, "base_model": world.base_model}
    run = stage_runs.launch("reward_model", **rows, dataset=data, settings={**SHORT, "data": {"holdout": 4}})
    sealed_run.attempted(run, stage_runs.ranked(run, weights="8" * 64))
    judge = record_seal(run=run)
    model = stage_runs.registered(judge, name="judge", actor=world.alice)
    scored = {"components": [{"name": "answer", "kind": "reward_model", "params": {"path": model.path}}]}
    version = verifier_version_create(project=world.ours, actor=world.alice, name="by the judge", spec=scored)
    run = sealed_run.launch(**rows, dataset=world.dataset, heldout=world.heldout, verifier_version=version)
    digest = pipeline.files_digest({"model.safetensors": "8" * 64})
    reported = [
        record.model_copy(update={"reward": {"answer": {"weights_sha256": digest}}})
        if record.kind == "manifest"
        else record
        for record in sealed_run.whole(run)
    ]
    sealed_run.attempted(run, reported)
    rl = record_seal(run=run)

    (stage,) = entry(rl, "subject.lineage").value["stages"]
    assert (stage["run"], stage["gave"], stage["seal"]) == (judge.run_id, "reward_model", judge.seal)
    assert digest in stage["digests"].values()
    giver, taker = json.loads(judge.document), json.loads(rl.document)
    (take,) = pipeline.takes_of(taker, {judge.run_id: "judge", rl.run_id: "rl"})
    assert pipeline.require_agreement(giver, taker, take) == f"reward model {'8' * 12}…"
    with pytest.raises(pipeline.StageFault, match="another model"):
        pipeline.require_agreement(giver, taker, {**take, "digests": {"model.safetensors": "8" * 64}})
