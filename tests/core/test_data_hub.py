"""Datasets on the Hub, by huggingface_hub itself, from a server of this machine that answers as the Hub does."""

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from grpo_core.config.run import RunConfig
from grpo_core.data import load_problems
from grpo_core.data.hub import find_data, split_files
from grpo_core.errors import ConfigError, DataError
from grpo_core.specs.fields import HubSplit
from grpo_core.trainer.inputs import read_problems
from tests.tables import cases

from .test_data_files import as_jsonl, as_parquet
from .tiny import config

SET, COMMIT = "someone/sums", "0123456789abcdef0123456789abcdef01234567"
ROWS = [{"question": f"what is {n} + 1?", "answer": f"It is so.\n#### {n + 1}"} for n in range(9)]
CARD = """---
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train-*
  - {split: test, path: main/test-*}
- {config_name: hard, data_files: hard.jsonl}
---
# Sums
"""
FILES = {
    "README.md": CARD.encode(),
    "main/train-00000-of-00002.parquet": as_parquet(ROWS[:4]),
    "main/train-00001-of-00002.parquet": as_parquet(ROWS[4:7]),
    "main/test-00000-of-00001.parquet": as_parquet(ROWS[7:]),
    "hard.jsonl": as_jsonl(ROWS[:1]),
    "weights.bin": b"not data",
}


class Hub(BaseHTTPRequestHandler):
    """The file list and the files of one dataset at one commit."""

    asked: list[str]

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        name = path.removeprefix(f"/datasets/{SET}/resolve/{COMMIT}/")
        headers: dict[str, str] = {}
        if path == f"/api/datasets/{SET}/tree/{COMMIT}":
            listed = [
                {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for file, content in FILES.items()
            ]
            status, body = 200, json.dumps(listed).encode()
        elif name in FILES:
            status, body = 200, FILES[name]
            headers = {"ETag": f'"{hashlib.sha1(body).hexdigest()}"', "X-Repo-Commit": COMMIT}
            if self.command == "GET":
                self.asked.append(name)
        else:
            status, body = 404, b"{}"
            headers = {"X-Error-Code": "RepoNotFound" if path.startswith("/api/") else "EntryNotFound"}
        self.send_response(status)
        for header, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(header, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """The files that were downloaded."""
    Hub.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Hub.asked
        finally:
            server.shutdown()
            thread.join()


def run_config(**eval: Any) -> RunConfig:
    part = {"path": SET, "hub": {"revision": COMMIT, "config": "main", "split": "train"}}
    return config(data=part, eval={"before": False, "after": False, **eval})


def test_a_split_is_read_shard_by_shard_and_nothing_else_is_downloaded(hub: list[str], tmp_path: Path) -> None:
    (tmp_path / "someone").mkdir()
    (tmp_path / SET).write_bytes(as_jsonl(ROWS))  # never read in place of the Hub's
    train, heldout, (source, second) = read_problems(
        run_config(path=SET, hub={"revision": COMMIT, "config": "main", "split": "test"}), tmp_path
    )
    assert [problem.answer for problem in train] == [str(n + 1) for n in range(7)]
    assert [problem.id for problem in train] == [f"row-{n + 1}" for n in range(7)]
    assert [problem.answer for problem in heldout] == ["8", "9"]
    assert set(hub) == {name for name in FILES if name.startswith(("main/", "README"))}
    assert [source.name(file) for file in source.files] == [name for name in FILES if "train" in name]
    assert [second.name(file) for file in second.files] == ["main/test-00000-of-00001.parquet"]
    before = list(hub)
    assert read_problems(run_config(), tmp_path)[0] == train
    assert hub == before


def test_what_the_hub_has_not_is_named(hub: list[str], tmp_path: Path) -> None:
    def refused(path: str = SET, **given: str) -> str:
        with pytest.raises(DataError) as caught:
            find_data(path, HubSplit.model_validate({"revision": COMMIT, "split": "train", **given}), base=tmp_path)
        return str(caught.value)

    assert "several configs; there are main, hard" in refused()
    assert "no config 'easy'; there are main, hard" in refused(config="easy")
    assert "no split 'dev'; there are train, test" in refused(config="main", split="dev")
    assert f"'someone/other' at {COMMIT}" in refused("someone/other")
    assert f"{SET}' at {'0' * 40}" in refused(revision="0" * 40)


def test_a_hub_id_without_a_commit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such data file: .*give data\.hub with its revision"):
        load_problems(tmp_path / SET, "auto")
    with pytest.raises(ConfigError, match=r"data\.hub\.revision: .*'main' is not a commit of 40 hex digits"):
        config(data={"path": SET, "hub": {"split": "train", "revision": "main"}})
    with pytest.raises(ConfigError, match=r"data\.hub\.revision: is needed and not given"):
        config(data={"path": SET, "hub": {"split": "train"}})


def test_ids_are_unique_over_all_files(tmp_path: Path) -> None:
    rows = [{"id": "a", "prompt": "p", "answer": "1"}]
    files = [tmp_path / "1.jsonl", tmp_path / "2.jsonl"]
    for file in files:
        file.write_bytes(as_jsonl(rows))
    with pytest.raises(DataError, match=r"2\.jsonl, line 1: the id 'a' was already used on line 1 of .*1\.jsonl"):
        load_problems(files, "auto")


@pytest.mark.parametrize(("names", "card", "hub", "files"), cases("data/hub_splits", "names", "card", "hub", "files"))
def test_which_files_are_of_a_split(names: list[str], card: Any, hub: dict[str, str], files: list[str] | str) -> None:
    wanted = HubSplit.model_validate({"revision": COMMIT, **hub})
    if isinstance(files, list):
        assert split_files(names, card or {}, wanted, source=SET) == files
    else:
        with pytest.raises(DataError, match=files):
            split_files(names, card or {}, wanted, source=SET)
