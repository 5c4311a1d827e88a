"""Small whole cards to check, made without a database: a log with a key, a sealed record, a card for each audience.

Everything here goes by docs/card.md and uses the evidence library's hashes, so that a test can change any part, make
every digest right again as a forger who holds the platform's key would, and see which check still notices.
"""

import base64
import copy
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cohort.evidence import dsse, merkle, model_signing, record, zip_layout
from cohort.evidence.canonical import canonical, sha256
from cohort.evidence.checkpoint import Checkpoint, rotation
from cohort.evidence.compare import Case, Item, SuiteFacts, by_suite, compare_all
from cohort.evidence.keys import PublicKey, SigningKey
from cohort.evidence.merkle import Nodes, leaf_hash
from cohort.evidence.note import sign_note
from cohort.evidence.samples import Commitments
from cohort.evidence.verify import Report, check_card
from cohort.evidence.verify.check import References
from cohort.evidence.verify.opened import OUTSIDE
from cohort.evidence.verify.record import schema
from cohort.evidence.verify.signed import KnownKeys
from grpo_core.config.yaml_text import dump_yaml
from grpo_core.records.leaves import leaf

ORIGIN = "cohort.example/log"
PLATFORM = "http://127.0.0.1:9"
"""Where nobody answers."""
UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]")
"""What must not be printed of a card: it steers a terminal."""
Change = Callable[[dict[str, Any]], None]


def key(seed: str, name: str = ORIGIN) -> SigningKey:
    """The same key for the same seed."""
    return SigningKey(name, Ed25519PrivateKey.from_private_bytes(hashlib.sha256(seed.encode()).digest()))


def known(given: PublicKey) -> References:
    """What a reader has who got this key from the operator."""
    return References((KnownKeys((given,)),))


OWN = known(key("first").public_key)


def salt(*names: object) -> str:
    return hashlib.sha256(canonical([str(name) for name in names])).hexdigest()[:32]


# ---------------------------------------------------------------------- the log


class Log:
    """The platform's log and keys, as its owner holds them."""

    def __init__(
        self,
        seed: str = "first",
        entries: Iterable[bytes] = (),
        origin: str = ORIGIN,
        notes: int = 0,
        sizes: Iterable[int] = (),
    ) -> None:
        self.origin = origin
        self.keys = [key(seed, origin)]
        self.rotations: list[str] = []
        self.bodies: list[bytes] = []
        self.nodes = Nodes()
        self.sizes = list(sizes)
        """Of the checkpoints of earlier cards."""
        self.cards: list[dict[str, bytes]] = []
        """For whoever keeps some."""
        for body in entries:
            self.append(body)
        for number in range(notes):
            self.note(str(number))

    def append(self, body: bytes) -> int:
        self.bodies.append(body)
        self.nodes.extend([leaf_hash(body)])
        return len(self.bodies) - 1

    def note(self, what: str) -> int:
        """Something else that happened."""
        return self.append(entry("member_added", f"user:{what}", {}))

    def rotate(self, seed: str) -> None:
        new = key(seed, self.origin)
        self.rotations.append(rotation(self.keys[-1], new.public_key, "2026-11-22T10:00:00Z"))
        self.keys.append(new)

    def keys_file(self) -> dict[str, Any]:
        return {"origin": self.origin, "keys": [one.vkey for one in self.keys], "rotations": self.rotations}

    def checkpoint(self, signed_by: SigningKey | None = None) -> str:
        text = Checkpoint(self.origin, len(self.nodes), self.nodes.root()).text()
        return sign_note(text, [signed_by or self.keys[-1]])


def entry(kind: str, subject: str, data: dict[str, Any]) -> bytes:
    body = {"at": "2026-11-22T10:00:00.000000Z", "actor": "platform", "kind": kind, "subject": subject}
    body |= {"project": "sums", "before": None, "after": None, "reason": "", "data": data}
    return canonical(body | {"nonce": salt(kind, subject)})


# ---------------------------------------------------------------------- the run

