"""The log's pages: heads for anyone, entries for members, the server's own for staff, and what can be taken away."""

import csv
import io
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from cohort.accounts.models import Project, Role, User
from cohort.accounts.services import membership_remove, membership_set, user_create
from cohort.audit import services as audit
from cohort.audit.models import AuditEntry, LogCheckpoint
from cohort.evidence import merkle
from cohort.evidence.checkpoint import follow, parse
from cohort.evidence.keys import parse_vkey
from cohort.evidence.merkle import leaf_hash, verify_inclusion
from cohort.evidence.note import open_note
from cohort.web.audit.selectors import changes
from tests.tables import cases
from tests.web.pages import html

pytestmark = pytest.mark.django_db

ClientFor = Callable[[User], Client]
HERE = "/p/ours/audit/"


def text(client: Client, address: str, status: int = 200) -> str:
    response = client.get(address)
    assert response.status_code == status, address
    if response["Content-Type"].startswith("text/html"):
        return html(response)
    return b"".join(response).decode() if response.streaming else response.content.decode()


def given(address: str, client: Client | None = None) -> Any:
    return json.loads(text(client or Client(), address))


# ---------------------------------------------------------------------- for anyone


def test_before_anything_is_signed_the_pages_say_so() -> None:
    text(Client(), "/log/")
    assert given("/log/keys.json") == {"origin": None, "keys": [], "rotations": []}
    assert given("/log/checkpoints") == {"checkpoints": [], "next": None}
    text(Client(), "/log/checkpoint", 404)


def test_anyone_reads_the_newest_head_and_checks_it_with_the_public_keys(ours: Project) -> None:
    row = audit.checkpoint()
    page, keys, note = text(Client(), "/log/"), given("/log/keys.json"), text(Client(), "/log/checkpoint")
    head = parse(open_note(note, follow(parse_vkey(keys["keys"][0]), keys["rotations"])).text)
    assert note == row.note
    assert (head.origin, head.size) == (keys["origin"], row.size) == ("test.example/log", AuditEntry.objects.count())
    assert head.root.hex() in page
    assert keys["keys"][0] in page
    assert "Our project" not in page
    assert Client().get("/log/checkpoint").headers["Content-Type"] == "text/plain; charset=utf-8"


def test_the_feed_has_every_checkpoint_a_page_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cohort.web.audit.views.FEED", 3)
    for number in range(7):
        audit.log(actor="platform", kind="thing_done", subject=f"thing:{number}")
        audit.checkpoint()
    address: str | None = "/log/checkpoints"
    pages = []
    while address:
        feed = given(address)
        pages.append(feed["checkpoints"])
        address = feed["next"]
    found = [one for page in pages for one in page]
    assert len(pages) == 3
    assert [one["note"] for one in found] == list(LogCheckpoint.objects.order_by("size").values_list("note", flat=True))
    assert text(Client(), f"/log/checkpoint?size={found[2]['size']}") == found[2]["note"]
    for size in ("1000", "x"):
        text(Client(), f"/log/checkpoint?size={size}", 404)


@pytest.mark.parametrize(("before", "after", "shown"), cases("audit/changes", "before", "after", "shown"))
def test_what_differs(before: object, after: object, shown: list[list[str | None]]) -> None:
    assert [[change.field, change.before, change.after] for change in changes(before, after)] == shown


# ---------------------------------------------------------------------- a project's entries


def test_members_see_who_changed_what_and_why(client_for: ClientFor, ours: Project, alice: User, bob: User) -> None:
    membership_set(project=ours, actor=alice, user=bob, role=Role.OPERATOR)
    hostile = "<b>because</b>\u202e"
    audit.log(actor="user:alice", kind="thing_done", subject="thing:1", project=ours, reason=hostile, data={"n": 1})
    page = text(client_for(bob), HERE)
    assert "<del>viewer</del> → <ins>operator</ins>" in page
    assert "&lt;b&gt;because&lt;/b&gt;" in page
    assert "\u202e" not in page
    assert page.index("thing_done</span></td>") < page.index("member_role_changed</span>"), "newest first"
    assert "user_created" not in page, "that belongs to no project"
    assert 'href="/p/ours/audit/" aria-current="page"' in page


def test_a_project_does_not_see_anothers(client_for: ClientFor, ours: Project, charlie: User) -> None:
    client = client_for(charlie)
    mine = AuditEntry.objects.filter(project="ours").first()
    assert mine is not None
    assert "alice" not in text(client, "/p/theirs/audit/")
    text(client, HERE, 404)
    for place in ("entry.json", "proof"):
        text(client, f"/p/theirs/audit/{mine.pk}/{place}", 404)
        text(client, f"/log/server/{mine.pk}/{place}", 403)


