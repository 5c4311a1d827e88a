"""A checkpoint in use, from its own page: registered as a base model and kept, trained further as a new run, brought to
the platform by its node, downloaded; and which files of it the claims of runs and jobs may read.
"""

import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from cohort.accounts.models import Project
from cohort.audit.models import AuditEntry
from cohort.base import artifacts
from cohort.catalog.models import BaseModel
from cohort.lab.services import doctor_request, job_request
from cohort.launch.creation import run_create
from cohort.nodes.models import Node
from cohort.nodes.services import node_create
from cohort.records.sections.history_facts import lineage
from cohort.runs.base_models import checkpoint_register, model_inputs, suggested_name
from cohort.runs.models import Checkpoint, CheckpointFile, Run, RunEvent
from cohort.runs.services import NotPossible, checkpoint_pin
from grpo_core.errors import ConfigError
from grpo_core.files.checkpoint import verify_checkpoint
from tests.factories.runs import Maker, add_checkpoint
from tests.factories.stock import R1_EXACT
from tests.factories.worker import NODE
from tests.web.control import fresh
from tests.web.form_page import as_browser, selected, value
from tests.web.pages import html
from tests.web.worker_calls import AttemptCaller, Caller, JobCaller, claim, refused, taken_job

pytestmark = pytest.mark.django_db

HEADER = b'{"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}'
WEIGHTS = len(HEADER).to_bytes(8, "little") + HEADER + b"weights!"
STATE = b'{"step": 4}'
OPTIMIZER = WEIGHTS[:-1] + b"?"
CONTENT = {"policy.safetensors": WEIGHTS, "state.json": STATE, "policy-optimizer.safetensors": OPTIMIZER}
FINAL = {"model.safetensors": WEIGHTS, "config.json": b"{}", "adapter/adapter_config.json": b"[]"}


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def add(maker: Maker, run: Run, content: dict[str, bytes], *, stored: bool = True, **fields: Any) -> Checkpoint:
    """A checkpoint of the run with these files, in the artifacts where `stored`."""
    attempt = run.attempts.first() or maker.attempt(run)
    checkpoint = add_checkpoint(attempt, 4, stored=stored, **fields)
    files = {name: {"size": len(file), "sha256": sha(file)} for name, file in content.items()}
    Checkpoint.objects.filter(pk=checkpoint.pk).update(files=files)
    checkpoint.refresh_from_db()
    if stored:
        store(run, content)
    return checkpoint


def store(run: Run, content: dict[str, bytes]) -> None:
    artifacts.remove_folder(f"checkpoints/run-{run.pk}")
    for file in content.values():
        row = {"size": len(file), "received": len(file), "done_at": timezone.now()}
        CheckpointFile.objects.get_or_create(run=run, sha256=sha(file), defaults=row)
        artifacts.put(f"checkpoints/run-{run.pk}/{sha(file)}/{0:020d}", [file])


@pytest.fixture
def parent(maker: Maker) -> Run:
    return maker.run("adder", state="training")


@pytest.fixture
def checkpoint(maker: Maker, parent: Run) -> Checkpoint:
    """Stored on the platform."""
    return add(maker, parent, CONTENT)


def registered(maker: Maker, checkpoint: Checkpoint, name: str = "") -> BaseModel:
    return checkpoint_register(checkpoint=checkpoint, actor=maker.actor, name=name or suggested_name(checkpoint))


def address(checkpoint: Checkpoint, more: str = "") -> str:
    return f"/p/ours/runs/{checkpoint.run_id}/checkpoints/{checkpoint.pk}/{more}"


# ---------------------------------------------------------------------- registered


