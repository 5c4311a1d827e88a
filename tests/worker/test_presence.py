"""An idle worker is heard of whatever goes wrong beside it, and ends when its token is refused."""

import threading
from pathlib import Path

import pytest
from pydantic import SecretStr

from cohort.runs.models import Node
from cohort.runs.revoke import node_revoke
from tests.processes import DEADLINE, wait_for
from tests.worker.conftest import Site
from worker import presence
from worker.environment import Environment


def refuses() -> str | None:
    info = Node.objects.get().info
    return info["refuses"] if info else None


def test_a_runs_folder_that_breaks_and_heals(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The node is here all the time and says why it takes no run; and a token that is revoked is noticed after it."""
    monkeypatch.setattr(presence, "SECONDS", 0.05)
    runs = tmp_path / "runs"
    runs.symlink_to(runs)
    stop, refused = threading.Event(), threading.Event()
    settings = Environment(url=site.url, node_token=SecretStr(site.node_token), runs_dir=runs, min_free_bytes=0)
    thread = presence.stay_present(settings, stop, refused.set)
    try:
        wait_for(lambda: "cannot be looked at" in (refuses() or ""), "it tells why it takes no run")
        wait_for(lambda: "failed and is tried again" in caplog.text, "it has looked for the dead")
        seen = Node.objects.get().last_seen_at
        wait_for(lambda: Node.objects.get().last_seen_at != seen, "it is heard of again")
        assert caplog.text.count("failed and is tried again") == 1
        runs.unlink()
        wait_for(lambda: refuses() == "", "it takes runs")
        assert not refused.is_set()
        node_revoke(node=Node.objects.get(), actor=None)
        assert refused.wait(DEADLINE)
    finally:
        stop.set()
        thread.join()
