"""The cards of a sealed record, for the four audiences: written, attested, logged, checked, stored.

Order matters: every file, then the attestation of each audience, then the log's entry that names them all, then the
proof that the log holds it, then the check that anyone makes of the card. A failure before the rows are stored leaves
at most a log entry without a record.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from django.db import transaction
from django.template.loader import render_to_string
from django.utils.safestring import mark_safe

from cohort.accounts.models import Project
from cohort.audit import services as audit
from cohort.audit.models import AuditEntry
from cohort.base import artifacts
from cohort.base.environment import environment
from cohort.base.storable import Refused
from cohort.evidence import dsse, merkle, model_signing, pyz, status
from cohort.evidence.canonical import canonical, sha256
from cohort.evidence.keys import SigningKey, encode
from cohort.evidence.merkle import root
from cohort.evidence.model_signing import CARD_BUNDLE, WEIGHTS_BUNDLE
from cohort.evidence.plain_text import named
from cohort.evidence.preregistration import FILE as PREREGISTRATION
from cohort.evidence.record import redact, shows
from cohort.evidence.verify.check import References, verify_card
from cohort.evidence.verify.opened import ATTESTATION, OUTSIDE
from cohort.evidence.verify.signed import WEIGHTS, KnownKeys, log_keys
from cohort.evidence.zip_layout import MAX_CARD_BYTES, MAX_TRACE_BYTES, MAX_TRACE_FILE_BYTES
from cohort.records.build import build_record
from cohort.records.cards import bom, markdown, pdf, readme, training_content
from cohort.records.cards.data_files import SHEETS, data_files, sheet
from cohort.records.cards.pack import Pack, Packed
from cohort.records.cards.reading import Reading, Series
from cohort.records.cards.svg import charts
from cohort.records.cards.traces import Traces, trace_lines
from cohort.records.document_view import LEGEND
from cohort.records.facts import Facts
from cohort.records.models import Card
from cohort.records.schema import json_schema
from cohort.records.schema_types import AUDIENCE_WORDS, AUDIENCES, Audience, FileEntry
from cohort.records.sections.preregistered import named_entries
from cohort.records.traces.tree import StepLeaves, step_leaves
from grpo_core.files.checkpoint import MANIFEST

_TRACES: Audience = "authority"
_CHUNK = 1 << 20
OUTSIDE_BUNDLE = (CARD_BUNDLE, *OUTSIDE, *sorted(status.FILES))
"""Files of a card that its bundle says nothing about: itself, and what is made after it, or added by a download."""
OUTSIDE_WEIGHTS_BUNDLE = (MANIFEST, model_signing.KEY, WEIGHTS_BUNDLE)
"""Files in the folder of downloaded weights that are none of the model's: the bundle says nothing about them."""
_MOST_EARLIER = 2048
"""Proofs from earlier sizes of the log that a card carries of the oldest and of the newest cards each."""


class KeysChanged(Refused, code="keys_changed"):
    """The log's key was replaced while cards were being made; another try makes them with the new one."""


@dataclass(frozen=True)
class Contents:
    """Inputs of all cards of a record."""

    document: Mapping[str, Any]
    """record.json of the project itself, with every salt."""
    sealed: Sequence[Packed]
    traces: Sequence[Packed]
    series: Series
    weights: Mapping[str, str]
    run_root: str
    registered: Mapping[str, AuditEntry]
    """Entries of preregistration.json by name; empty where the record names none."""


@dataclass(frozen=True)
class Issue:
    """Why and by whom these cards are issued, for attestation and log."""

    kind: str
    """Of the log's entry."""
    actor: str
    project: Project
    number: int = 1
    reason: str = ""


@dataclass
class Issued:
    """Cards in the artifact store that have no rows yet."""

    stored: dict[Audience, artifacts.Stored] = field(default_factory=dict)
    log_index: int = 0
    checkpoint_size: int = 0

    @property
    def keys(self) -> list[str]:
        return [stored.key for stored in self.stored.values()]

    def remove(self) -> None:
        """Delete the files: there will be no rows."""
        for key in self.keys:
            artifacts.remove(key)


def run_root_of(leaves: Iterable[StepLeaves]) -> str:
    """Hex root of the run's tree; that of an empty tree for a trainer that made no commitments."""
    return root(step.leaves[at : at + 32] for step in leaves for at in range(0, len(step.leaves), 32)).hex()