def test_registered_from_its_page_it_is_a_base_model_and_stays(
    operator: Client, maker: Maker, checkpoint: Checkpoint
) -> None:
    page = html(operator.get(address(checkpoint)))
    assert value(page, "name") == "adder step 4"
    answer = operator.post(address(checkpoint), {"name": "adder at 4"})
    model = BaseModel.objects.get(checkpoint=checkpoint)
    assert answer["Location"] == f"/p/ours/models/{model.pk}/"
    assert (model.name, model.path, model.revision) == ("adder at 4", f"inputs/checkpoint-{checkpoint.pk}", "")
    assert [*model.weights] == ["policy.safetensors"]
    assert fresh(checkpoint).pinned
    entry = json.loads(bytes(AuditEntry.objects.filter(kind="base_model_registered").latest("pk").body))
    assert entry["after"]["checkpoint"] == checkpoint.pk
    assert RunEvent.objects.filter(run=checkpoint.run, kind="checkpoint_registered").count() == 1
    of_model, listed = html(operator.get(answer["Location"])), html(operator.get("/p/ours/models/"))
    assert address(checkpoint) in of_model
    assert "checkpoint of a run" in listed
    with pytest.raises(NotPossible, match="the base model adder at 4"):
        checkpoint_pin(checkpoint=checkpoint, actor=maker.actor, pinned=False)
    operator.post(address(checkpoint, "pin/"), {"pinned": "false"})
    assert fresh(checkpoint).pinned
    again = html(operator.post(address(checkpoint), {"name": "other"}, follow=True))
    assert "is registered as adder at 4 already" in again
    assert BaseModel.objects.filter(checkpoint=checkpoint).count() == 1


def test_a_name_that_is_taken_or_missing_loses_nothing(operator: Client, maker: Maker, checkpoint: Checkpoint) -> None:
    for name, words in ((maker.base_model.name, "already"), ("", "required")):
        answer = operator.post(address(checkpoint), {"name": name})
        assert answer.status_code == 422
        assert words in html(answer)
    assert not BaseModel.objects.filter(checkpoint=checkpoint).exists()
    assert not fresh(checkpoint).pinned, "nothing is done by halves"


@pytest.mark.parametrize(
    ("away", "removed", "words"),
    [(True, False, "node-a, where it was written, is not here now"), (False, True, "was removed from node-a")],
)
def test_one_that_can_be_had_nowhere_is_refused_in_words(
    operator: Client, maker: Maker, parent: Run, away: bool, removed: bool, words: str
) -> None:
    checkpoint = add(maker, parent, CONTENT, stored=False, removed=removed)
    Node.objects.update(last_seen_at=None if away else timezone.now())
    page = html(operator.post(address(checkpoint), {"name": "x"}, follow=True))
    assert words in page
    assert not BaseModel.objects.filter(checkpoint=checkpoint).exists()


def test_a_checkpoint_without_weights_is_refused(maker: Maker, parent: Run) -> None:
    with pytest.raises(NotPossible, match="holds no policy"):
        registered(maker, add(maker, parent, {"state.json": STATE}))


# ---------------------------------------------------------------------- what claims may read


def listed(model: BaseModel) -> dict[str, str]:
    return {path: file.sha256 for path, file in model_inputs(model).items()}


def child_of(maker: Maker, base: BaseModel, name: str, **settings: Any) -> Run:
    return Maker(maker.project, maker.actor, base, maker.dataset, maker.verifier_version).run(
        name, state="training", **settings
    )


def test_which_files_of_a_chain_are_read(maker: Maker, parent: Run, checkpoint: Checkpoint) -> None:
    first = registered(maker, checkpoint)
    folder = first.path
    own = {f"{folder}/policy.safetensors": sha(WEIGHTS), f"{folder}/state.json": sha(STATE)}
    assert listed(first) == own, "no optimiser"
    whole = registered(maker, add(maker, child_of(maker, first, "whole"), CONTENT))
    assert set(listed(whole)) == {
        *(f"{whole.path}/{name}" for name in ("policy.safetensors", "state.json")),
        f"{folder}/state.json",
    }, "its weights are all there are"
    lora = {"model": {"lora": {"rank": 2}}}
    adapters = registered(maker, add(maker, child_of(maker, first, "adapters", **lora), CONTENT))
    assert adapters.adapter is not None
    assert set(listed(adapters)) == {
        *(f"{adapters.path}/{name}" for name in ("policy.safetensors", "state.json")),
        *own,
    }
    final = registered(maker, add(maker, child_of(maker, first, "final"), FINAL, final=True))
    assert set(listed(final)) == {f"{final.path}/{name}" for name in ("model.safetensors", "config.json")}
    assert listed(maker.base_model) == {}


