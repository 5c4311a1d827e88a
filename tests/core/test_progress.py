"""Plain lines where nobody watches, one line drawn over on a terminal, everything in the log."""

import io

from grpo_core.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_plain_lines(tmp_path):
    out = io.StringIO()
    progress = Progress(log=tmp_path / "log.txt", out=out)
    progress.line("run demo")
    progress.begin("step", 4)
    progress.advance(2, "reward 0.500")
    progress.close()
    lines = out.getvalue().splitlines()
    assert lines[0] == "run demo"
    assert lines[1].startswith("step 2/4 · reward 0.500 · ")
    assert lines[1].endswith(" left")
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