def test_filters(client_for: ClientFor, ours: Project, alice: User, bob: User) -> None:
    membership_remove(project=ours, actor=alice, user=bob)
    old = audit.log(actor="user:bob", kind="thing_done", subject="thing:1", project=ours)
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("ALTER TABLE audit_auditentry DISABLE TRIGGER USER")
        cursor.execute("UPDATE audit_auditentry SET at = '2026-02-01T23:59:59Z' WHERE id = %s", [old.pk])
        cursor.execute("ALTER TABLE audit_auditentry ENABLE TRIGGER USER")
    client = client_for(alice)
    for query, kinds in (case.values for case in cases("audit/filters", "query", "kinds")):
        assert ("No entry fits" in text(client, f"{HERE}?{query}")) == (not kinds), query
        lines = text(client, f"{HERE}entries.jsonl?{query}").splitlines()
        assert {json.loads(line)["kind"] for line in lines} - {"audit_exported"} == set(kinds), query
    for page in ("", "entries.csv"):
        text(client, f"{HERE}{page}?since=tomorrow", 422)


def test_pages_go_on_where_the_last_ended(
    client_for: ClientFor, ours: Project, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cohort.web.audit.selectors.ROWS", 4)
    for number in range(10):
        audit.log(actor="user:alice", kind="thing_done", subject=f"thing:{number}", project=ours)
    client, address, seen = client_for(alice), f"{HERE}?kind=thing_done", []
    for shown in (4, 4, 2):
        page = text(client, address)
        assert f"showing {shown} of 10" in page
        seen += [number for number in range(9, -1, -1) if f"thing:{number}<" in page]
        following = re.search(r'href="(\?[^"]*before=[0-9]+)"', page)
        assert (following is not None) == (shown == 4)
        if following is not None:
            address = HERE + following[1].replace("&amp;", "&")
    assert seen == list(range(9, -1, -1))


def test_the_proof_of_an_entry_checks_against_the_public_keys(
    client_for: ClientFor, ours: Project, alice: User, bob: User
) -> None:
    entry = AuditEntry.objects.filter(kind="member_added").first()
    assert entry is not None
    client = client_for(bob)
    assert "within a minute" in text(client, f"{HERE}{entry.pk}/proof", 409)
    audit.checkpoint()
    proof = merkle.parse(text(client, f"{HERE}{entry.pk}/proof"))
    body = client.get(f"{HERE}{entry.pk}/entry.json").content
    keys = [parse_vkey(vkey) for vkey in json.loads(text(Client(), "/log/keys.json"))["keys"]]
    head = parse(open_note(proof.checkpoint, keys).text)
    assert verify_inclusion(leaf_hash(body), proof.index, head.size, proof.path, head.root)
    assert not verify_inclusion(leaf_hash(body + b" "), proof.index, head.size, proof.path, head.root)


def test_exports_hold_the_exact_bytes_and_are_entries_themselves(
    client_for: ClientFor, ours: Project, alice: User
) -> None:
    audit.log(actor="user:alice", kind="thing_done", subject="thing:1", project=ours, reason="=1+1")
    audit.integrate()
    bodies = [bytes(entry.body) for entry in AuditEntry.objects.filter(project="ours").order_by("-id")]
    client = client_for(alice)
    assert text(client, f"{HERE}entries.jsonl").encode().splitlines() == bodies
    rows = list(csv.DictReader(io.StringIO(text(client, f"{HERE}entries.csv"))))
    kinds = [row["kind"] for row in rows]
    assert kinds[:2] == ["audit_exported", "thing_done"]
    assert kinds.count("audit_exported") == 1, "the first's, not its own"
    assert rows[1]["reason"] == "'=1+1"
    assert rows[1]["index"] == str(AuditEntry.objects.get(kind="thing_done").leaf.idx)
    told = AuditEntry.objects.filter(kind="audit_exported").order_by("id")
    assert [json.loads(bytes(entry.body))["data"]["form"] for entry in told] == ["jsonl", "csv"]
    assert client.head(f"{HERE}entries.csv").status_code == 200
    assert told.count() == 2, "a HEAD takes nothing away"


# ---------------------------------------------------------------------- the server's own


def test_the_servers_own_entries_are_for_staff(client_for: ClientFor, ours: Project, alice: User) -> None:
    user_create(username="zoe")
    User.objects.filter(pk=alice.pk).update(is_staff=True)
    client = client_for(User.objects.get(pk=alice.pk))
    page = text(client, "/log/server/")
    assert "user:zoe" in page
    assert "project_created" not in page, "that is the project's"
    audit.checkpoint()
    assert "/log/server/" in text(client, "/log/")
    entry = AuditEntry.objects.get(kind="user_created", subject="user:zoe")
    assert merkle.parse(text(client, f"/log/server/{entry.pk}/proof"))
    assert "user:zoe" in text(client, "/log/server/entries.csv")
