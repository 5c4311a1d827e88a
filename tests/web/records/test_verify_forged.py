"""Forged cards, a change a case, and which checks notice: by who has the card alone, by who holds the platform's key
and issues the changed files again, and by who changes the record before it is sealed."""

import json
from typing import Any

import pytest

from cohort.evidence import model_signing
from cohort.evidence.canonical import canonical
from cohort.evidence.compare import SuiteFacts, by_suite, compare_all
from cohort.evidence.verify.command import printed
from tests.factories.small_cards import HEAD, UNSAFE, Log, Sealed, bundle, card, check, data_files, key, lines, reissued
from tests.tables import cases

SUITES = (("jailbreak_robustness", "better"), ("harmful_capability", "worse"))
TOUCHED = ["q0", "q3"]
FIELDS = ("by", "base", "audience", "file", "change", "checks", "names")


def rows(after: bool) -> bytes:
    return lines(
        {"suite": suite, "problem_id": f"q{n}", "slice": "de" if n % 2 else "en", "cluster": "", "truncated": False}
        | {"score": int(n % 3 == 0 or (after and n % (4 + at) == 0)), "error": None, "tokens": 5}
        for at, (suite, _) in enumerate(SUITES)
        for n in range(40)
    )


def comparisons() -> list[dict[str, Any]]:
    sides = [by_suite(map(json.loads, rows(after).splitlines())) for after in (False, True)]
    facts = [SuiteFacts(name, name, name, way, False, 0.05, {}) for name, way in SUITES]  # type: ignore[arg-type]
    return compare_all((one, sides[0][one.suite], sides[1][one.suite], True, TOUCHED) for one in facts)


def two_suites() -> Sealed:
    """Two safety suites with slices, and items that the training texts held."""

    def compared(document: dict[str, Any]) -> None:
        document["sections"]["behaviour"]["performance"]["value"] = comparisons()

    files = data_files() | {f"evals/{when}.jsonl": ("public", rows(when == "after")) for when in ("before", "after")}
    return Sealed(files, change=compared)


def put(value: Any, changes: dict[str, Any]) -> Any:
    """`value` with others at the paths, whose steps are separated by slashes."""
    for path, new in changes.items():
        here = value
        *way, last = [int(step) if step.isdigit() else step for step in path.split("/")]
        for step in way:
            here = here[step]
        here[last] = new
    return value


def content_of(old: bytes, name: str, changes: dict[str, Any]) -> bytes:
    stored = old.splitlines(keepends=True)
    match changes:
        case {"text": text}:
            return str(text).encode()
        case {"bundle": listed, **more}:
            return bundle(listed, Log(more.get("signer", "first")))
        case {"key": seed}:
            return model_signing.key_note(key(seed)).encode()
        case {"rows": order}:
            return b"".join(stored[at] for at in order)
        case {"lines": parsed}:
            return b"".join(json.dumps(line).encode() + b"\n" for line in parsed)
        case {"set": values} if name.endswith(".jsonl"):
            return content_of(old, name, {"lines": put([json.loads(line) for line in stored], values)})
        case {"set": values}:
            return canonical(put(json.loads(old), values))
    raise AssertionError(changes)


def forged(by: str, base: str, audience: str, file: str, changes: dict[str, Any]) -> dict[str, bytes]:
    log, sealed = Log(notes=4, sizes=(3, 4)), two_suites() if base == "suites" else Sealed()
    if by == "sealed":
        first = sealed.change

        def change(document: dict[str, Any]) -> None:
            if first is not None:
                first(document)
            put(document, changes["set"])

        sealed.change = change
        return card(log, sealed, audience)
    made = card(log, sealed, audience)
    if by == "issued":
        return reissued(log, made, lambda inside: inside.update({file: content_of(inside[file], file, changes)}))
    match changes:
        case {"absent": True}:
            return {name: content for name, content in made.items() if name != file}
        case {"rename": names}:
            return {names.get(name, name): content for name, content in made.items()}
        case {"take": names, "of": other}:
            head = {**HEAD, "version": other.get("version", 1)}
            taken = card(log, Sealed(head=head), other.get("audience", audience))
            return {**made, **{name: taken[name] for name in names}}
    return {**made, file: content_of(made.get(file, b""), file, changes)}


@pytest.mark.parametrize(FIELDS, cases("verify/forged", *FIELDS))
def test_a_forged_card_is_noticed_by(
    by: str | None,
    base: str,
    audience: str | None,
    file: str | None,
    change: dict[str, Any],
    checks: dict[str, str],
    names: str | None,
) -> None:
    report = check(forged(by or "changed", base, audience or "internal", file or "record.json", change))
    wrong = [one for one in report.checks if one.status not in ("ok", "withheld")]
    assert {one.name: one.status for one in wrong} == checks
    assert names is None or names in wrong[0].detail
    assert report.exit_status == (1 if "failed" in checks.values() else 2 if checks else 0)
    assert not UNSAFE.search(printed(report))
