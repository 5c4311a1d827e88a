"""Form posts that no browser sends. Every form that a page of the project shows, and every address that takes a POST,
is sent its own values mixed with hostile ones. None is an error of ours; afterwards every page of what was stored
answers, and the run's record is sealed into a card that verifies.

A few hundred posts by default; COHORT_TEST_FUZZ=10000 sends as many, COHORT_TEST_SEED=7 others."""

import itertools
import json
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from threading import Barrier
from typing import Any
from urllib.parse import SplitResult, quote_from_bytes, urljoin, urlsplit

import pytest
from django.db import connections
from django.test import Client

from cohort.records.models import Card, Record
from cohort.records.services import record_seal
from cohort.records.statements.services import statement_make
from cohort.records.status.services import status_issue
from tests.web.records.records import accepted
from tests.web.test_access import CASES, OF_A_PROJECT, World

POSTS = int(os.environ.get("COHORT_TEST_FUZZ", "300"))
SEED = int(os.environ.get("COHORT_TEST_SEED", "0"))
MOST_PAGES = max(150, POSTS // 10)
"""Pages that are followed at the end, the newest rows first."""
NUMBERS = ("-1", "0", "2147483648", "9" * 30, "1e999", "-1e999", "NaN", "inf", "²", "٣", "1_000", "0x10", "1.5", "+1")
TEXTS = (
    *("", " ", "\x00", "a\x00b", "\ufffe", "\u202e", "x" * 5000, "x" * 200_000, "'\"><script>", "{{ 7*7 }}", "%s%n"),
    *(
        "../../etc/passwd",
        "a\r\nb",
        "[]",
        "{}",
        "null",
        "[" * 2000,
        '{"a":' * 500,
        "&a *a",
        "!!python/object:os.system",
    ),
    *("2026-13-45", "9999-12-31", "0001-01-01", "9999-12-31T23:59", "10:99", "on", "true", "admin", "http://[::1"),
)
BYTES = (b"\xed\xa0\x80", b"\xff\xfe\x00", "é".encode("latin-1"))
"""Half a surrogate pair, and what is no UTF-8."""
FILES = (
    *(
        b"",
        b"\x00",
        b"{",
        b"[]",
        b"null\n",
        b"{}\n" * 50,
        b"a,b\n1,2\n",
        b'{"results": {}}',
        b"PK\x03\x04" + bytes(100),
    ),
    *(b'{"prompt": 1, "answer": 1e999}\n', b'{"prompt": "a\\u0000", "answer": "\\ud800"}\n'),
    b'{"prompt": ' + b"[" * 2000,
    json.dumps({f"key{number}": number for number in range(3000)}).encode() + b"\n",
    b'{"prompt": "what is 1 + 1?", "answer": "2"}\n' * 3,
    b'{"id": "x", "prompt": "x", "target": "x", "slice": "\\ud800"}\n',
)
FILE_NAMES = ("data.jsonl", "card.zip", "x\x00.json", "../../x.csv", "a" * 300 + ".json", "x.parquet")
MORE_NAMES = (b"x", b"\x00", b"optim.lr\x00", b"components.9999999", b"a" * 5000, b"csrfmiddlewaretoken")


@dataclass
class Form:
    """What a browser would send, and where to."""

    address: str
    fields: list[tuple[str, str]] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


class Forms(HTMLParser):
    """The forms of a page that post, those of htmx too."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address, self.made = address, list[Form]()
        self._open: Form | None = None
        self._ids: dict[str, Form] = {}
        self._named = ""
        self._owner: Form | None = None
        self._text = ""

    def handle_starttag(self, tag: str, pairs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in pairs}
        if tag == "form" and (given.get("method", "").lower() == "post" or "hx-post" in given):
            self._open = Form(urljoin(self.address, given.get("hx-post") or given.get("action", "")))
            self.made.append(self._open)
            self._ids[given.get("id", "")] = self._open
        form = self._ids.get(given["form"]) if "form" in given else self._open
        if "hx-post" in given and tag != "form" and self._open is not None:
            self.made.append(Form(urljoin(self.address, given["hx-post"]), self._open.fields))
        if tag == "option" and self._named and self._owner is not None:
            if given.get("value") and ("selected" in given or not self._text):
                self._text = given["value"]
                self._owner.fields[-1] = (self._named, self._text)
            return
        if form is None:
            return
        name = given.get("name", "")
        if tag == "input" and given.get("type") == "file":
            form.files.append(name)
        elif name and tag in ("input", "button"):
            form.fields.append((name, given.get("value", "on")))
        elif name and tag in ("select", "textarea"):
            self._named, self._text, self._owner = name, "", form
            if tag == "select":
                form.fields.append((name, ""))

    def handle_data(self, data: str) -> None:
        if self._named and self.lasttag == "textarea":
            self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea" and self._owner is not None and self._named:
            self._owner.fields.append((self._named, self._text.removeprefix("\n")))
        if tag in ("select", "textarea"):
            self._named = ""
        if tag == "form":
            self._open = None


class Links(HTMLParser):
    def __init__(self, address: str) -> None:
        super().__init__()
        self.address, self.targets = address, list[SplitResult]()

    def handle_starttag(self, tag: str, pairs: list[tuple[str, str | None]]) -> None:
        given = dict(pairs)
        for name in ("href", "hx-get", "data-series"):
            if target := given.get(name):
                self.targets.append(urlsplit(urljoin(self.address, target)))


@pytest.mark.django_db(transaction=True)
def test_no_post_is_an_error_of_ours_and_all_that_it_stored_can_be_read(sealed: Record, tmp_path: Path) -> None:
    site = World()
    client = site.client("admin", raise_request_exception=False)
    chance = random.Random(SEED)
    forms = list(_forms(site, client))
    assert len({form.address for form in forms}) > 40
    weights = [len(form.fields) + 2 for form in forms]
    faults, statuses = [], dict[int, int]()
    for number in range(POSTS):
        # Each form once; then those of many fields more often.
        form = forms[number] if number < len(forms) else chance.choices(forms, weights)[0]
        sent = _mutated(form, chance)
        response = client.post(form.address, **sent)
        statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
        if response.status_code >= 500:
            faults.append((number, form.address, str(sent)[:2000]))
    print(f"seed {SEED}: {POSTS} posts to {len(forms)} forms, answers {dict(sorted(statuses.items()))}")
    assert faults == []
    assert statuses.keys() & {200, 302, 422}, "nothing passed the forms' checks"
    for record in Record.objects.all():
        status_issue(record=record)
    assert _unreadable(site, client) == []
    _sealed_again(site, tmp_path)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_no_form_sent_by_two_at_once_is_an_error_of_ours(sealed: Record) -> None:
    """As when a button is pressed twice: each form as its page shows it, and with a text in each field left empty."""
    site = World()
    forms = list(_forms(site, site.client("admin", raise_request_exception=False)))
    start, faults = Barrier(2), list[Any]()

    def send(form: Form, data: dict[str, Any]) -> int:
        start.wait()
        try:
            return int(site.client("admin", raise_request_exception=False).post(form.address, data).status_code)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        for form, text in itertools.product(forms, ("", "pressed twice")):
            data = {name: value or text for name, value in form.fields}
            if not text or "" in dict(form.fields).values():
                answers = list(pool.map(send, (form, form), (data, data)))
                faults += [(form.address, data, answers)] if max(answers) >= 500 else []
    assert faults == []


def _forms(site: World, client: Client) -> Iterator[Form]:
    """Of every page of the project as its admin sees it, and of the table of addresses."""
    seen = set()
    pages = [site.address(route) for route in OF_A_PROJECT] + ["/projects/new/", "/verify/", "/password/"]
    for address in pages:
        response = client.get(address)
        if response.status_code != 200 or "text/html" not in response.headers["Content-Type"] or response.streaming:
            continue
        forms = Forms(address)
        forms.feed(response.content.decode())
        for form in forms.made:
            key = (form.address, tuple(sorted({name for name, _ in form.fields})))
            if key not in seen and form.address != "/logout/":
                seen.add(key)
                yield form
    for case in CASES:
        if case["method"] == "post" and case["admin"] != "login" and not case["url"].startswith(("api/", "logout")):
            yield Form(site.address(case["url"], **case["kwargs"] or {}), [*(case["data"] or {}).items()])


def _mutated(form: Form, chance: random.Random) -> dict[str, Any]:
    """The form with some of its values replaced, doubled, left out or added, as `Client.post` takes it."""
    fields = [(name.encode(), str(value).encode()) for name, value in form.fields]
    for _ in range(chance.choice((0, 1, 1, 2, 4))):
        at = chance.randrange(len(fields) + 1)
        action = chance.choice(("replace", "replace", "replace", "drop", "double", "add"))
        if action == "add" or at == len(fields):
            fields.append((chance.choice(MORE_NAMES), _value(chance)))
        elif action == "replace":
            fields[at] = (fields[at][0], _value(chance))
        elif action == "drop":
            del fields[at]
        else:
            fields.append((fields[at][0], _value(chance)))
    if form.files:
        texts = [(name.decode(), value.decode(errors="replace")) for name, value in fields if b"\x00" not in name]
        return {"data": {**dict(texts), **{name: _upload(chance) for name in form.files}}}
    pairs = [(quote_from_bytes(name), quote_from_bytes(value)) for name, value in fields]
    body = "&".join(f"{name}={value}" for name, value in pairs)
    htmx = {"HX-Request": "true"} if chance.random() < 0.3 else {}
    return {"data": body, "content_type": "application/x-www-form-urlencoded", "headers": htmx}


def _upload(chance: random.Random) -> BytesIO:
    upload = BytesIO(chance.choice(FILES))
    upload.name = chance.choice(FILE_NAMES)
    return upload


def _value(chance: random.Random) -> bytes:
    kind = chance.random()
    if kind < 0.45:
        return chance.choice(NUMBERS).encode()
    return chance.choice(BYTES) if kind > 0.9 else chance.choice(TEXTS).encode()


def _unreadable(site: World, client: Client) -> list[tuple[str, int]]:
    """Pages of the project that do not answer, of those that its links lead to."""
    waiting, seen, wrong = [site.address(route) for route in OF_A_PROJECT], set[str](), []
    while waiting and len(seen) < MOST_PAGES:
        address = waiting.pop(0)
        if address in seen:
            continue
        seen.add(address)
        response = client.get(address)
        content = b"".join(response) if response.streaming else response.content
        if response.status_code >= 500:
            wrong.append((address, response.status_code))
        if response.status_code == 200 and "text/html" in response.headers["Content-Type"]:
            links = Links(address)
            links.feed(content.decode())
            ours = [link for link in links.targets if link.path.startswith("/p/ours/")]
            waiting += [link.path + (f"?{link.query}" if link.query else "") for link in ours]
    return wrong


def _sealed_again(site: World, folder: Path) -> None:
    """What was stated by those posts goes into another version of the record, whose cards verify."""
    statement_make(run=site.run, actor=site.users["admin"], field="method.rationale", text="after the posts")
    record = record_seal(run=site.run, reason="everything that was posted")
    cards = Card.objects.filter(record=record)
    assert [card for card in cards if not accepted(card, folder)] == []
