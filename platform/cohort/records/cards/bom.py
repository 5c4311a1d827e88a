"""bom.cdx.json: the trained model as a CycloneDX 1.7 ML-BOM, with its model card.

CycloneDX's Python library has no model card, so the document is put together by hand; a test holds it against the
library's strict validator. GRPO's settings have no place of their own in CycloneDX: they are properties `cohort:…`.
Metric values and bounds are text there.
"""

import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from cohort.records.answers import printable
from cohort.records.cards.reading import Reading

FILE = "bom.cdx.json"
_NAMESPACE = uuid.UUID("6f2b1c0e-8f0a-5d54-9d55-3f0c1a7b9e21")
"""Of serial numbers made from seals."""

_PROPERTIES = (
    "subject.training_method", "subject.reference_policy", "subject.old_policy", "reward.source", "reward.verifier",
    "reward.rule_or_model", "reward.domain", "reward.verifiable_or_social", "method.loss", "method.normalization",
    "method.clipping", "method.kl", "method.group_size", "method.sampling", "method.optimiser", "method.preset",
    "method.config", "rejected.samples", "rejected.groups", "rejected.truncated", "rejected.traces",
    "rejected.commitments", "budget.steps", "budget.time", "budget.tokens", "budget.compute", "environment.seeds",
    "environment.code", "handling.trace_policy",
)  # fmt: skip
_LIMITATIONS = (
    "reward.brittleness", "data.decontamination", "behaviour.benchmark_contamination", "behaviour.safety_regressions",
)  # fmt: skip
_TEXT = 8_000
"""Characters of a field that go into a property; the whole stands in record.json."""


def bom(reading: Reading) -> bytes:
    """The document's bytes: the same for the same record and audience."""
    seal = reading.seal
    component = _model(reading)
    document: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.7.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.7",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, f'{seal} {reading.audience}')}",
        "version": 1,
        "metadata": {
            "timestamp": reading.head["sealed_at"],
            "tools": {"components": [{"type": "application", "name": "Cohort"}]},
            "component": component,
            "properties": [
                {"name": "cohort:seal", "value": seal},
                {"name": "cohort:record_root", "value": reading.document["record_root"]},
                {"name": "cohort:audience", "value": reading.audience},
            ],
        },
        "components": list(_datasets(reading)),
    }
    base = _base(reading)
    parts = ([base["bom-ref"]] if base else []) + [one["bom-ref"] for one in document["components"]]
    document["dependencies"] = [{"ref": component["bom-ref"], "dependsOn": parts}]
    return json.dumps(document, ensure_ascii=False, sort_keys=True, indent=2).encode() + b"\n"


def _model(reading: Reading) -> dict[str, Any]:
    head = reading.head
    base = _base(reading)
    component: dict[str, Any] = {
        "type": "machine-learning-model",
        "bom-ref": "model",
        "name": _plain(head["title"]),
        "version": f"run {head['run']}, end {head['end']}, record version {head['version']}",
        "description": _plain(reading.text("subject.outcome") or f"The run {head['state']}."),
        "modelCard": {
            "modelParameters": _parameters(reading),
            "quantitativeAnalysis": {"performanceMetrics": list(_metrics(reading))},
            "considerations": _considerations(reading),
            "properties": list(_properties(reading)),
        },
    }
    if base is not None:
        component["pedigree"] = {"ancestors": [base]}
        if notes := reading.text("subject.lineage"):
            component["pedigree"]["notes"] = _plain(notes)
    if len(reading.weights) == 1:
        component["hashes"] = _hashes(next(iter(reading.weights.values())))
    elif reading.weights:
        component["components"] = [
            {"type": "file", "name": _plain(name), "bom-ref": f"weights/{number}", "hashes": _hashes(digest)}
            for number, (name, digest) in enumerate(sorted(reading.weights.items()), start=1)
        ]
    return component


def _base(reading: Reading) -> dict[str, Any] | None:
    """The model that training began with; None where this audience is told nothing of it."""
    said = reading.said("subject.base_model")
    if said is None:
        return None
    value = said["value"] if isinstance(said["value"], Mapping) else {}
    name = value.get("source") or value.get("path") or value.get("name") or said["text"]
    component: dict[str, Any] = {
        "type": "machine-learning-model",
        "bom-ref": "base-model",
        "name": _plain(name),
        "description": _plain(said["text"]),
    }
    if value.get("revision"):
        component["version"] = _plain(value["revision"])
    weights = {name: digest for name, digest in (value.get("weights") or {}).items() if _is_digest(digest)}
    if len(weights) == 1:
        component["hashes"] = _hashes(next(iter(weights.values())))
    elif weights:
        component["components"] = [
            {"type": "file", "name": _plain(name), "bom-ref": f"base-weights/{number}", "hashes": _hashes(digest)}
            for number, (name, digest) in enumerate(sorted(weights.items()), start=1)
        ]
    return component