CONFIG = {"model": {"path": "tiny"}, "sampling": {"group_size": 2}, "eval": {"margin": 0.05, "suites": []}}
REWARDS = (0.5, 0.75, 1.0)
BEFORE = (1, 1, 1, 0, 0, 0, 0, 0, 0, 0)
"""3 of 10."""
AFTER = (1, 1, 0, 1, 1, 1, 1, 1, 0, 0)
"""7 of 10: 5 fixed, 1 broken."""


def lines(values: Iterable[Any]) -> bytes:
    return b"".join(canonical(value) + b"\n" for value in values)


def items(scores: Iterable[float]) -> bytes:
    return lines(
        {"suite": "heldout", "problem_id": f"add-{n}", "slice": "", "cluster": "", "score": score}
        | {"truncated": n == 1, "error": None, "tokens": 20}
        for n, score in enumerate(scores)
    )


def group(step: int, index: int) -> dict[str, Any]:
    samples = [
        {"index": at, "completion": f"<answer>{step + at}</answer> é", "tokens": 7, "finish_reason": "eos"}
        | {"reward": float(at), "advantage": 2.0 * at - 1, "salt": salt(step, index, at)}
        for at in range(2)
    ]
    problem = {"problem_id": f"add-{index}", "prompt": "1 + 1?", "answer": "2"}
    return {"step": step, "index": index, **problem, "samples": samples}


def sample_content(line: dict[str, Any], at: int) -> dict[str, Any]:
    one = line["samples"][at]
    return {
        "step": line["step"],
        "group": line["index"],
        "sample": at,
        "problem_id": line["problem_id"],
        "prompt": line["prompt"],
        **{name: one[name] for name in ("completion", "tokens", "finish_reason", "reward", "advantage")},
    }


def commitments() -> bytes:
    """Three steps of two groups; step 2 was begun by the first attempt and done again by the second."""
    rows = []
    for attempt, step, superseded in ((1, 1, False), (1, 2, True), (2, 2, False), (2, 3, False)):
        leaves = [
            leaf(bytes.fromhex(line["samples"][at]["salt"]), sample_content(line, at))
            for line in (group(step, 0), group(step, 1))
            for at in range(2)
        ]
        packed = base64.b64encode(b"".join(leaves)).decode()
        of_step = {"attempt": attempt, "step": step, "superseded": superseded}
        rows.append(of_step | {"count": len(leaves), "leaves": packed})
    return lines(rows)


def data_files() -> dict[str, tuple[str, bytes]]:
    """Sealed file → (audience, content)."""
    return {
        "commitments.jsonl": ("public", commitments()),
        "config.yaml": ("downstream", dump_yaml(CONFIG).encode()),
        "evals/after.jsonl": ("public", items(AFTER)),
        "evals/before.jsonl": ("public", items(BEFORE)),
        "events.jsonl": ("internal", lines([{"kind": "run_submitted", "actor": "user:ada"}])),
        "manifest.json": ("authority", canonical({"code": {"version": "0.1.0"}})),
        "metrics.jsonl": ("downstream", lines({"step": n, "metrics": {"reward": r}} for n, r in enumerate(REWARDS, 1))),
    }


FACTS = SuiteFacts("heldout", "Held-out problems", "performance", "better", False, 0.05, {"temperature": 0.0})


def compared(before: dict[str, list[Item]], after: dict[str, list[Item]]) -> Case:
    return FACTS, before.get("heldout"), after.get("heldout"), True, None


VALUES: dict[str, Any] = {
    "method.config": {"sha256": sha256(canonical(CONFIG))},
    "budget.steps": {"done": 3, "planned": 3},
    "reward.course": {"first_step": 1, "first": 0.5, "last_step": 3, "last": 1.0},
}
AUDIENCES = {"method.rationale": "authority", "handling.inventory": "internal", "data.choice": "downstream"}