def test_a_run_reads_its_base_models_files_by_its_own_claim_alone(
    maker: Maker, node: Caller, checkpoint: Checkpoint
) -> None:
    model = registered(maker, checkpoint)
    other = claim(node, maker.run("other", state="queued"))
    stranger = AttemptCaller(other)
    assert refused(stranger.get(f"{stranger.at}/files/{sha(WEIGHTS)}")) == (404, "unknown_file")
    second = Caller(node_create(name="gpu-2")[1])
    run = Maker(maker.project, maker.actor, model, maker.dataset, maker.verifier_version).run("next", state="queued")
    claimed = claim(second, run)
    assert claimed.config["model"]["path"] == model.path
    files = {file.path: file for file in claimed.files}
    worker = AttemptCaller(claimed)
    for name in ("policy.safetensors", "state.json"):
        answer = worker.get(f"{worker.at}/files/{files[f'{model.path}/{name}'].sha256}")
        assert b"".join(answer.streaming_content) == CONTENT[name]
    assert refused(worker.get(f"{worker.at}/files/{sha(OPTIMIZER)}")) == (404, "unknown_file")


def test_a_job_of_the_lab_reads_them_too(maker: Maker, node: Caller, checkpoint: Checkpoint) -> None:
    model = registered(maker, checkpoint)
    doctor_request(base_model=model, actor=maker.actor)
    given = taken_job(node)
    assert given.job["model"]["path"] == model.path
    assert {file.path for file in given.files} == {*listed(model)}
    worker = JobCaller(given)
    answer = worker.get(f"{worker.at}/files/{sha(STATE)}")
    assert b"".join(answer.streaming_content) == STATE
    assert refused(worker.get(f"{worker.at}/files/{sha(OPTIMIZER)}")) == (404, "unknown_file")
    artifacts.remove_folder(f"checkpoints/run-{checkpoint.run_id}")
    assert refused(worker.get(f"{worker.at}/files/{sha(STATE)}")) == (404, "file_missing")


def test_another_projects_model_is_refused(maker: Maker, checkpoint: Checkpoint, stranger: Client) -> None:
    model = registered(maker, checkpoint)
    theirs = Project.objects.get(slug="theirs")
    given = {"dataset": maker.dataset, "verifier_version": maker.verifier_version, "settings": {}}
    with pytest.raises(ConfigError) as error:
        run_create(project=theirs, actor=maker.actor, name="x", base_model=model, **given)
    assert "base_model" in [problem.path for problem in error.value.problems]
    assert stranger.get(f"/p/theirs/runs/{checkpoint.run_id}/checkpoints/{checkpoint.pk}/").status_code == 404
    assert stranger.get(f"/p/theirs/runs/new/?model={model.pk}").status_code == 404


# ---------------------------------------------------------------------- requested of its node


def here(node: Caller) -> list[Any]:
    """What the answer to the node's heartbeat requests."""
    requested: list[Any] = node.post("node", NODE.model_dump(mode="json")).json()["requested"]
    return requested


def sent(node: Caller, checkpoint: Checkpoint, content: bytes, **headers: str) -> Any:
    path = f"node/checkpoints/{checkpoint.pk}/uploads/{sha(content)}"
    return node.post(path, content, **{"X-Cohort-Offset": "0", **headers})


