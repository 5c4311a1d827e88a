"""Registering a base model: folder or Hub repository, safetensors only, never outside the models folder."""

import gzip
import hashlib
import io
import json
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import rfc8785
from django.core.exceptions import ValidationError
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.catalog import model_folder, views
from cohort.catalog.model_folder import read_model_folder
from cohort.catalog.models import BaseModel
from cohort.catalog.services import base_model_register
from cohort.environment import environment
from cohort.runs.models import Attempt
from grpo_core.errors import ModelError
from tests.web.run_rows import HOSTILE, HOSTILE_SHOWN, Maker

ClientFor = Callable[[User], Client]
COMMIT = "7ae557604adf67be50417f59c2c2f167def9a775"


def tensor_file(shape: list[int], *, short_by: int = 0) -> bytes:
    """One float32 tensor of zeros as safetensors, by the format's definition."""
    size = 4
    for edge in shape:
        size *= edge
    header = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}, "__metadata__": {}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(size - short_by)


def headed(header: str) -> bytes:
    """A file with this header and four bytes of numbers."""
    return struct.pack("<Q", len(header)) + header.encode() + bytes(4)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A models folder of the test's own with one good model, `good`, in it."""
    folder = tmp_path / "models" / "good"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"architectures": ["Qwen2ForCausalLM"]}')
    (folder / "model.safetensors").write_bytes(tensor_file([3, 5]))
    return tmp_path / "models"


def torch_zip() -> bytes:
    """As torch.save writes: a zip with the pickle inside."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"w": 1}))
        archive.writestr("archive/data/0", bytes(60))
    return buffer.getvalue()


# ---------------------------------------------------------------- what a folder holds


def test_folder_is_read_and_hashed(root: Path) -> None:
    found = read_model_folder(root, "good")
    digest = hashlib.sha256(tensor_file([3, 5])).hexdigest()
    weights = {"model.safetensors": {"size": len(tensor_file([3, 5])), "sha256": digest}}
    assert found.parameters == 15
    assert found.architecture == "Qwen2ForCausalLM"
    assert found.weights == weights
    assert found.weights_digest == hashlib.sha256(rfc8785.dumps(weights)).hexdigest()
    assert found.provenance is None


def test_parameters_of_all_shards_are_added(root: Path) -> None:
    (root / "good" / "second.safetensors").write_bytes(tensor_file([7]))
    assert read_model_folder(root, "good").parameters == 22


def test_a_scalar_tensor_is_one_parameter(root: Path) -> None:
    (root / "good" / "model.safetensors").write_bytes(tensor_file([]))
    assert read_model_folder(root, "good").parameters == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pytorch_model.bin", torch_zip()),
        ("weights.dat", torch_zip()),
        ("weights.dat", pickle.dumps({"w": 1}, protocol=2)),
        ("weights.dat", pickle.dumps({"w": 1}, protocol=5)),
        ("model.safetensors", pickle.dumps({"w": 1}, protocol=4)),
        ("model.safetensors", torch_zip()),
        ("training_args.bin", b"anything"),
        ("model.PT", b"anything"),
        ("vocab.txt", gzip.compress(b"words", mtime=0)),
    ],
)
def test_pickles_are_found_by_their_bytes(root: Path, name: str, content: bytes) -> None:
    (root / "good" / name).write_bytes(content)
    with pytest.raises(ModelError, match=rf"{name} (holds pickled|is .*pickle).*save_pretrained.*take away"):
        read_model_folder(root, "good")


def test_header_length_that_looks_like_a_pickle_is_no_pickle(root: Path) -> None:
    """A header of 0x0280 bytes makes the file start with 80 02, as a pickle of protocol 2 does."""
    start = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    header = start.ljust(0x0280)
    (root / "good" / "model.safetensors").write_bytes(struct.pack("<Q", 0x0280) + header + bytes(4))
    assert (root / "good" / "model.safetensors").read_bytes()[:2] == b"\x80\x02"
    assert read_model_folder(root, "good").parameters == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        struct.pack("<Q", 1 << 60),
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 4) + b"nope",
        struct.pack("<Q", 8) + b'{"w":{}}',
        tensor_file([4], short_by=1),
        tensor_file([4]) + b"x",
        struct.pack("<Q", 57) + b'{"w":{"dtype":"F32","shape":[-4],"data_offsets":[0,4]}}  ' + bytes(4),
        headed('{"w":{"dtype":"F32","shape":[1],"data_offsets":["0","4"]}}'),
        headed('{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4.0]}}'),
        headed('{"w":{"dtype":"F32","shape":[1000000000000,1000000000000],"data_offsets":[0,4]}}'),
    ],
)
def test_broken_safetensors_are_refused(root: Path, content: bytes) -> None:
    (root / "good" / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        read_model_folder(root, "good")


def test_missing_parts_are_named(root: Path) -> None:
    (root / "good" / "model.safetensors.index.json").write_text('{"weight_map": {"w": "part-2.safetensors"}}')
    with pytest.raises(ModelError, match=r"not there: part-2\.safetensors"):
        read_model_folder(root, "good")
    (root / "good" / "config.json").unlink()
    with pytest.raises(ModelError, match=r"no config\.json"):
        read_model_folder(root, "good")


def test_folder_without_weights_is_refused(root: Path) -> None:
    (root / "good" / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no \.safetensors file"):
        read_model_folder(root, "good")


def test_what_cannot_be_opened_is_a_fault_of_the_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here because it went away while it was read: root, who may run these tests, is refused nothing."""

    def gone(file: Path) -> str:
        file.unlink()
        return str(file.stat().st_size)

    monkeypatch.setattr(model_folder, "_sha256", gone)
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read: No such file"):
        read_model_folder(root, "good")