def sections(files: dict[str, tuple[str, bytes]]) -> dict[str, dict[str, Any]]:
    """Every field of the schema; those that a check reads are filled."""
    parsed = [by_suite(map(json.loads, files[f"evals/{phase}.jsonl"][1].splitlines())) for phase in ("before", "after")]
    values = {**VALUES, "behaviour.performance": compare_all([compared(*parsed)])}
    filled: dict[str, dict[str, Any]] = {}
    for section, part in schema()["properties"]["sections"]["properties"].items():
        for name in part["required"]:
            path = f"{section}.{name}"
            value = copy.deepcopy(values.get(path))
            filled.setdefault(section, {})[name] = {
                "value": value,
                "text": "not stated" if value is None else "in words −",
                "source": "not stated" if value is None else "measured",
                "evidence": "none" if value is None else "recomputable",
                "audience": AUDIENCES.get(path, "public"),
                "note": "",
                "salt": salt(path),
            }
    return filled


# ---------------------------------------------------------------------- the card

WEIGHTS = {"model.safetensors": "9" * 64}
"""Of the final weights, by their digests."""
HEAD = {"title": "sums", "run": 7, "end": 1, "version": 1, "state": "succeeded", "sealed_at": "2026-11-22T10:00:00Z"}


@dataclass
class Sealed:
    """A record as it was sealed, and its files; `seal` makes its digests from them."""

    files: dict[str, tuple[str, bytes]] = field(default_factory=data_files)
    head: dict[str, Any] = field(default_factory=lambda: dict(HEAD))
    traces: list[dict[str, Any]] | None = None
    """Groups shown to an authority; None: some of the small run's."""
    change: Change | None = None
    """Done to the internal document before its digests are made."""
    document: dict[str, Any] = field(default_factory=dict)

    def seal(self) -> dict[str, Any]:
        self.document = {
            "schema": record.SCHEMA,
            "audience": "internal",
            "head": self.head,
            "sections": sections(self.files),
            "files": [
                {"path": path, "sha256": sha256(content), "size": len(content), "audience": audience}
                for path, (audience, content) in sorted(self.files.items())
            ],
        }
        if self.change:
            self.change(self.document)
        self.document["record_root"] = record.record_root(self.document)
        self.document["seal"] = record.seal_of(self.document)
        return self.document


def cards(
    log: Log, sealed: Sealed | None = None, audiences: Iterable[str] = record.AUDIENCES
) -> dict[str, dict[str, bytes]]:
    """Audience → the files of its card. Seals the record, logs it, and proves it under a new checkpoint."""
    sealed = sealed or Sealed()
    sealed.seal()
    return issue(log, {audience: _inside(log, sealed, audience) for audience in audiences})


def issue(log: Log, made: dict[str, dict[str, bytes]]) -> dict[str, dict[str, bytes]]:
    """Attest, log and prove cards whose other files are there; audience → files."""
    first = next(iter(made.values()))
    document = json.loads(first["record.json"])
    for files in made.values():
        files["card.sig"] = bundle({name: one for name, one in digests(files).items() if name != "card.sig"}, log)
    payloads = {
        audience: dsse.statement(
            digests(files) | {f"weights/{name}": digest for name, digest in WEIGHTS.items()},
            dsse.PREDICATE_TYPE,
            {"seal": document["seal"], "audience": audience, "issue": 1, "reason": "", "platform": PLATFORM},
        )
        for audience, files in made.items()
    }
    data = {
        "seal": document["seal"],
        "record_root": document["record_root"],
        "run_root": run_root(first["commitments.jsonl"]),
        "attestations": {audience: sha256(payload) for audience, payload in payloads.items()},
    }
    body = entry("record_sealed", f"record:{document['head']['run']}", data)
    index = log.append(body)
    size = len(log.nodes)
    proof = merkle.write(index, log.nodes.inclusion(index, size), log.checkpoint())
    proofs = {
        str(old): [base64.b64encode(one).decode() for one in log.nodes.consistency(old, size)] for old in log.sizes
    }
    for audience, files in made.items():
        files["attestation.dsse.json"] = dsse.envelope(payloads[audience], dsse.PAYLOAD_TYPE, log.keys[-1])
        files["log-entry.json"] = body
        files["proof.tlog-proof"] = proof.encode()
        files["consistency.json"] = canonical({"size": size, "from": proofs})
    log.sizes.append(size)
    return made