def test_what_is_not_here_comes_from_its_node_before_anything_starts_from_it(
    operator: Client, maker: Maker, node: Caller, parent: Run
) -> None:
    here(node)
    checkpoint = add(maker, parent, CONTENT, stored=False)
    checkpoint.attempt.node = Node.objects.get(name="gpu-1")
    checkpoint.attempt.save()
    assert here(node) == []
    page = html(operator.post(address(checkpoint), {"name": "soon"}, follow=True))
    assert "gpu-1 sends its files" in page
    waits = f'hx-get="{address(checkpoint)}" hx-trigger="every 2s"'
    assert waits in html(operator.get(address(checkpoint)))
    model = BaseModel.objects.get(name="soon")
    (wanted,) = here(node)
    assert (wanted["id"], wanted["run_id"], wanted["path"]) == (checkpoint.pk, parent.pk, "checkpoints/step-000004")
    soon = Maker(maker.project, maker.actor, model, maker.dataset, maker.verifier_version)
    for start in (
        lambda: soon.launched("too early", eval={"holdout": 4}),
        lambda: doctor_request(base_model=model, actor=maker.actor),
        lambda: job_request(
            project=maker.project,
            actor=maker.actor,
            kind="sample",
            spec=R1_EXACT,
            dataset=maker.dataset,
            base_model=model,
        ),
    ):
        with pytest.raises(ConfigError, match="soon is not on the platform yet: gpu-1 sends its files"):
            start()
    other = Caller(node_create(name="gpu-2")[1])
    assert here(other) == []
    assert refused(sent(other, checkpoint, WEIGHTS)) == (404, "unknown_file"), "not that node's"
    assert refused(sent(node, checkpoint, b"another")) == (404, "unknown_file")
    assert refused(sent(node, checkpoint, WEIGHTS, **{"X-Cohort-Offset": "x"})) == (422, "bad_request")
    for content in CONTENT.values():
        assert fresh(checkpoint).stored_at is None
        assert sent(node, checkpoint, content).json() == {"received": len(content), "done": True}
    assert (fresh(checkpoint).stored_at is not None, fresh(checkpoint).requested_at) == (True, None)
    assert waits not in html(operator.get(address(checkpoint)))
    assert here(node) == []
    assert refused(sent(node, checkpoint, WEIGHTS)) == (404, "unknown_file"), "nothing is requested any more"
    doctor_request(base_model=fresh(model), actor=maker.actor)


def test_a_request_that_its_node_cannot_meet_is_over(operator: Client, maker: Maker, node: Caller, parent: Run) -> None:
    here(node)
    checkpoint = add(maker, parent, CONTENT, stored=False)
    checkpoint.attempt.node = Node.objects.get(name="gpu-1")
    checkpoint.attempt.save()
    operator.post(address(checkpoint, "request/"))
    assert fresh(checkpoint).pinned
    operator.post(address(checkpoint, "request/"))
    assert RunEvent.objects.filter(run=parent, kind="checkpoint_requested").count() == 1
    path = f"node/checkpoints/{checkpoint.pk}/unavailable"
    assert node.post(path, {"reason": "no longer there", "removed": True}).status_code == 204
    assert (fresh(checkpoint).requested_at, fresh(checkpoint).removed_at is None) == (None, False)
    assert "no longer there" in RunEvent.objects.get(run=parent, kind="checkpoint_unavailable").message
    assert refused(node.post(path, {"reason": "again", "removed": True})) == (404, "unknown_file")


def test_letting_it_go_withdraws_the_request(operator: Client, maker: Maker, parent: Run) -> None:
    checkpoint = add(maker, parent, CONTENT, stored=False)
    Node.objects.update(last_seen_at=timezone.now())
    operator.post(address(checkpoint, "request/"))
    assert "on its way to the platform" in html(operator.get(f"/p/ours/runs/{parent.pk}/attempts/"))
    operator.post(address(checkpoint, "pin/"), {"pinned": "false"})
    assert (fresh(checkpoint).pinned, fresh(checkpoint).requested_at) == (False, None)


# ---------------------------------------------------------------------- trained further


