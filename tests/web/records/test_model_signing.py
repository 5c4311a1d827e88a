"""What people download is taken by `model_signing verify key`, the command of the OpenSSF's own library, and what was
changed is not; and this project's reader judges bundles as that library does, or more strictly where its
specification is."""

import base64
import hashlib
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from django.test import Client
from django.utils import timezone

from cohort.audit import services as audit
from cohort.base import artifacts
from cohort.evidence import dsse, model_signing
from cohort.evidence.canonical import canonical
from cohort.evidence.model_signing import BundleError
from cohort.records.models import Record
from cohort.records.services import record_seal
from cohort.runs.models import Checkpoint, CheckpointFile, Run
from grpo_core.records import types as records
from tests.factories import sealed_run
from tests.factories.small_cards import key
from tests.tables import cases
from tests.web.records.conftest import World
from tests.web.records.records import files_of, logged

WEIGHTS = {"model.safetensors": bytes(range(256)) * 40, "config.json": b"{}", "tokenizer.json": b'{"a": 1}'}


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def takes(folder: Path, signature: str, public_key: Path, *more: str) -> tuple[bool, str]:
    """Whether the command accepts the folder, and what it prints."""
    command = [sys.executable, "-m", "model_signing", "verify", "key", "--public_key", str(public_key)]
    done = subprocess.run(
        [*command, "--signature", str(folder / signature), *more, str(folder)], capture_output=True, text=True
    )
    return done.returncode == 0, done.stdout + done.stderr


def trained(run: Run) -> Run:
    """Finished, with its final weights on the platform."""
    files = {name: records.FileEntry(size=len(file), sha256=sha(file)) for name, file in WEIGHTS.items()}
    reported = [
        row.model_copy(update={"files": files}) if isinstance(row, records.CheckpointManifest) and row.final else row
        for row in sealed_run.whole(run)
    ]
    run = sealed_run.finished(run, reported)
    for file in WEIGHTS.values():
        row = {"size": len(file), "received": len(file), "done_at": timezone.now()}
        CheckpointFile.objects.update_or_create(run=run, sha256=sha(file), defaults=row)
        artifacts.put(f"checkpoints/run-{run.pk}/{sha(file)}/{0:020d}", [file])
    Checkpoint.objects.filter(run=run, final=True).update(stored_at=timezone.now())
    return run


@pytest.mark.django_db
@pytest.mark.usefixtures("quick_pdf")
def test_the_command_takes_downloaded_weights_until_one_byte_changes(world: World, tmp_path: Path) -> None:
    run = trained(world.launch())
    checkpoint = Checkpoint.objects.get(run=run, final=True)
    address, operator = f"/p/ours/runs/{run.pk}/checkpoints/{checkpoint.pk}/", world.client("alice")
    assert "No signature goes with it" in operator.get(address).content.decode()
    record_seal(run=run)
    page = operator.get(address).content.decode()
    name, public = f"run-{run.pk}-final", tmp_path / "model-signing.pub"
    assert f"model_signing verify key --public_key model-signing.pub --signature {name}/model.sig {name}" in page
    public.write_bytes(Client().get("/log/model-signing.pub").content)
    with zipfile.ZipFile(io.BytesIO(b"".join(operator.get(f"{address}checkpoint.zip")))) as archive:
        archive.extractall(tmp_path)
    folder = tmp_path / name
    good, printed = takes(folder, "model.sig", public)
    assert good, printed
    (folder / "model.safetensors").write_bytes(WEIGHTS["model.safetensors"][:-1] + b"\0")
    good, printed = takes(folder, "model.sig", public)
    assert not good
    assert "Hash mismatch for 'model.safetensors'" in printed
    (folder / "model.safetensors").write_bytes(WEIGHTS["model.safetensors"])
    (folder / "more.safetensors").write_bytes(b"1")
    assert "Extra files found" in takes(folder, "model.sig", public)[1]
    (folder / "more.safetensors").unlink()
    stranger = tmp_path / "stranger.pub"
    stranger.write_text(model_signing.key_note(key("stranger")))
    assert "Key mismatch" in takes(folder, "model.sig", stranger)[1]


@pytest.mark.django_db
@pytest.mark.usefixtures("quick_pdf")
@pytest.mark.parametrize("audience", ["public", "internal"])
def test_the_command_takes_an_unpacked_card(sealed: Record, tmp_path: Path, audience: str) -> None:
    folder, public = tmp_path / "card", tmp_path / "model-signing.pub"
    for name, content in files_of(sealed.card(audience)).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    public.write_bytes(Client().get("/log/model-signing.pub").content)
    good, printed = takes(folder, "card.sig", public)
    assert good, printed
    (folder / "CARD.md").write_bytes((folder / "CARD.md").read_bytes().replace(b"80", b"90", 1))
    good, printed = takes(folder, "card.sig", public)
    assert not good
    assert "CARD.md" in printed


