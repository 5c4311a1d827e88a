"""Plain lines where nobody watches, one line drawn over on a terminal, everything in the log."""

import io
import json

import pytest

from grpo_core.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("grpo_core.progress.time.monotonic", lambda: now[0])
    return now


def test_plain_lines(tmp_path, clock):
    out = io.StringIO()
    progress = Progress(log=tmp_path / "log.txt", out=out)
    progress.line("run demo")
    progress.begin("training", 10, unit="step", done=8)
    clock[0] = 30.0
    progress.advance(9, "reward 0.500")
    progress.close()
    assert out.getvalue() == "run demo\nstep 9/10 · reward 0.500 · 30 s left\n", "of what was done here"
    assert (tmp_path / "log.txt").read_text() == out.getvalue()


def test_a_terminal_gets_one_line_that_is_drawn_over(monkeypatch, tmp_path):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    out = Terminal()
    progress = Progress(log=tmp_path / "log.txt", out=out)
    progress.begin("step", 4)
    progress.advance(1, "reward 0.250")
    progress.advance(2, "reward 0.500")
    progress.line("accuracy after: 3 of 4")
    progress.close()
    drawn = out.getvalue()
    assert drawn.count("\n") == 2  # the bar is left standing, then the line
    assert drawn.endswith("\naccuracy after: 3 of 4\n")
    bars = drawn.split("\r\x1b[2K")[1:]
    assert [bar.count("█") for bar in bars] == [6, 12]  # of 24
    assert all(len(bar.splitlines()[0]) <= 59 for bar in bars)
    assert len((tmp_path / "log.txt").read_text().splitlines()) == 3


def test_how_far_it_is_lies_in_a_small_file(tmp_path, clock):
    file = tmp_path / "progress.json"
    progress = Progress(out=io.StringIO(), file=file)

    def now():
        told = json.loads(file.read_text())
        assert told.pop("at")
        return told

    progress.begin("training", 10, unit="step", done=4)
    assert now() == {"phase": "training", "done": 4, "total": 10}
    clock[0] += 0.5
    progress.advance(5, "reward 0")
    assert now()["done"] == 4  # at most once a second
    clock[0] += 0.6
    progress.advance(6, "reward 0")
    assert now()["done"] == 6
    progress.begin("saving", 0)
    assert now() == {"phase": "saving", "done": 0, "total": None}
    assert [path.name for path in tmp_path.iterdir()] == ["progress.json"]