def issue_cards(pack: Pack, contents: Contents, issue: Issue) -> Issued:
    """Make and store a card for every audience, each after the check that `cohort verify` makes of it. Raises
    CardTooLarge, CardRefused, KeyFault, KeysChanged; then nothing is stored."""
    audit.checkpoint()  # before anything is signed: the log's key is there, and known to the log
    audit.model_key_recorded()
    key, (vkeys, rotations) = audit.signing_key(), audit.public_keys()
    listed = {"origin": key.name, "keys": list(vkeys), "rotations": list(rotations)}
    common = _common(pack, contents, canonical(listed), key)
    files: dict[Audience, list[Packed]] = {}
    payloads: dict[Audience, bytes] = {}
    for audience in AUDIENCES:
        files[audience] = _files(pack, contents, common, audience, key)
        payloads[audience] = _statement(files[audience], contents, audience, issue)
    entry = _logged(contents, issue, payloads)
    proof = audit.prove(entry)
    if audit.public_keys() != (vkeys, rotations):
        raise KeysChanged("the audit log's key was replaced while the cards were being made")
    afterwards = [
        pack.whole("log-entry.json", proof.body),
        pack.whole("proof.tlog-proof", merkle.write(proof.index, proof.path, proof.checkpoint).encode()),
        pack.whole("consistency.json", _consistency(proof.size)),
        *_registration(pack, contents, proof),
    ]
    issued = Issued(log_index=proof.index, checkpoint_size=proof.size)
    stem = f"cards/{contents.document['head']['run']}-{contents.document['seal'][:16]}-{issue.number}-{uuid4().hex[:8]}"
    try:
        for audience in AUDIENCES:
            envelope = dsse.envelope(payloads[audience], dsse.PAYLOAD_TYPE, key)
            whole = [*files[audience], pack.whole(ATTESTATION, envelope), *afterwards]
            path = pack.zip(f"{audience}.zip", whole)
            _require_accepted(path, audience, log_keys(listed))
            with path.open("rb") as handle:
                chunks = iter(partial(handle.read, _CHUNK), b"")
                issued.stored[audience] = artifacts.put(f"{stem}-{audience}.zip", chunks, to_the_last=True)
            path.unlink()
    except BaseException:  # also on termination: the stored files have no rows
        issued.remove()
        raise
    return issued


class CardRefused(Refused, code="card_refused"):
    """A card does not pass its own check: what the database holds of the run does not fit together."""


def _require_accepted(path: Path, audience: Audience, known: KnownKeys) -> None:
    report = verify_card(path, References((known,)))
    if not report.accepted:
        faults = [
            f"{check.name}: {check.lines[0]}" for check in report.checks if check.status not in ("ok", "withheld")
        ]
        raise CardRefused(
            f"the card for {audience} would not pass `cohort verify` ({report.verdict}), so none was stored. What is "
            f"kept of the run does not fit together: {named(faults, 3)}"
        )


def _common(pack: Pack, contents: Contents, keys: bytes, key: SigningKey) -> list[Packed]:
    """The unsealed files that are the same for every audience."""
    contents_by_name = {"record.schema.json": _schema(), "keys.json": keys, "verify.pyz": pyz.build()}
    contents_by_name[model_signing.KEY] = model_signing.key_note(key).encode()
    if contents.weights:
        name = f"run-{contents.document['head']['run']}"
        listed = model_signing.statement(contents.weights, name=name, ignored=OUTSIDE_WEIGHTS_BUNDLE)
        contents_by_name[WEIGHTS_BUNDLE] = model_signing.bundle(listed, key)
    return [pack.whole(name, content) for name, content in contents_by_name.items()]


@cache
def _schema() -> bytes:
    return canonical(json_schema())


def _files(
    pack: Pack, contents: Contents, common: Sequence[Packed], audience: Audience, key: SigningKey
) -> list[Packed]:
    """Every file of the audience's card that its attestation names; the last is the bundle over all the others."""
    document = contents.document if audience == "internal" else redact(dict(contents.document), audience)
    given = {file["path"] for file in document["files"] if shows(audience, file["audience"])}
    sealed = [packed for packed in contents.sealed if packed.name in given]
    traces = list(contents.traces) if shows(audience, _TRACES) else []
    reading = Reading(document, contents.series if "metrics.jsonl" in given else None, contents.weights, key.name)
    copies = {
        markdown.FILE: markdown.card_markdown,
        "card.html": card_html,
        pdf.FILE: pdf.card_pdf,
        bom.FILE: bom.bom,
        training_content.HTML_FILE: training_content.summary_html,
        training_content.JSON_FILE: training_content.summary_json,
    }
    files = [pack.whole("record.json", canonical(document)), *sealed, *traces, *common]
    files += [pack.whole(name, copy(reading)) for name, copy in copies.items()]
    files += [pack.whole(path, sheet(reading, path)) for path in SHEETS]
    names = [file.name for file in files]
    files.append(pack.whole(readme.FILE, readme.readme(reading, [*names, *OUTSIDE_BUNDLE])))
    name = f"card-{reading.head['run']}-{reading.head['end']}-{reading.head['version']}-{audience}"
    digests = {file.name: file.sha256 for file in files}
    listed = model_signing.statement(digests, name=name, ignored=OUTSIDE_BUNDLE)
    return [*files, pack.whole(CARD_BUNDLE, model_signing.bundle(listed, key))]


