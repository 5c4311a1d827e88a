"""bom.cdx.json: its elements by the G7's seven clusters, where a person looks for them, and what checkers of others say
of it."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packageurl import PackageURL

from cohort.records.cards import bom
from cohort.records.cards.bom_elements import ELEMENTS
from tests.factories.documents import BASE_DIGEST, DIGEST, comparison, entry, reading
from tests.tables import cases

FIELDS = ("at", "holds", "parts", "stated", "public")
TABLE = [(str(case.id), *case.values) for case in cases("records/bom_elements", *FIELDS)]
DOCS = Path(__file__).parents[3] / "docs" / "bom.md"


def document(audience: str, *, complete: bool = False) -> dict[str, Any]:
    """`complete`: all of its data have digests."""
    packages = {"torch": "2.13.0", "huggingface_hub": "2.4.0"}
    machine = {"processor": "some processor", "python": "3.11.2", "threads": 2, "gpus": []}
    prompts = {"dataset": "additions", "sha256": DIGEST, "problems": 20, "prompt_tokens": {"max": 16, "mean": 16.0}}
    whole = {"data__heldout": entry("100 problems", {"dataset": "kept apart", "sha256": BASE_DIGEST})}
    whole["behaviour__performance"] = entry("as compared", [comparison()])
    made = reading(
        audience,
        **(whole if complete else {}),
        subject__run=entry("run 7", {"project": "ours"}, audience="authority"),
        environment__packages=entry("two", packages, audience="downstream"),
        environment__machine=entry("some processor, 2 threads", machine, audience="downstream"),
        environment__code=entry("Cohort", {"version": "0.1.0", "git_commit": "a" * 40, "dirty_sha256": None}),
        data__prompts=entry("20 problems", prompts),
        data__provenance=entry("made for the tests", "made for the tests", source="stated by alice"),
    )
    parsed: dict[str, Any] = json.loads(bom.bom(replace(made, log="cohort.example/log")))
    return parsed


def said(audience: str) -> dict[str, str]:
    """Element → what the document itself says of where it is."""
    rows = document(audience)["properties"]
    return {row["name"].removeprefix("cohort:element:"): row["value"] for row in rows}


@pytest.mark.parametrize(
    ("name", *FIELDS), [(case.id, *case.values) for case in cases("records/bom_elements", *FIELDS)]
)
def test_an_element_is_where_the_table_has_it_or_not_stated(
    name: str, at: list[str | int] | None, holds: Any, parts: str | None, stated: bool | None, public: str | None
) -> None:
    whole: Any = document("internal")
    if at is not None:
        here = next(part for part in whole["components"] if part["type"] == parts) if parts else whole
        for step in at:
            here = here[step]
        assert here == holds
    filled = at is not None and stated is not False
    assert (said("internal")[name] != "not stated") == filled
    if public is not None:
        assert said("public")[name] == public


def test_the_table_and_the_page_have_every_element() -> None:
    names = [f"{element.cluster}.{element.name}" for element in ELEMENTS]
    assert [row[0] for row in TABLE] == names == list(said("internal"))
    page = DOCS.read_text(encoding="utf-8")
    for element in ELEMENTS:
        assert f"`{element.name}`" in page, element.name


def test_what_only_some_parts_have_is_counted() -> None:
    assert said("internal")["datasets.datasetHash"] == "components[data].hashes (of 1 of 3)"


def test_package_urls_are_read_by_the_library_of_others() -> None:
    made = document("internal")
    (base,) = made["metadata"]["component"]["pedigree"]["ancestors"]
    parts = [made["metadata"]["component"], base, *made["components"]]
    read = [PackageURL.from_string(part["purl"]) for part in parts if part["type"] != "device"]
    assert read[0].qualifiers == {"checksum": f"sha256:{DIGEST}"}
    assert ("pypi", "huggingface-hub", "2.4.0") in [(one.type, one.name, one.version) for one in read]
    hub = {"source": "Qwen/Qwen2.5-0.5B", "revision": "a" * 40, "name": "small", "weights": {}}
    of_the_hub = json.loads(bom.bom(reading(subject__base_model=entry("small", hub))))
    (base,) = of_the_hub["metadata"]["component"]["pedigree"]["ancestors"]
    assert PackageURL.from_string(base["purl"]) == PackageURL("huggingface", "Qwen", "Qwen2.5-0.5B", "a" * 40)


# ---------------------------------------------------------------------- a checker of others


def judged(path: Path, profile: str) -> dict[str, set[str]]:
    """Rule → parts that it finds wanting, by ossbomer."""
    command = [str(Path(sys.executable).with_name("ossbomer-conformance")), "--file", str(path), "--json-output"]
    done = subprocess.run([*command, "--profile", profile], capture_output=True, text=True)
    (result,) = json.loads(done.stdout)["results"]
    assert result["schema_valid"], done.stdout
    wanting: dict[str, set[str]] = {}
    for row in result["findings"]:
        if row["verdict"] not in ("PASS", "N/A"):
            wanting.setdefault(row["rule_id"], set()).add(row["path"].partition(":")[2].partition("?")[0])
    return wanting


JUDGED = ("profile", "audience", "complete", "wanting")


@pytest.mark.parametrize(JUDGED, cases("records/bom_judged", *JUDGED))
def test_a_checker_of_others_finds_only_what_nobody_stated(
    tmp_path: Path, profile: str, audience: str, complete: bool | None, wanting: dict[str, list[str]]
) -> None:
    path = tmp_path / "bom.cdx.json"
    path.write_text(json.dumps(document(audience, complete=bool(complete))))
    assert judged(path, profile) == {rule: set(parts) for rule, parts in wanting.items()}