def unlisted(content: bytes) -> bytes:
    """The zip with a broken directory."""
    torn = bytearray(content)
    torn[torn.rindex(b"PK\x01\x02")] = 0
    return bytes(torn)


@pytest.mark.parametrize("torn", [unlisted(torch_zip()), torch_zip()[:-30], torch_zip()[:80]], ids=[*"abc"])
def test_a_torn_zip_is_named(root: Path, torn: bytes) -> None:
    (root / "good" / "weights.dat").write_bytes(torn)
    with pytest.raises(ModelError, match=r"weights\.dat is a zip file that cannot be read"):
        read_model_folder(root, "good")


@pytest.mark.parametrize(
    "stated", ['{"a": NaN}', '{"a": "\\u0000"}', '{"a": "\\ud800"}', '{"a": 1e999}', '{"a": 9007199254740993}']
)
def test_provenance_that_no_record_can_hold_is_refused(root: Path, stated: str) -> None:
    (root / "good" / "cold_start.json").write_text(stated)
    with pytest.raises(ModelError, match=r"cold_start\.json cannot go into a record"):
        read_model_folder(root, "good")


def test_what_transformers_writes_into_a_config_is_taken(root: Path) -> None:
    """Infinity is not JSON, but is in the config.json of some families; nothing of it is stored."""
    (root / "good" / "config.json").write_text('{"architectures": ["A\\u0000"], "time_step_limit": [0.0, Infinity]}')
    assert read_model_folder(root, "good").architecture == "A\ufffd"


def test_a_file_name_that_is_not_utf8_is_refused(root: Path) -> None:
    (root / "good" / os.fsdecode(b"\xff.safetensors")).write_bytes(tensor_file([3]))
    with pytest.raises(ModelError, match=r"name is not UTF-8"):
        read_model_folder(root, "good")


# ---------------------------------------------------------------- where it lies


@pytest.mark.parametrize(
    "path",
    ["", ".", "..", "../good", "good/..", "good/../good", "/etc", "~root", "good\x00", "good\\x", "%2e%2e/x", "good//",
     "file:good", "good;x", "good#x", "go\u202eod"],
)  # fmt: skip
def test_names_that_could_lead_elsewhere_are_refused(root: Path, path: str) -> None:
    with pytest.raises(ModelError, match="is not a folder's name"):
        read_model_folder(root, path)


