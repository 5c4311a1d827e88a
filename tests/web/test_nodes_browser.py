"""The pages of nodes in a real browser: draining asks first, a token is copied, axe's rules, narrow screens."""

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from cohort import __version__
from cohort.runs.models import Node, Run
from cohort.runs.nodes import node_by_token
from tests.web.run_rows import HOSTILE, Maker, add_steps
from tests.web.windows import serious_faults, windows

H200 = {"kind": "cuda", "name": "NVIDIA H200", "memory_bytes": 150_754_820_096}
CPU = {"kind": "cpu", "name": "AMD EPYC 9454 48-Core Processor", "memory_bytes": 1_080_000_000_000}


@pytest.fixture
def nodes(transactional_db: None, maker: Maker) -> dict[str, Node]:
    """One of each kind: working for us, idle and hostile, draining, silent, never heard of, revoked."""
    run = maker.run("add two digits", state="training", preset="demo")
    attempt = maker.attempt(run)
    add_steps(attempt, [{"reward": 0.5}] * 12)
    attempt.spooled_bytes, attempt.free_bytes = 48_213, 1_832_000_000_000
    attempt.save()
    now = timezone.now()
    versions = {"python": "3.11.15", "cohort-grpo": __version__, "torch": "2.13.0", "transformers": "5.3.0"}
    info = {"hostname": "gpu-1.example", "cpus": 96, "memory_bytes": 1_080_000_000_000, "versions": versions}
    whole = {**info, "devices": [H200] * 8 + [CPU], "labels": ["h200", "big"], "sandbox": "bubblewrap 0.11.0"}
    Node.objects.filter(pk=attempt.node_id).update(info=whole, last_seen_at=now)

    def node(name: str, **fields: object) -> Node:
        return Node.objects.create(name=name, token_digest=name.ljust(64, "0"), **{"info": info, **fields})

    hostile = {"hostname": HOSTILE, "devices": [{"kind": HOSTILE, "name": HOSTILE}], "labels": [HOSTILE] * 3}
    old = {**info, "devices": [H200, CPU], "versions": {**versions, "cohort-grpo": "0.0.9"}}
    made = [
        node("hostile", info={**info, **hostile, "sandbox": HOSTILE}, last_seen_at=now),
        node("gpu-2", info=old, last_seen_at=now, draining="finish", next_token_digest="n" * 64),
        node("gpu-3", info=whole, last_seen_at=now - timedelta(minutes=14)),
        node("new-machine", info={}),
        node("gpu-0", last_seen_at=now, revoked_at=now),
        attempt.node,
    ]
    return {one.name: one for one in made}


@pytest.fixture
def open_page(browser: Browser, nodes: dict[str, Node], live_server: LiveServer) -> Iterator[Callable[..., Page]]:
    with windows(browser, live_server.url, permissions=["clipboard-read", "clipboard-write"]) as opened:
        yield opened


@pytest.mark.slow
def test_a_node_is_drained_and_revoked_by_hand(open_page: Callable[..., Page], nodes: dict[str, Node]) -> None:
    page, node = open_page("nodes/"), nodes["node-a"]
    drain = page.get_by_role("button", name="Drain node-a", exact=True)
    page.once("dialog", lambda dialog: dialog.dismiss())
    drain.click()
    node.refresh_from_db()
    assert node.draining == "", "it asks first"
    page.on("dialog", lambda dialog: dialog.accept())
    drain.click()
    expect(page.locator(".messages")).to_contain_text("node-a is draining")
    page.get_by_role("button", name="Undrain node-a").click()
    expect(page.locator(".messages")).to_contain_text("node-a takes runs again")
    page.get_by_role("link", name="node-a").first.click()
    page.get_by_role("button", name="Drain, move runs away").click()
    expect(page.locator(".title")).to_contain_text("draining")
    page.get_by_role("button", name="Revoke").click()
    expect(page.locator(".title")).to_contain_text("revoked")
    node.refresh_from_db()
    assert node.draining == "move"
    assert node.revoked_at is not None


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
def test_the_list_is_asked_for_anew(open_page: Callable[..., Page], nodes: dict[str, Node]) -> None:
    page = open_page("nodes/")
    page.evaluate("document.querySelector('.page-head').dataset.kept = 'yes'")
    Run.objects.update(step=57)
    expect(page.locator("#nodes")).to_contain_text("step 57 of 120")
    assert page.locator(".page-head").get_attribute("data-kept") == "yes", "the page was not loaded again"


@pytest.mark.slow
def test_the_pages_are_sound_and_fit_a_phone(
    open_page: Callable[..., Page], live_server: LiveServer, nodes: dict[str, Node]
) -> None:
    page, found = open_page("nodes/"), []
    for path in ("nodes/", "nodes/new/", *(f"nodes/{node.pk}/" for node in nodes.values()), "token"):
        if path == "token":
            page.goto(f"{live_server.url}/p/ours/nodes/{nodes['node-a'].pk}/")
            page.get_by_role("button", name="New token").click()
            expect(page.locator("#token")).to_be_visible()
        else:
            page.goto(f"{live_server.url}/p/ours/{path}")
        found += serious_faults(page, path)
        page.set_viewport_size({"width": 360, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
        page.set_viewport_size({"width": 1440, "height": 900})
        page.emulate_media(color_scheme="light")
    assert found == []