def digests(files: dict[str, bytes]) -> dict[str, str]:
    return {name: sha256(content) for name, content in files.items()}


def bundle(files: dict[str, str], log: Log) -> bytes:
    """Of a folder's files by their digests, as `model_signing` reads it."""
    return model_signing.bundle(model_signing.statement(files, name="run-7", ignored=OUTSIDE), log.keys[-1])


def run_root(commitments: bytes) -> str:
    try:
        return Commitments(map(json.loads, commitments.splitlines())).root().hex()
    except (ValueError, RecursionError):
        return "0" * 64  # no commitments at all


def reissued(log: Log, files: dict[str, bytes], change: Callable[[dict[str, bytes]], None]) -> dict[str, bytes]:
    """A card with files changed, and everything that hangs on them made right again: list of files, seal, attestation,
    entry, proof. What who holds the platform's key and database can do at any time, and can with any bytes."""
    inside = {name: content for name, content in files.items() if name not in OUTSIDE}
    document = json.loads(inside.pop("record.json"))
    change(inside)
    for one in document["files"]:
        if one["path"] in inside:
            one |= {"sha256": sha256(inside[one["path"]]), "size": len(inside[one["path"]])}
    document["seal"] = record.seal_of(document)
    audience = document["audience"]
    return issue(log, {audience: {"record.json": canonical(document), **inside}})[audience]


def card(log: Log, sealed: Sealed | None = None, audience: str = "internal") -> dict[str, bytes]:
    return cards(log, sealed, [audience])[audience]


def signed_by(log: Log) -> dict[str, bytes]:
    """What is in a card because of the key that signs weights and cards."""
    return {"model-signing.pub": model_signing.key_note(log.keys[-1]).encode(), "model.sig": bundle(WEIGHTS, log)}


def _inside(log: Log, sealed: Sealed, audience: str) -> dict[str, bytes]:
    """The files that the attestation holds."""
    files = {
        "record.json": canonical(record.redact(sealed.document, audience)),
        "record.schema.json": canonical(schema()),
        "CARD.md": "# sums\n\n30.0 % before −\n".encode(),
        "keys.json": canonical(log.keys_file()),
        **signed_by(log),
    }
    files |= {path: one for path, (who, one) in sealed.files.items() if record.shows(audience, who)}
    if record.shows(audience, "authority"):
        traces = sealed.traces
        if traces is None:
            traces = [group(1, 0), group(1, 1), group(3, 1)]
            traces[1]["samples"][0] = {"index": 0, "redacted": True}
        files["traces/steps-000001-000100.jsonl"] = lines(traces)
    return files


def entry_info(name: str) -> zipfile.ZipInfo:
    """The head of a new entry; all but the name is the same for each."""
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.compress_type, info.create_system, info.external_attr = zipfile.ZIP_DEFLATED, 3, zip_layout.MODE
    return info


def packed(files: dict[str, bytes], level: int = 6) -> bytes:
    """The zip, laid out as a card is."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compresslevel=level) as archive:
        for name, content in files.items():
            with archive.open(entry_info(name), "w") as one:
                one.write(content)
    return out.getvalue()


def check_zip(content: bytes | io.BytesIO, references: References | None = None) -> Report:
    return check_card(io.BytesIO(content) if isinstance(content, bytes) else content, "card.zip", references or OWN)


def check(files: dict[str, bytes], references: References | None = None) -> Report:
    return check_zip(packed(files), references)


def faults(report: Report) -> dict[str, str]:
    """Check → what it says, of those that are not as they must be."""
    return {one.name: one.detail for one in report.checks if one.status in ("failed", "cannot")}
