"""The pages of nodes, of the log and of the check of a card in a real browser: what is drained asks first, a token is
copied, filters and downloads by hand; axe's rules and a phone's width."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from cohort.accounts.models import User
from cohort.accounts.services import staff_make
from cohort.audit import services as audit
from cohort.audit.models import LogPush
from cohort.runs.models import Node, Run
from cohort.runs.nodes import node_by_token
from tests.factories.runs import HOSTILE, Maker, add_steps
from tests.factories.small_cards import Log, Sealed, card, cards, packed
from tests.web.control import fresh
from tests.web.windows import serious_faults, windows

GPU = {"kind": "cuda", "name": "NVIDIA H200", "memory_bytes": 150_754_820_096}
FILTERS = ("/p/ours/audit/", "/p/ours/audit/?kind=none", "/p/ours/audit/?since=x", "/log/", "/log/server/")


@pytest.fixture
def nodes(transactional_db: None, maker: Maker, alice: User) -> dict[str, Node]:
    """One of each kind: working for us, idle and hostile, draining, never heard of, revoked."""
    attempt = maker.attempt(maker.run("add two digits", state="training", preset="demo"))
    add_steps(attempt, [{"reward": 0.5}] * 12)
    now = timezone.now()
    info = {"hostname": "gpu-1.example", "devices": [GPU] * 8, "labels": ["h200"], "sandbox": "bubblewrap 0.11.0"}
    hostile = {"hostname": HOSTILE, "devices": [{"kind": HOSTILE, "name": HOSTILE}], "labels": [HOSTILE] * 3}
    Node.objects.filter(pk=attempt.node_id).update(info=info, last_seen_at=now)
    told = {
        "hostile": {"info": hostile, "last_seen_at": now},
        "gpu-2": {"info": info, "last_seen_at": now, "draining": "finish", "next_token_digest": "n" * 64},
        "new-machine": {"info": {}},
        "gpu-0": {"info": info, "revoked_at": now},
    }
    made = {name: Node.objects.create(name=name, token_digest=name.ljust(64, "0"), **told[name]) for name in told}
    staff_make(user=alice)
    audit.log(actor="user:bob", kind="run_moved", subject="run:12", project=maker.project, before={"state": "training"})
    LogPush.objects.create(target="git", error="no such host", failed_at=now)
    return {"node-a": attempt.node, **made}


@pytest.fixture
def open_page(browser: Browser, nodes: dict[str, Node], live_server: LiveServer) -> Iterator[Callable[..., Page]]:
    permissions = ["clipboard-read", "clipboard-write"]
    with windows(browser, live_server.url, permissions=permissions, meant=["422"]) as opened:
        yield opened


def test_a_token_is_shown_once_and_copied(open_page: Callable[..., Page]) -> None:
    page = open_page("nodes/")
    page.get_by_role("link", name="Add a node").click()
    page.get_by_label("Name").fill("gpu-9")
    page.get_by_role("button", name="Make the token").click()
    token = page.locator("#token").inner_text()
    assert (found := node_by_token(token)) is not None
    assert found.name == "gpu-9"
    page.get_by_role("button", name="Copy").first.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == token


@pytest.mark.slow
def test_a_node_is_drained_and_the_list_follows(open_page: Callable[..., Page], nodes: dict[str, Node]) -> None:
    page, node = open_page("nodes/"), nodes["node-a"]
    page.evaluate("document.querySelector('.page-head').dataset.kept = 'yes'")
    Run.objects.update(step=57)
    expect(page.locator("#nodes")).to_contain_text("step 57 of 120")
    assert page.locator(".page-head").get_attribute("data-kept") == "yes", "the page was not loaded again"
    drain = page.get_by_role("button", name="Drain node-a", exact=True)
    page.once("dialog", lambda dialog: dialog.dismiss())
    drain.click()
    assert fresh(node).draining == "", "it asks first"
    page.once("dialog", lambda dialog: dialog.accept())
    drain.click()
    expect(page.locator(".messages")).to_contain_text("node-a is draining")
    assert fresh(node).draining == "finish"


@pytest.mark.slow
def test_the_log_is_filtered_and_taken_as_a_file(open_page: Callable[..., Page]) -> None:
    page = open_page("audit/")
    page.get_by_label("Who", exact=True).fill("bob")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_role("row")).to_have_count(2)
    with page.expect_download() as download:
        page.get_by_role("link", name="JSON lines").click()
    lines = Path(download.value.path()).read_bytes().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["run_moved"]


def sound(page: Page, name: str) -> list[str]:
    """What axe finds; and no page is wider than a phone."""
    found = serious_faults(page, name)
    page.set_viewport_size({"width": 360, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360, name
    page.set_viewport_size({"width": 1440, "height": 900})
    page.emulate_media(color_scheme="light")
    return found


@pytest.mark.slow
def test_the_pages_are_sound_and_fit_a_phone(
    open_page: Callable[..., Page], live_server: LiveServer, nodes: dict[str, Node], tmp_path: Path
) -> None:
    page, found = open_page("nodes/"), []
    ours = ("", "new/", *(f"{node.pk}/" for node in nodes.values()))
    for path in (*(f"/p/ours/nodes/{one}" for one in ours), *FILTERS, "/verify/"):
        page.goto(f"{live_server.url}{path}")
        found += sound(page, path)
    log = Log()
    files = {"older": card(log, Sealed(head={**Sealed().head, "run": 6})), "card": cards(log)["public"]}
    for name, content in (*files.items(), ("changed", {**files["card"], "CARD.md": b"else"})):
        (tmp_path / f"{name}.zip").write_bytes(packed(content))
    for name, words in (("card", "accepted: the card is as it was issued"), ("changed", "rejected")):
        page.get_by_label("Card", exact=True).set_input_files(tmp_path / f"{name}.zip")
        page.get_by_label("Older card").set_input_files(tmp_path / "older.zip")
        page.get_by_role("button", name="Check").click()
        expect(page.locator("#verdict")).to_contain_text(words)
        found += sound(page, name)
    page.goto(f"{live_server.url}/p/ours/nodes/{nodes['node-a'].pk}/")
    page.get_by_role("button", name="New token").click()
    expect(page.locator("#token")).to_be_visible()
    assert [*found, *sound(page, "token")] == []
