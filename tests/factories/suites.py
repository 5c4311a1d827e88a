"""Suites for the tests of pages and services, made through the service that the form calls."""

import json
from typing import Any

import yaml
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.catalog.models import EvalSuiteVersion
from cohort.catalog.suites import GivenFile, Spec, suite_version_create
from tests.tables import FOLDER

CAPITALS = [("france", "Paris"), ("italy", "Rome"), ("japan", "Tokyo")]
ITEMS = b"".join(
    json.dumps({"id": country, "prompt": f"What is the capital of {country}?", "target": city}).encode() + b"\n"
    for country, city in CAPITALS
)
_SUITES = yaml.safe_load((FOLDER / "catalog" / "suites.yaml").read_text(encoding="utf-8"))
SPEC, HARMFUL = Spec(**_SUITES["capitals"]), Spec(**_SUITES["locks"])
_LOCK = {"choices": ["a pick", "a spoon"], "target": "A"}
CHOICES = b"".join(
    json.dumps(
        {"id": f"lock-{n}", "prompt": f"SECRET question {n}?", **_LOCK, "slice": "odd" if n % 2 else "even"}
    ).encode()
    + b"\n"
    for n in range(4)
)


def add_suite(
    project: Project,
    actor: User,
    name: str = "capitals",
    *,
    spec: Spec = SPEC,
    content: bytes = ITEMS,
    format: str = "jsonl",
    **more: Any,
) -> EvalSuiteVersion:
    files = [GivenFile("items.jsonl", content)]
    return suite_version_create(project=project, actor=actor, name=name, spec=spec, format=format, files=files, **more)


def upload(
    client: Client, *files: tuple[str, bytes], address: str = "/p/ours/suites/new/", **fields: str | list[str]
) -> Any:
    """What the form sends; `fields` go before what they would be for a suite of our own items."""
    sent = [SimpleUploadedFile(name, content) for name, content in files]
    return client.post(address, {**_SUITES["form"], **fields, "upload": sent})
