"""Pieces of bom.cdx.json: package URLs, hashes, and the software and hardware that the run trained on."""

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from cohort.records.cards.reading import Reading
from grpo_core.text import printable

_TEXT = 8_000
"""Characters of a field that go into a property; record.json has all of it."""
NOT_ASSERTED = "NOASSERTION"
"""SPDX's word for what nobody stated: CISA's minimum elements (2026) want a gap declared, not left."""
NO_LICENCE = [{"license": {"name": NOT_ASSERTED}}]
_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")


def infrastructure(reading: Reading) -> Iterator[dict[str, Any]]:
    """Trainer, Python, packages and machine, as far as the audience sees them. The record has no licences of them."""
    code = reading.value("environment.code")
    if isinstance(code, Mapping) and code.get("version"):
        version = plain(code["version"])
        commit = {name: code.get(name) for name in ("git_commit", "dirty_sha256")}
        yield {
            "type": "application", "bom-ref": "trainer", "name": "cohort-grpo", "version": version,
            "purl": f"pkg:pypi/cohort-grpo@{quote(version, safe='.+')}", "properties": properties(commit),
        }  # fmt: skip
    packages = reading.value("environment.packages")
    for name, version in sorted(packages.items()) if isinstance(packages, Mapping) else ():
        kept, number = plain(name), plain(version)
        purl = f"pkg:pypi/{quote(kept.lower().replace('_', '-'), safe='.')}@{quote(number, safe='.+')}"
        yield {"type": "library", "bom-ref": f"package/{kept}", "name": kept, "version": number, "purl": purl}
    machine = reading.filled_entry("environment.machine")
    if machine is None:
        return
    facts: Mapping[str, Any] = machine["value"] if isinstance(machine["value"], Mapping) else {}
    if facts.get("python"):
        python = plain(facts["python"])
        yield {
            "type": "platform", "bom-ref": "python", "name": "Python", "version": python,
            "purl": f"pkg:generic/python@{quote(python, safe='.')}",
        }  # fmt: skip
    yield {
        "type": "device", "bom-ref": "machine", "name": plain(facts.get("processor") or "machine"),
        "description": plain(machine["text"]),
        "properties": properties({name: fact for name, fact in facts.items() if isinstance(fact, (str, int, float))}),
    }  # fmt: skip


def declared(component: dict[str, Any]) -> dict[str, Any]:
    """The component with what nobody stated of it declared so."""
    return {
        "version": NOT_ASSERTED, "supplier": {"name": NOT_ASSERTED}, "licenses": NO_LICENCE,
    } | component  # fmt: skip


def properties(facts: Mapping[str, object]) -> list[dict[str, str]]:
    return [{"name": f"cohort:{name}", "value": plain(fact)} for name, fact in facts.items() if fact is not None]


def generic_purl(name: str, version: str, digests: Mapping[str, str]) -> str:
    """A package URL (ECMA-427) of what no registry has; `digests` of its files in the qualifier `checksum`."""
    made = f"pkg:generic/{quote(plain(name).strip() or 'unnamed', safe='.')}"
    made += f"@{quote(plain(version), safe='.')}" if version else ""
    sums = ",".join(f"sha256:{digest}" for _, digest in sorted(digests.items()))
    return f"{made}?checksum={sums}" if sums else made


def hub_purl(name: str, revision: str) -> str | None:
    """The package URL of a model on the Hub, which only one with an owner and a commit is; else None."""
    return f"pkg:huggingface/{name}@{revision}" if _HUB.fullmatch(name) and _COMMIT.fullmatch(revision) else None


def plain(text: object) -> str:
    """Text without the characters that steer a terminal; cut, with a note of it, at `_TEXT`."""
    clean = printable(str(text))
    return clean if len(clean) <= _TEXT else f"{clean[:_TEXT]}… (cut here; whole in record.json)"


def hashes(digest: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": digest}]


def is_digest(text: object) -> bool:
    return isinstance(text, str) and len(text) == 64 and all(sign in "0123456789abcdef" for sign in text)
