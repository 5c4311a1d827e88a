"""What `grpo` prints of problems, items and errors steers no terminal and hides nothing."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_core.cli.main import main
from grpo_core.runtime.progress import Progress
from grpo_core.text import UNSEEN, UNSTORABLE
from tests.core.tiny import config, tiny_folder
from tests.factories.hostile import HOSTILE_COMPLETIONS, MARK

TEXTS = [UNSTORABLE.sub("\ufffd", text)[:300] for text in HOSTILE_COMPLETIONS.values()]


def harmful(printed: str) -> set[str]:
    return set(UNSEEN.findall(printed)) - {"\n"}


def lines_at(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_preview_of_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_folder(tmp_path / "base")
    rows = [
        {"id": f"{at} {text[:50]}", "prompt": f"{text}.", "answer": f"{text[:50]}."} for at, text in enumerate(TEXTS)
    ]
    lines_at(tmp_path / "train.jsonl", rows)
    settings = config(data={"path": "train.jsonl", "max_prompt_tokens": 500}).model_dump(mode="json")
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    assert main(["preview", str(tmp_path / "run.yaml"), "--rows", "60"]) == 0
    printed = capsys.readouterr().out
    assert (harmful(printed), MARK in printed, "\\u202e" in printed) == (set(), True, True)


def test_a_suite_s_items(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"id": f"{at} {text[:50]}", "prompt": text, "target": "x", "slice": f"{text[:100]}{at}"}
        for at, text in enumerate(TEXTS)
        if text.strip()
    ]
    assert main(["suite", "check", str(lines_at(tmp_path / "items.jsonl", rows))]) == 0
    printed = capsys.readouterr().out
    assert (harmful(printed), MARK in printed, "\\x1b[2J" in printed) == (set(), True, True)


@pytest.mark.parametrize("text", ["\x1b[2J\x1b[H gone", "\u202egone.yaml"])
def test_an_error_names_a_file_as_it_is_safe_to_print(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preview", text]) != 0
    printed = capsys.readouterr().err
    assert (harmful(printed), "gone" in printed) == (set(), True)


def test_the_lines_of_a_run_and_its_log(tmp_path: Path) -> None:
    out = io.StringIO()
    progress = Progress(log=tmp_path / "log.txt", out=out)
    for text in TEXTS:
        progress.line(f"reward failed: {text}")
        progress.log_only(f"stalled: {text}")
    progress.close()
    for printed in (out.getvalue(), (tmp_path / "log.txt").read_text(encoding="utf-8")):
        assert (harmful(printed), printed.count("reward failed: ")) == (set(), len(TEXTS))