def test_trained_further_it_opens_a_form_like_its_run(operator: Client, maker: Maker, checkpoint: Checkpoint) -> None:
    answer = operator.post(address(checkpoint, "further/"))
    model = BaseModel.objects.get(checkpoint=checkpoint)
    assert answer["Location"] == f"/p/ours/runs/new/?model={model.pk}"
    assert operator.post(address(checkpoint, "further/"))["Location"] == answer["Location"], "registered once"
    page = html(operator.get(answer["Location"]))
    assert selected(page, "base_model") == str(model.pk)
    assert 'label="Checkpoints of runs"' in page
    assert value(page, "name") == "continues adder from step 4"
    assert value(page, "cloned_from") == str(checkpoint.run_id)
    made = operator.post("/p/ours/runs/new/", as_browser(page) | {"action": "draft"})
    run = Run.objects.get(pk=int(made["Location"].rstrip("/").rpartition("/")[2]))
    assert (run.base_model, run.cloned_from, run.config["model"]["path"]) == (model, checkpoint.run, model.path)
    filled = operator.post("/p/ours/runs/new/", {"action": "import", "yaml": run.parsed_config.to_yaml()})
    assert selected(html(filled), "base_model") == str(model.pk)
    origin = lineage(run, None)
    assert [(ancestor.run, ancestor.step, ancestor.registered_as) for ancestor in origin.ancestors] == [
        (checkpoint.run, 4, model.name)
    ]
    assert origin.ancestors[0].weights == {"policy.safetensors": sha(WEIGHTS)}


def test_adapters_are_trained_further_as_they_are_or_merged(maker: Maker, parent: Run) -> None:
    lora = {"model": {"lora": {"rank": 2, "alpha": 6.0}}}
    model = registered(maker, add(maker, child_of(maker, maker.base_model, "adapters", **lora), CONTENT))
    assert child_of(maker, model, "further", **lora).config["model"]["adapter"] == "continue"
    assert child_of(maker, model, "merged", model={"adapter": "merge"}).base_model == model
    for other in ({}, {"rank": 4, "alpha": 6.0}, {"rank": 2, "alpha": 8.0}):
        with pytest.raises(ConfigError, match="holds adapters of rank 2, alpha 6") as error:
            child_of(maker, model, "other", model={"lora": other})
        assert [problem.path for problem in error.value.problems] == ["model.lora.rank"]


def test_an_unknown_model_or_one_that_is_no_checkpoint_starts_no_form(operator: Client, maker: Maker) -> None:
    for model in ("0", "x", str(maker.base_model.pk)):
        assert operator.get(f"/p/ours/runs/new/?model={model}").status_code == 404


# ---------------------------------------------------------------------- downloaded


@pytest.mark.parametrize(("content", "final"), [(CONTENT, False), (FINAL, True)], ids=["step", "final"])
def test_a_download_is_the_checkpoint_as_it_lies_in_its_runs_directory(
    operator: Client, maker: Maker, parent: Run, tmp_path: Path, content: dict[str, bytes], final: bool
) -> None:
    checkpoint = add(maker, parent, content, final=final)
    folder = f"run-{parent.pk}-{'final' if final else 'step-000004'}"
    assert f"{folder}.zip" in html(operator.get(address(checkpoint)))
    answer = operator.get(address(checkpoint, "checkpoint.zip"))
    assert answer.streaming
    assert answer["Content-Disposition"] == f'attachment; filename="{folder}.zip"'
    with zipfile.ZipFile(io.BytesIO(b"".join(answer.streaming_content))) as archive:
        assert archive.testzip() is None
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
        archive.extractall(tmp_path)
    manifest = verify_checkpoint(tmp_path / folder)
    assert (manifest.step, manifest.final) == (4, final)
    assert {name: (tmp_path / folder / name).read_bytes() for name in content} == content


def test_what_the_platform_has_lost_or_never_had_is_no_download(
    operator: Client, maker: Maker, parent: Run, checkpoint: Checkpoint
) -> None:
    artifacts.remove_folder(f"checkpoints/run-{parent.pk}")
    page = html(operator.get(address(checkpoint, "checkpoint.zip"), follow=True))
    assert "There is nothing to download" in page
    other = add(maker, maker.run("elsewhere", state="training"), {"state.json": b"{ }"}, stored=False)
    assert "There is nothing to download" in html(operator.get(address(other, "checkpoint.zip"), follow=True))


def test_a_viewer_sees_the_files_and_takes_none(viewer: Client, checkpoint: Checkpoint) -> None:
    page = html(viewer.get(address(checkpoint)))
    assert sha(WEIGHTS) in page
    assert "checkpoint.zip" not in page
    assert "<form" not in page.split('class="tabs"')[1]
    assert viewer.get(address(checkpoint, "checkpoint.zip")).status_code == 403
