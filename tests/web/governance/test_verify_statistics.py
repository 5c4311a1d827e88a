"""Holm over the safety suites, slices and the subset without touched items are computed again from the items."""

import json
from typing import Any

import pytest

from cohort.evidence.compare import SuiteFacts, by_suite, compare_all
from tests.web.governance.card_made import Log, Sealed, card, check, data_files, faults, lines

SUITES = (("jailbreak_robustness", "better"), ("harmful_capability", "worse"))
TOUCHED = ["q0", "q3"]


def rows(after: bool) -> bytes:
    return lines(
        {"suite": suite, "problem_id": f"q{n}", "slice": "de" if n % 2 else "en", "cluster": "",
         "score": int(n % 3 == 0 or (after and n % (4 + at) == 0)), "truncated": False, "error": None, "tokens": 5}
        for at, (suite, _) in enumerate(SUITES) for n in range(40)
    )  # fmt: skip


def comparisons() -> list[dict[str, Any]]:
    sides = [by_suite(map(json.loads, rows(after).splitlines())) for after in (False, True)]
    facts = [SuiteFacts(name, name, name, way, False, 0.05, {}) for name, way in SUITES]  # type: ignore[arg-type]
    return compare_all((one, sides[0][one.suite], sides[1][one.suite], True, TOUCHED) for one in facts)


def said(*way: str | int, value: Any = None, overlap: list[str] | None = None) -> dict[str, str]:
    """What is wrong with a card of two safety suites whose record has this value at this place."""

    def change(document: dict[str, Any]) -> None:
        found = comparisons()
        here: Any = found
        for step in way[:-1]:
            here = here[step]
        if way:
            assert here[way[-1]] != value
            here[way[-1]] = value
        document["sections"]["behaviour"]["performance"]["value"] = found
        if overlap is not None:
            report = {"touched": [{"id": one, "by": {}} for one in overlap]}
            document["sections"]["data"]["decontamination"]["value"] = {"overlap": {SUITES[0][0]: report}}

    files = data_files() | {"evals/before.jsonl": ("public", rows(False)), "evals/after.jsonl": ("public", rows(True))}
    return faults(check(card(Log(), Sealed(files, change=change))))


def test_the_honest_record_is_accepted() -> None:
    first, second = comparisons()
    assert [one["slice"] for one in first["slices"]] == ["de", "en"]
    assert first["clean"]["touched_ids"] == TOUCHED
    assert first["clean"]["problems"] == 38
    adjusted = [first["change"]["p_holm"], second["change"]["p_holm"]]
    alone = [first["change"]["p_mcnemar"], second["change"]["p_mcnemar"]]
    assert adjusted[alone.index(min(alone))] == pytest.approx(2 * min(alone))  # the smallest of two, times two
    assert said() == {}
    assert said(overlap=TOUCHED) == {}


@pytest.mark.parametrize(
    ("way", "value"),
    [
        ((0, "change", "p_holm"), 0.9),
        ((1, "change", "p_holm"), None),
        ((0, "slices", 1, "after", "correct"), 20.0),
        ((0, "slices", 0, "slice"), "fr"),
        ((0, "slices"), []),
        ((0, "clean", "after", "share"), 0.9),
        ((0, "clean", "touched"), 3),
        ((0, "clean", "touched_ids"), ["q0"]),
        ((1, "higher_is"), "better"),
        ((0, "non_inferiority"), None),
        ((1, "category"), "format"),
    ],
)
def test_every_part_is_recomputed(way: tuple[str | int, ...], value: Any) -> None:
    assert set(said(*way, value=value)) == {"statistics"}


def test_touched_items_are_those_of_the_report() -> None:
    assert set(said(overlap=["q0"])) == {"statistics"}
