"""README.txt: what the zip is, what each file holds, and how to check it. The first file that a reader opens."""

from collections.abc import Iterable

from cohort.records.cards.reading import Reading
from cohort.records.schema_types import AUDIENCE_WORDS
from grpo_core.text import printable

FILE = "README.txt"

WHAT_FILES_HOLD = (
    ("record.json", "the record: every field with its value, source and evidence (RFC 8785 canonical JSON)"),
    ("record.schema.json", "JSON Schema (2020-12) of record.json"),
    ("CARD.md", "the record as a model card for model hubs"),
    ("card.html", "the record as a page; open it in any browser, no network needed"),
    ("card.pdf", "the record to print"),
    ("bom.cdx.json", "CycloneDX 1.7 ML-BOM with a model card"),
    ("sheets/eu-documentation-form.md", "what a documentation form of the EU asks, and where it is here"),
    ("sheets/training-content-summary.html", "a draft of the EU's public summary of training content"),
    ("sheets/training-content-summary.json", "the same for machines"),
    ("sheets/nist-ai-rmf.md", "what NIST's AI risk framework asks, and where it is here"),
    ("model.sig", "OpenSSF model signing bundle of the final weights, for `model_signing verify key`"),
    ("card.sig", "the same over the files of this card"),
    ("model-signing.pub", "the public key (PEM) of both bundles, signed by the key of the platform's log"),
    ("config.yaml", "the run's complete config"),
    ("manifest.json", "what the trainer ran on: code, packages, machine, model, data"),
    ("outcome.json", "totals that the trainer reported at its end"),
    ("metrics.jsonl", "numbers of every step"),
    ("problems.jsonl", "the problems of the kept groups, to score their samples again"),
    ("checkpoints.jsonl", "digests of every file of every checkpoint, to do steps again from"),
    ("events.jsonl", "what happened to the run, with time and actor"),
    ("evals/", "every evaluated item, before and after training"),
    ("commitments.jsonl", "a salted hash of every completion of the run, kept or not"),
    ("traces/", "sampled groups that were kept, with rewards"),
    ("attestation.dsse.json", "signature over the digest of every file here (in-toto statement in a DSSE envelope)"),
    ("log-entry.json", "the entry about this sealing in the platform's audit log"),
    ("proof.tlog-proof", "proof that the log holds that entry, under a signed checkpoint"),
    ("consistency.json", "proof that the log only grew since earlier cards were made"),
    ("keys.json", "the keys that this card was signed with, by its own words, and how each replaced the one before"),
    ("STATUS.html", "what happened to the record since its seal: read this first"),
    ("STATUS.pdf", "the same, to print"),
    ("status.json", "the same, signed, with its proof in the platform's log"),
    ("verify.pyz", "the checker: one file of Python, needs only the package cryptography"),
)
"""(path or folder, what it holds), in the order of reading."""

_WIDTH = 34


def readme(reading: Reading, paths: Iterable[str]) -> bytes:
    """`paths`: every file of this card."""
    present = set(paths)
    head = reading.head
    listed = [
        f"  {name:<{_WIDTH}}{words}"
        for name, words in WHAT_FILES_HOLD
        if name in present or (name.endswith("/") and any(path.startswith(name) for path in present))
    ]
    lines = [
        f"Governance card of {printable(head['title'])}",
        "",
        f"Run {head['run']}, end {head['end']}, version {head['version']} of its record. The run {head['state']}.",
        f"Sealed {head['sealed_at']}. For: {reading.audience} ({AUDIENCE_WORDS[reading.document['audience']]}).",
        "",
        f"Seal   {reading.seal}",
        f"Short  {reading.short_digest}",
        "The seal is the same in the card of every audience. Compare it with the one that the platform shows, or that",
        "you were given on another way.",
        "",
        "Check this card:",
        "  python -m venv check && check/bin/pip install cryptography",
        "  check/bin/python verify.pyz CARD.zip --key keys.json",
        "keys.json are the platform's public keys: get them from its operator or its page /log/keys.json, NOT from",
        "this zip. Without --key the check says `unknown signer`: anyone can make a card that is whole in itself, and",
        "sign it with a key of their own.",
        "The first line is the verdict, and sets the exit status: accepted (0), changed (1), cannot check (2), unknown",
        "signer (3), revoked (4), superseded (5), status unknown (6), rejected (7).",
        "What happened to the record since it was sealed is in STATUS.html, signed in status.json. The check asks the",
        "platform for a newer one, and sends the seal alone; with --offline it asks nobody.",
        "Where Cohort is installed, `cohort verify CARD.zip` does the same. Take verify.pyz from the platform's own",
        "page if you do not trust who gave you this zip: who changes a card can change the checker in it.",
        "To do steps of the run again with its trainer: `cohort replay CARD.zip`; to score its samples again: `cohort",
        "rescore CARD.zip`.",
        "With an older card of the same platform: `… CARD.zip --against OLDER.zip` shows that its log only grew.",
        "",
        "What it does not prove: that the training ran as the trainer reported it, that entries were true when they",
        "were written, and anything about behaviour that was not evaluated.",
        "",
        "Files:",
        *listed,
        "",
        "Fields of record.json that are for another audience are withheld: their hash replaces them, so that",
        "the seal still covers them.",
    ]
    return "\n".join([*lines, ""]).encode()