def _parameters(reading: Reading) -> dict[str, Any]:
    found: dict[str, Any] = {"task": "text-generation"}
    if reading.value("subject.training_method") != "none":
        found["approach"] = {"type": "reinforcement-learning"}
    if architecture := reading.value("subject.base_model", "architecture"):
        found["modelArchitecture"] = _plain(architecture)
    if refs := [{"ref": one["bom-ref"]} for one in _datasets(reading)]:
        found["datasets"] = refs
    return found


def _datasets(reading: Reading) -> Iterator[dict[str, Any]]:
    """Training and held-out problems, and every other suite: components of type data."""
    for ref, path, default in (
        ("training-prompts", "data.prompts", "training prompts"),
        ("held-out-problems", "data.heldout", "held-out problems"),
    ):
        said = reading.said(path)
        if said is None or said["source"] == "not applicable":
            continue
        value = said["value"] if isinstance(said["value"], Mapping) else {}
        yield _data(ref, value.get("dataset") or default, said["text"], value.get("sha256"))
    for number, one in enumerate(reading.comparisons, start=1):
        if one["suite"] == "heldout":
            continue
        text = f"{one.get('title') or one['suite']}, {one['problems']} items, category {one['category']}"
        yield _data(f"suite/{number}", one["suite"], text, one["protocol"].get("sha256"))


def _data(ref: str, name: object, text: object, digest: object) -> dict[str, Any]:
    content: dict[str, Any] = {"type": "dataset", "name": _plain(name), "description": _plain(text)}
    component = {"type": "data", "bom-ref": ref, "name": _plain(name), "data": [content]}
    return component | ({"hashes": _hashes(str(digest))} if _is_digest(digest) else {})


def _metrics(reading: Reading) -> Iterator[dict[str, Any]]:
    """Scores before and after with their intervals, the difference, and each slice after training."""
    for one in reading.comparisons:
        for phase in ("before", "after"):
            if (side := one[phase]) is not None:
                yield _metric(f"{one['suite']}: score {phase} training", side["share"], side["interval"])
        if (change := one["change"]) is not None:
            yield _metric(f"{one['suite']}: after minus before", change["difference"], change["interval"])
        for part in one.get("slices", ()):
            if (side := part["after"]) is not None:
                name = f"{one['suite']}: score after training"
                yield {**_metric(name, side["share"], side["interval"]), "slice": _plain(part["slice"])}


def _metric(kind: str, value: float, interval: Mapping[str, float]) -> dict[str, Any]:
    bounds = {"lowerBound": f"{interval['low']:.6g}", "upperBound": f"{interval['high']:.6g}"}
    return {"type": _plain(kind), "value": f"{value:.6g}", "confidenceInterval": bounds}


def _considerations(reading: Reading) -> dict[str, Any]:
    found: dict[str, Any] = {}
    limits = [_field(reading, path) for path in _LIMITATIONS if reading.text(path)]
    if limits:
        found["technicalLimitations"] = limits
    kept = [
        {"name": f"cohort:{path}", "value": _plain(text)}
        for path in ("budget.energy", "budget.compute")
        if (text := reading.text(path))
    ]
    if kept:
        found["environmentalConsiderations"] = {"properties": kept}
    return found


def _properties(reading: Reading) -> Iterator[dict[str, str]]:
    for path in _PROPERTIES:
        said = reading.said(path)
        if said is not None:
            yield {"name": f"cohort:{path}", "value": _plain(said["text"])}
            yield {"name": f"cohort:{path}:source", "value": _plain(said["source"])}


def _field(reading: Reading, path: str) -> str:
    said = reading.said(path)
    assert said is not None, "only fields that say something are listed"
    return _plain(f"{said['text']} ({said['source']})")


def _plain(text: object) -> str:
    """Text without the characters that steer a terminal; cut, with a word that it was, at `_TEXT`."""
    found = printable(str(text))
    return found if len(found) <= _TEXT else f"{found[:_TEXT]}… (cut here; whole in record.json)"


def _hashes(digest: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": digest}]


def _is_digest(text: object) -> bool:
    return isinstance(text, str) and len(text) == 64 and all(sign in "0123456789abcdef" for sign in text)
