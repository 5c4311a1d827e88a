"""Registering a base model: folder or Hub repository, safetensors only, never outside the models folder."""

import hashlib
import json
import os
import re
import shutil
import struct
from pathlib import Path

import pytest
import rfc8785
from django.core.exceptions import ValidationError
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.base.environment import environment
from cohort.catalog import model_folder
from cohort.catalog.model_folder import folders_with_models, read_model_folder
from cohort.catalog.models import BaseModel
from cohort.catalog.services import base_model_register
from cohort.lab.services import doctor_request
from cohort.launch.creation import run_submit
from cohort.runs.models import Attempt
from cohort.web.catalog import views
from grpo_core.errors import ConfigError, ModelError
from tests.factories.runs import HOSTILE, HOSTILE_SHOWN, UNPROBED, Maker
from tests.tables import cases
from tests.web.pages import html
from tests.web.records.records import logged

COMMIT = "7ae557604adf67be50417f59c2c2f167def9a775"
HUB = "Qwen/Qwen2.5-0.5B"


def tensor_file(shape: list[int], *, padded_to: int = 0, name: str = "w") -> bytes:
    """One float32 tensor of zeros as safetensors, by the format's definition."""
    size = 4
    for edge in shape:
        size *= edge
    tensor = {name: {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}, "__metadata__": {}}
    header = json.dumps(tensor).encode().ljust(padded_to)
    return struct.pack("<Q", len(header)) + header + bytes(size)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A folder with a good model, in a models folder of the test's own."""
    folder = tmp_path / "models" / "good"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"architectures": ["Qwen2ForCausalLM"]}')
    (folder / "model.safetensors").write_bytes(tensor_file([3, 5]))
    return folder


def refused(root: Path, name: str, names: str) -> None:
    with pytest.raises(ModelError, match=names):
        read_model_folder(root, name)


# ---------------------------------------------------------------- what a folder holds


def test_folder_is_read_and_hashed(good: Path) -> None:
    model = read_model_folder(good.parent, "good")
    content = tensor_file([3, 5])
    weights = {"model.safetensors": {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}}
    assert (model.parameters, model.architecture, model.provenance) == (15, "Qwen2ForCausalLM", None)
    assert model.weights == weights
    assert model.weights_digest == hashlib.sha256(rfc8785.dumps(weights)).hexdigest()
    (good / "second.safetensors").write_bytes(tensor_file([7]))
    assert read_model_folder(good.parent, "good").parameters == 22, "of all shards"
    (good / "second.safetensors").unlink()
    for odd in (tensor_file([]), tensor_file([1], padded_to=0x0280)):  # a scalar; what begins as a pickle does
        (good / "model.safetensors").write_bytes(odd)
        assert read_model_folder(good.parent, "good").parameters == 1
    # Infinity is no JSON, but some families write it; nothing of it is stored.
    (good / "config.json").write_text('{"architectures": ["A\\u0000"], "time_step_limit": [0.0, Infinity]}')
    assert read_model_folder(good.parent, "good").architecture == "A\ufffd"


@pytest.mark.parametrize(
    ("config", "name", "inactive"),
    [
        ({"num_experts": 4, "num_experts_per_tok": 1}, "layers.0.mlp.experts.3.up_proj.weight", 12),
        ({"num_local_experts": 4, "num_experts_per_tok": 1}, "layers.0.block_sparse_moe.experts.0.w1.weight", 12),
        ({"n_routed_experts": 4, "num_experts_per_tok": 1}, "layers.0.mlp.shared_experts.up_proj.weight", 0),
        ({"text_config": {"num_experts": 4, "num_experts_per_tok": 3}}, "mlp.experts.gate_up_proj", 4),
        ({"num_experts": 4}, "mlp.experts.gate_up_proj", 0),
        ({"num_experts": 4, "num_experts_per_tok": 5}, "mlp.experts.gate_up_proj", 0),
        ({"num_experts": 3, "num_experts_per_tok": 1}, "mlp.experts.gate_up_proj", 0),
    ],
)
def test_experts_that_a_token_does_not_go_through_are_read(
    good: Path, config: dict[str, object], name: str, inactive: int
) -> None:
    (good / "config.json").write_text(json.dumps(config))
    (good / "experts.safetensors").write_bytes(tensor_file([4, 4], name=name))
    shape = read_model_folder(good.parent, "good").shape or {}
    assert (shape["parameters"], shape["experts"], shape["inactive"]) == (31, True, inactive)