@pytest.mark.django_db
@pytest.mark.usefixtures("quick_pdf")
def test_each_key_is_logged_once_and_stays_public(sealed: Record, world: World) -> None:
    (entry,) = logged("model_signing_key_made")
    note, hint = entry["data"]["note"], entry["data"]["hint"]
    assert note == model_signing.key_note(audit.signing_key())
    assert files_of(sealed.card("public"))["model-signing.pub"].decode() == note
    sealed_run.sealed(world.launch(name="another"))
    assert len(logged("model_signing_key_made")) == 1, "the same key"
    anyone = Client()
    for address in ("/log/model-signing.pub", f"/log/model-signing/{hint}.pub"):
        assert anyone.get(address).content.decode() == note
    assert hint in anyone.get("/log/").content.decode()
    assert anyone.get(f"/log/model-signing/{'0' * 64}.pub").status_code == 404


# ---------------------------------------------------------------------- vectors

CURVES: dict[str, ec.EllipticCurve] = {
    "P-256": ec.SECP256R1(), "P-384": ec.SECP384R1(), "P-521": ec.SECP521R1(), "secp256k1": ec.SECP256K1(),
}  # fmt: skip
FIELDS = ("curve", "change", "fault", "theirs")
FILES = {"a-b.bin": "1" * 64, "a/b.bin": "2" * 64, "model.safetensors": "3" * 64}


def vector(curve: str, changes: dict[str, Any]) -> tuple[bytes, str]:
    """A bundle with `changes`, signed by a key on this curve, and that key's PEM."""
    if curve == "Ed25519":
        pem = ed25519.Ed25519PrivateKey.generate().public_key().public_bytes(
            Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
        )  # fmt: skip
        curve = "P-256"
    else:
        pem = b""
    private = ec.generate_private_key(CURVES[curve])
    pem = pem or private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    value = json.loads(model_signing.statement(FILES, name="m", ignored=["model.sig"]))
    for path, new in changes.get("statement", {}).items():
        here: Any = value
        *way, last = [int(part) if part.isdigit() else part for part in path.split("/")]
        for part in way:
            here = here[part]
        here[last] = new
    if changes.get("unsorted"):
        value["predicate"]["resources"].reverse()
        whole = b"".join(bytes.fromhex(one["digest"]) for one in value["predicate"]["resources"])
        value["subject"][0]["digest"]["sha256"] = sha(whole)
    payload, kind = canonical(value), changes.get("payloadType", dsse.PAYLOAD_TYPE)
    method = ec.ECDSA(model_signing._HASHES.get(private.curve.name, model_signing._HASHES["secp256r1"])())
    signature = private.sign(dsse.encoded(payload if not changes.get("signature") else b"{}", kind), method)
    material: dict[str, Any] = {"publicKey": {"hint": changes.get("hint", sha(pem))}, "tlogEntries": []}
    if changes.get("hint", "") is None:
        material["publicKey"] = {}
    envelope = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": kind,
        "signatures": [{"keyid": "", "sig": base64.b64encode(signature).decode()}] * changes.get("signatures", 1),
    }
    media = changes.get("mediaType", model_signing.MEDIA_TYPE)
    return canonical({"mediaType": media, "verificationMaterial": material, "dsseEnvelope": envelope}), pem.decode()


@pytest.mark.parametrize(FIELDS, cases("model_signing", *FIELDS))
def test_bundles_are_judged_as_the_library_does_or_more_strictly(
    tmp_path: Path, curve: str | None, change: dict[str, Any] | None, fault: str | None, theirs: str | None
) -> None:
    from model_signing._signing.sign_ec_key import Verifier
    from model_signing._signing.sign_sigstore_pb import Signature

    content, pem = vector(curve or "P-256", change or {})
    (tmp_path / "key.pem").write_text(pem)
    (tmp_path / "model.sig").write_bytes(content)
    if fault is None:
        assert model_signing.opened(content, model_signing.load_public(pem)).files == FILES
    else:
        with pytest.raises(BundleError, match=fault):
            model_signing.opened(content, model_signing.load_public(pem))

    def judged() -> None:
        Verifier(tmp_path / "key.pem").verify(Signature.read(tmp_path / "model.sig"))

    if theirs == "accepts" or fault is None:
        judged()
    else:
        with pytest.raises(Exception):  # noqa: B017 each fault has another class there
            judged()