def test_links_out_of_the_models_folder_are_refused(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (root / "good").rename(outside)
    (root / "linked").symlink_to(outside)
    with pytest.raises(ModelError, match="leads out of the models folder"):
        read_model_folder(root, "linked")
    (root / "inside").mkdir()
    for file in outside.iterdir():
        (root / "inside" / file.name).symlink_to(file)
    with pytest.raises(ModelError, match="leads out of the models folder"):
        read_model_folder(root, "inside")


def test_links_within_the_models_folder_are_fine(root: Path) -> None:
    (root / "alias").symlink_to(root / "good")
    assert read_model_folder(root, "alias").path == "alias"


def test_absent_folder_says_where_to_put_it(root: Path) -> None:
    with pytest.raises(ModelError, match="There is no folder nothing in the server's models folder"):
        read_model_folder(root, "nothing")


# ---------------------------------------------------------------- service and pages


def test_operator_registers_and_sees_it(
    client_for: ClientFor, ours: Project, oscar: User, tiny_model_folder: str
) -> None:
    client = client_for(oscar)
    response = client.post("/p/ours/models/new/", {"name": "tiny", "path": tiny_model_folder, "revision": ""})
    model = BaseModel.objects.get(project=ours)
    assert response.url == f"/p/ours/models/{model.pk}/"
    assert (model.created_by, model.parameters, model.provenance["task"]) == (oscar, 24, "add-two-digits")
    page = client.get(response.url).content.decode()
    assert model.weights["model.safetensors"]["sha256"] in page
    assert "add-two-digits" in page
    assert "tiny" in client.get("/p/ours/models/").content.decode()


def test_hub_repository_is_taken_at_its_word(client_for: ClientFor, ours: Project, oscar: User) -> None:
    client = client_for(oscar)
    response = client.post(
        "/p/ours/models/new/", {"name": "qwen", "path": "Qwen/Qwen2.5-0.5B", "revision": COMMIT}, follow=True
    )
    model = BaseModel.objects.get(project=ours)
    assert (model.parameters, model.weights, model.weights_digest) == (None, {}, "")
    assert b"not read yet" in response.content


def test_a_hub_repository_shows_what_a_run_read_at_that_commit(
    client_for: ClientFor, ours: Project, alice: User, bob: User, maker: Maker
) -> None:
    model = base_model_register(project=ours, actor=alice, name="qwen", path="Qwen/Qwen2.5-0.5B", revision=COMMIT)
    maker.base_model = model
    facts = {"source": model.path, "revision": COMMIT, "architecture": "Qwen2ForCausalLM", "parameters": 494032768}
    other, right, hostile = (maker.attempt(maker.run(name)) for name in ("other", "right", "hostile"))
    Attempt.objects.filter(pk=other.pk).update(manifest={"model": facts | {"revision": "0" * 40}})
    page = client_for(bob).get(f"/p/ours/models/{model.pk}/").content.decode()
    assert "not read yet" in page
    weights = {"model.safetensors": "ab" * 32}
    Attempt.objects.filter(pk=right.pk).update(manifest={"model": facts | {"weights": weights}})
    page = client_for(bob).get(f"/p/ours/models/{model.pk}/").content.decode()
    assert "read and hashed by a run" in page
    assert "494,032,768 parameters" in page
    assert "ab" * 32 in page
    assert f"/runs/{right.run_id}/" in page
    Attempt.objects.filter(pk=right.pk).update(manifest=None)
    Attempt.objects.filter(pk=hostile.pk).update(
        manifest={"model": facts | {"architecture": HOSTILE, "parameters": "many", "weights": [HOSTILE]}}
    )
    page = client_for(bob).get(f"/p/ours/models/{model.pk}/").content.decode()
    assert HOSTILE_SHOWN in page
    assert "<script>alert" not in page


@pytest.mark.parametrize(
    ("given", "field", "said"),
    [
        ({"path": "nothing"}, "path", "There is no folder nothing"),
        ({"path": "../../etc"}, "path", "is not a folder"),
        ({"path": "Qwen/Qwen2.5-0.5B", "revision": "main"}, "revision", "40 hex digits"),
        ({"path": "https://x/y/z", "revision": COMMIT}, "path", "is not a Hub repository"),
        ({"path": "tiny", "name": ""}, "name", "required"),
    ],
)
def test_faults_stand_beside_their_field(
    client_for: ClientFor, ours: Project, oscar: User, given: dict[str, str], field: str, said: str
) -> None:
    response = client_for(oscar).post("/p/ours/models/new/", {"name": "m", "revision": "", **given})
    assert response.status_code == 422
    assert said in str(response.context["form"].errors[field])
    assert not BaseModel.objects.exists()


def test_more_folders_than_are_shown_are_counted(
    client_for: ClientFor, ours: Project, oscar: User, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment(), "models_dir", root)
    monkeypatch.setattr(views, "FOLDERS_SHOWN", 2)
    for name in ("a", "b"):
        shutil.copytree(root / "good", root / name)
    page = client_for(oscar).get("/p/ours/models/new/")
    assert b"showing 2 of 3" in page.content
    monkeypatch.setattr(views, "FOLDERS_SHOWN", 3)
    assert b"3 found" in client_for(oscar).get("/p/ours/models/new/").content


def test_name_is_used_once_in_a_project(
    ours: Project, alice: User, base_model: BaseModel, tiny_model_folder: str
) -> None:
    with pytest.raises(ValidationError, match="named tiny already"):
        base_model_register(project=ours, actor=alice, name="tiny", path=tiny_model_folder)


@pytest.mark.parametrize("who", ["bob", "rita"])
def test_readers_look_and_do_not_register(
    client_for: ClientFor, request: pytest.FixtureRequest, base_model: BaseModel, who: str
) -> None:
    client = client_for(request.getfixturevalue(who))
    assert client.get(f"/p/ours/models/{base_model.pk}/").status_code == 200
    assert b"Register a model" not in client.get("/p/ours/models/").content
    assert client.get("/p/ours/models/new/").status_code == 403
    assert client.post("/p/ours/models/new/", {"name": "x", "path": "tiny"}).status_code == 403


def test_stranger_reaches_it_through_no_project(client_for: ClientFor, charlie: User, base_model: BaseModel) -> None:
    for slug in ("ours", "theirs"):
        assert client_for(charlie).get(f"/p/{slug}/models/{base_model.pk}/").status_code == 404


def test_wrong_method(client_for: ClientFor, alice: User, base_model: BaseModel) -> None:
    assert client_for(alice).post("/p/ours/models/").status_code == 405
    assert client_for(alice).post(f"/p/ours/models/{base_model.pk}/").status_code == 405
    assert client_for(alice).delete("/p/ours/models/new/").status_code == 405


def test_empty_page_says_what_to_do(client_for: ClientFor, ours: Project, bob: User, alice: User) -> None:
    assert b"Register a model" in client_for(alice).get("/p/ours/models/").content
    assert b"needs the role operator; yours is viewer" in client_for(bob).get("/p/ours/models/").content