@pytest.mark.parametrize(
    ("name", "content", "text", "names"), cases("catalog/model_files", "name", "content", "text", "names")
)
def test_pickles_and_broken_files_are_refused_by_their_bytes(
    good: Path, name: str, content: bytes | None, text: str | None, names: str
) -> None:
    (good / name).write_bytes(text.encode() if content is None else content)  # type: ignore[union-attr]
    refused(good.parent, "good", names)


def test_missing_parts_and_odd_names_are_named(good: Path) -> None:
    odd = good / os.fsdecode(b"\xff.safetensors")
    odd.write_bytes(tensor_file([3]))
    refused(good.parent, "good", "not UTF-8")
    odd.unlink()
    (good / "model.safetensors.index.json").write_text('{"weight_map": {"w": "part-2.safetensors"}}')
    refused(good.parent, "good", r"part-2\.safetensors")
    (good / "model.safetensors.index.json").unlink()
    (good / "model.safetensors").rename(good / "weights.old")
    refused(good.parent, "good", r"weights\.old may be a pickle")
    (good / "weights.old").unlink()
    refused(good.parent, "good", r"no \.safetensors file")
    (good / "config.json").unlink()
    refused(good.parent, "good", r"no config\.json")


def test_what_cannot_be_opened_is_a_fault_of_the_folder(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here because it went away while it was read: root, who may run these tests, is refused nothing."""

    def gone(file: Path) -> dict[str, object]:
        file.unlink()
        return {}

    monkeypatch.setattr(model_folder, "safetensors_header", gone)
    refused(good.parent, "good", r"model\.safetensors cannot be read")


@pytest.fixture
def adapters(good: Path) -> Path:
    """A folder of LoRA adapters next to their base model, as peft writes it."""
    folder = good.parent / "adapters"
    folder.mkdir()
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "base_model_name_or_path": "good", "revision": None}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    (folder / "adapter_model.safetensors").write_bytes(tensor_file([4, 5]))
    return folder


def test_adapters_are_read_with_the_base_that_they_need(adapters: Path) -> None:
    model = read_model_folder(adapters.parent, "adapters")
    assert model.adapter == {"rank": 4, "alpha": 8.0, "base": "good", "revision": None}
    assert (model.parameters, model.architecture, list(model.weights)) == (20, "", ["adapter_model.safetensors"])
    assert read_model_folder(adapters.parent, "good").adapter is None
    assert folders_with_models(adapters.parent) == ["adapters", "good"]


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"use_dora": True}, "use_dora True, which is more than plain LoRA. Merge it with peft"),
        ({"r": 0}, "r 0 and lora_alpha 8; both must be above 0"),
        ({"base_model_name_or_path": None}, "names no base_model_name_or_path"),
        ({"base_model_name_or_path": "a\u0000"}, "not UTF-8"),
        ({"revision": 7}, "revision 7; expected the base model's commit"),
    ],
)
def test_adapters_that_no_run_could_take_are_refused(adapters: Path, changed: dict[str, object], names: str) -> None:
    path = adapters / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    refused(adapters.parent, "adapters", names)


def test_adapters_in_other_files_are_refused(adapters: Path) -> None:
    (adapters / "adapter_model.safetensors").rename(adapters / "model.safetensors")
    refused(adapters.parent, "adapters", r"adapters as model\.safetensors; expected adapter_model\.safetensors alone")


# ---------------------------------------------------------------- where it lies


@pytest.mark.parametrize("path", cases("catalog/model_paths", "path"))
def test_names_that_could_lead_elsewhere_are_refused(good: Path, path: str) -> None:
    refused(good.parent, path, "is not a folder's name")


def test_links_out_of_the_models_folder_are_refused(good: Path, tmp_path: Path) -> None:
    root, outside = good.parent, tmp_path / "outside"
    (root / "alias").symlink_to(good)
    assert read_model_folder(root, "alias").path == "alias", "within it they are fine"
    good.rename(outside)
    (root / "linked").symlink_to(outside)
    (root / "inside").mkdir()
    for file in outside.iterdir():
        (root / "inside" / file.name).symlink_to(file)
    refused(root, "linked", "leads out")
    refused(root, "inside", "leads out")
    refused(root, "nothing", "no folder nothing")


# ---------------------------------------------------------------- service and pages


def test_operator_registers_and_sees_it(ours: Project, oscar: User, tiny_model_folder: str, operator: Client) -> None:
    assert "Register a model" in operator.get("/p/ours/models/").content.decode(), "the empty page says what to do"
    response = operator.post("/p/ours/models/new/", {"name": "tiny", "path": tiny_model_folder, "revision": ""})
    model = BaseModel.objects.get(project=ours)
    assert response.url == f"/p/ours/models/{model.pk}/"
    assert (model.created_by, model.parameters, model.provenance["task"]) == (oscar, 24, "add-two-digits")
    assert model.weights["model.safetensors"]["sha256"] in operator.get(response.url).content.decode()
    with pytest.raises(ValidationError, match="already"):
        base_model_register(project=ours, actor=oscar, name="tiny", path=tiny_model_folder)


def test_the_page_of_adapters_names_their_base_model(
    ours: Project, operator: Client, adapters: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment(), "models_dir", adapters.parent)
    path = adapters / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "base_model_name_or_path": HUB, "revision": COMMIT}))
    response = operator.post("/p/ours/models/new/", {"name": "tuned", "path": "adapters", "revision": ""})
    page = operator.get(response.url).content.decode()
    assert "LoRA adapters of rank 4" in page
    panel = page[page.index("<h2>Adapters</h2>") :]
    assert re.search(rf"{HUB}.*{COMMIT}.*<dd>4, 8</dd>.*The worker needs the base model too", panel, re.DOTALL), panel
    assert f"LoRA adapters on {HUB}" in operator.get("/p/ours/models/").content.decode()


def test_a_hub_repository_shows_what_a_run_read_at_that_commit(operator: Client, viewer: Client, maker: Maker) -> None:
    operator.post("/p/ours/models/new/", {"name": "qwen", "path": HUB, "revision": COMMIT})
    model = BaseModel.objects.get(name="qwen")
    assert (model.parameters, model.weights, model.weights_digest) == (None, {}, "")
    maker.base_model = model
    facts = {"source": HUB, "revision": COMMIT, "architecture": "Qwen2ForCausalLM", "parameters": 494032768}
    other, right, hostile = (maker.attempt(maker.run(name)) for name in ("other", "right", "hostile"))

    def page(attempt: Attempt, **stated: object) -> str:
        Attempt.objects.update(manifest=None)
        Attempt.objects.filter(pk=attempt.pk).update(manifest={"model": {**facts, **stated}})
        return viewer.get(f"/p/ours/models/{model.pk}/").content.decode()

    assert "not read yet" in page(other, revision="0" * 40)
    shown = page(right, weights={"model.safetensors": "ab" * 32})
    assert all(part in shown for part in ("494,032,768 parameters", "ab" * 32, f"/runs/{right.run_id}/"))
    shown = page(hostile, architecture=HOSTILE, parameters="many", weights=[HOSTILE])
    assert HOSTILE_SHOWN in shown
    assert "<script>alert" not in shown


def test_all_folders_are_counted(ours: Project, operator: Client, good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment(), "models_dir", good.parent)
    for name in ("a", "b"):
        shutil.copytree(good, good.parent / name)
    for shown, words in ((2, b"showing 2 of 3"), (3, b"3 found")):
        monkeypatch.setattr(views, "FOLDERS_SHOWN", shown)
        assert words in operator.get("/p/ours/models/new/").content


# ---------------------------------------------------------------- archived


def test_an_archived_model_is_no_choice_until_it_is_offered_again(
    operator: Client, viewer: Client, maker: Maker, chosen: dict[str, str]
) -> None:
    """And what was made with it stays."""
    model, run = maker.base_model, maker.run("before")
    address = f"/p/ours/models/{model.pk}/"
    verifier = maker.verifier_version.verifier_id
    pages = ["runs/new/", f"rewards/{verifier}/lab/", "lab/chat/"]

    def offering() -> list[str]:
        lists = {page: html(operator.get(f"/p/ours/{page}")).partition('base_model"')[2] for page in pages}
        return [page for page, after in lists.items() if f'value="{model.pk}"' in after.partition("</select>")[0]]

    assert offering() == pages
    for _ in range(2):
        assert operator.post(f"{address}archive/", {"archived": "1"}).status_code == 302
    assert [entry["subject"] for entry in logged("base_model_archived")] == [f"base_model:{model.pk}"]
    listed, archived = (html(viewer.get(f"/p/ours/models/{query}")) for query in ("", "?archived=1"))
    assert (address in listed, "?archived=1" in listed, address in archived) == (False, True, True)
    assert offering() == []
    for url in (f"/p/ours/runs/{run.pk}/", address):
        assert viewer.get(url).status_code == 200
    refused = operator.post("/p/ours/runs/new/", chosen | {"action": "launch"})
    assert (refused.status_code, f"{model.name} is archived" in html(refused)) == (422, True)
    with pytest.raises(ConfigError, match="is archived"):
        run_submit(run=run, actor=maker.actor, probe_override=UNPROBED)
    with pytest.raises(ConfigError, match="is archived"):
        doctor_request(base_model=BaseModel.objects.get(), actor=maker.actor)
    operator.post(f"{address}archive/", {"archived": "0"})
    assert logged("base_model_unarchived")
    assert operator.post("/p/ours/runs/new/", chosen | {"action": "launch"}).status_code == 302


# ---------------------------------------------------------------- what its training took


def test_what_training_took_is_stated_with_a_source_and_logged(ours: Project, operator: Client, viewer: Client) -> None:
    model = base_model_register(project=ours, actor=None, name="own", path="org/own", revision="a" * 40)
    address = f"/p/ours/models/{model.pk}/"
    assert "Not known here." in html(viewer.get(address))
    for flop, source, words in (
        ("much", "a letter", "is no number of FLOP"),
        ("-1", "a letter", "is no number of FLOP"),
        ("nan", "a letter", "is no number of FLOP"),
        ("8.3e22", "", "Say where the number is from"),
        ("8.3e22", "x" * 2001, "in at most 2,000 characters"),
        ("8.3e22", "\x00", "Say where the number is from"),
        ("", "", "Give a number of FLOP"),
    ):
        refused = operator.post(f"{address}pretraining/", {"flop": flop, "source": source}, follow=True)
        assert words in html(refused).replace("&#x27;", "'"), (flop, source)
    assert logged("base_model_pretraining_stated") == []
    operator.post(f"{address}pretraining/", {"flop": "8.3e22", "source": HOSTILE})
    shown = html(viewer.get(address))
    assert "8.3 × 10²² FLOP" in shown
    assert HOSTILE_SHOWN in shown
    (entry,) = logged("base_model_pretraining_stated")
    assert entry["subject"] == f"base_model:{model.pk}"
    taken = operator.post(f"{address}pretraining/", {"flop": "", "source": ""}, follow=True)
    assert "is withdrawn" in html(taken)
    assert "Not known here." in html(viewer.get(address))
    assert len(logged("base_model_pretraining_stated")) == 2


def test_a_hub_model_has_what_its_makers_published(ours: Project, operator: Client) -> None:
    model = base_model_register(project=ours, actor=None, name="qwen", path="Qwen/Qwen2.5-1.5B", revision="a" * 40)
    page = html(operator.get(f"/p/ours/models/{model.pk}/"))
    assert "1.7 × 10²³ FLOP" in page
    assert "arXiv 2412.15115" in page


def test_the_launch_form_says_what_a_run_takes_at_most(operator: Client, chosen: dict[str, str], maker: Maker) -> None:
    page = html(operator.post("/p/ours/runs/new/", chosen | {"action": "check"}))
    assert "Training compute" in page
    assert "at most " in page.partition('id="compute"')[2]
    assert "were every prompt and completion as long as the limits let it be" in page
    assert "the indication is not reached" in page
    assert "not known yet" in page.partition("By hardware time")[2]