def card_html(reading: Reading) -> bytes:
    """card.html: the record as one self-contained page without script, so that it opens the same from a disk, a mail or
    a web server, in light, in dark and on paper."""
    context = {
        "reading": reading,
        "head": reading.head,
        "for_whom": AUDIENCE_WORDS[reading.document["audience"]],
        "view": reading.view,
        # svg.py makes them from numbers and escapes the few names in them.
        "charts": [(chart, mark_safe(chart.svg)) for chart in charts(reading)],
        "steps_withheld": reading.series is None,
        "legend": (*LEGEND, ("withheld", "for another audience; its hash is in this card's record.json")),
    }
    return render_to_string("cards/card.html", context).encode()


def _statement(files: Sequence[Packed], contents: Contents, audience: Audience, issue: Issue) -> bytes:
    """The in-toto statement's bytes, of every file of the card and the final weights by their digests: the DSSE
    payload, whose digest goes into the log."""
    subjects = {file.name: file.sha256 for file in files}
    subjects |= {WEIGHTS + name: digest for name, digest in contents.weights.items()}
    predicate = {"seal": contents.document["seal"], "audience": audience}
    predicate |= {"issue": issue.number, "reason": issue.reason}
    predicate |= {"platform": environment().public_url.rstrip("/")}
    return dsse.statement(subjects, dsse.PREDICATE_TYPE, predicate)


@transaction.atomic(durable=True)
def _logged(contents: Contents, issue: Issue, payloads: Mapping[Audience, bytes]) -> Any:
    """The log's entry: the record and the exact bytes of every attestation of it."""
    head = contents.document["head"]
    return audit.log(
        actor=issue.actor,
        kind=issue.kind,
        subject=f"run:{head['run']}",
        project=issue.project,
        reason=issue.reason,
        data={
            "seal": contents.document["seal"],
            "record_root": contents.document["record_root"],
            "run_root": contents.run_root,
            "end": head["end"],
            "version": head["version"],
            "issue": issue.number,
            "attestations": {audience: sha256(payload) for audience, payload in payloads.items()},
        },
    )


def _registration(pack: Pack, contents: Contents, card: audit.Proof) -> list[Packed]:
    """preregistration.json, whose proofs are under the checkpoint of the card's own entry."""
    if not contents.registered:
        return []
    shown = {}
    for name, entry in contents.registered.items():
        proof = audit.proof_under(entry, card)
        shown[name] = {
            "entry": proof.body.decode(),
            "proof": merkle.write(proof.index, proof.path, proof.checkpoint),
        }
    return [pack.whole(PREREGISTRATION, canonical(shown))]


def _consistency(size: int) -> bytes:
    """That the log of `size` entries only grew since earlier cards: for the size in each of them, so that anybody who
    holds one can compare. Of more than twice `_MOST_EARLIER` sizes the oldest and the newest are given."""
    rows = Card.objects.filter(checkpoint_size__lt=size, checkpoint_size__gt=0).order_by("checkpoint_size")
    sizes = [earlier for earlier in rows.values_list("checkpoint_size", flat=True).distinct() if earlier is not None]
    if len(sizes) > 2 * _MOST_EARLIER:
        sizes = sizes[:_MOST_EARLIER] + sizes[-_MOST_EARLIER:]
    proofs = audit.consistency(to=size, sizes=sizes)
    paths = {str(old): [encode(digest) for digest in path] for old, path in proofs.items()}
    return canonical({"size": size, "from": paths})


_FOR_THE_REST = 96 * 1024**2
"""Bytes that traces leave for the record, its copies to read and the proofs."""


def read_contents(
    facts: Facts,
    pack: Pack,
    *,
    version: int = 1,
    max_trace_bytes: int = MAX_TRACE_BYTES,
    max_trace_file_bytes: int = MAX_TRACE_FILE_BYTES,
) -> Contents:
    """Read the run into `pack` and make its record. Traces beyond `max_trace_bytes` are left out, and the record
    notes it. Raises CardTooLarge."""
    leaves = list(step_leaves(facts.run))
    series, left = Series(), MAX_CARD_BYTES
    sealed: list[Packed] = []
    entries: list[FileEntry] = []
    for file in data_files(facts, leaves, series):
        packed = pack.add(file.path, file.content, most=left)
        left -= packed.size
        sealed.append(packed)
        entries.append(FileEntry(path=packed.name, sha256=packed.sha256, size=packed.size, audience=file.audience))
    room = max(0, min(left - _FOR_THE_REST, max_trace_bytes))
    traces = Traces(trace_lines(facts.run), most=room, most_a_file=max_trace_file_bytes)
    shown = [pack.add(name, content) for name, content in traces.files()]
    entries.sort(key=lambda entry: entry.path)
    document = build_record(facts, traces=traces.kept, files=entries, version=version)
    weights = {name: entry["sha256"] for name, entry in facts.checkpoint.files.items()} if facts.checkpoint else {}
    return Contents(document, sealed, shown, series, weights, run_root_of(leaves), named_entries(document))
