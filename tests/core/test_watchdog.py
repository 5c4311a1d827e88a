"""What a run says of itself. The watchdog names what is waited for: on a clock that the tests move, then in real runs
that hang for a while. Progress: plain lines where nobody watches, one line drawn over on a terminal, everything in
the log."""

import io
import json
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from grpo_core.rewards import runner
from grpo_core.runtime import watchdog
from grpo_core.runtime.progress import Progress
from grpo_core.runtime.watchdog import Watchdog, at, doing, rest, waiting
from tests.processes import wait_for

from .rewards.judge_server import Seen, Server, opened, says, values
from .runs import rows, setting

Moments = dict[int, Callable[[], object]]


class Watched:
    """What a watchdog says that warns after ten seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **more: object) -> None:
        self.now, self.warnings, self.logs = 0, list[tuple[str, dict[str, object]]](), list[str]()
        monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.dog = Watchdog(10, warn=lambda *words: self.warnings.append(words), log=self.logs.append, **more)
        monkeypatch.setattr(watchdog, "_on", self.dog)

    def until(self, end: int, moments: Moments) -> "Watched":
        """Watch in this thread, second by second, in which the moments are."""

        def wait(pause: float) -> bool:
            assert pause == 1
            self.now += 1
            moments.get(self.now, lambda: None)()
            return self.now == end

        self.dog._over = SimpleNamespace(wait=wait)
        self.dog._watch()
        return self

    def seconds(self) -> list[object]:
        """Of each warning; of the word that it continues, the text."""
        return [text if data["over"] else data["seconds"] for text, data in self.warnings]


def test_it_names_place_and_detail_shows_the_stack_and_says_when_it_went_on(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    at("step 12", "sampling")
    doing("sampling", "37 of 64 completions ended")
    watched.until(30, {25: lambda: doing("sampling", "38 of 64 completions ended")})
    words = "sampling, step 12: 37 of 64 completions ended"
    assert watched.seconds() == [10, 20, f"resumed after 25 s: {words}"]
    text, data = watched.warnings[0]
    assert text == f"nothing has moved for 10 s: {words}"
    assert data["doing"] == words
    assert "test_it_names_place_and_detail" in watched.logs[0]


def test_it_repeats_at_doubling_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Watched(monkeypatch).until(100, {}).seconds() == [10, 20, 40, 80]


def test_what_moves_is_left_alone_and_the_same_words_are_no_movement(monkeypatch: pytest.MonkeyPatch) -> None:
    moving: Moments = {second: lambda second=second: doing("sampling", count=second) for second in range(5, 60, 9)}
    assert Watched(monkeypatch).until(60, moving).seconds() == []
    still: Moments = {second: lambda: doing("sampling") for second in range(1, 20)}
    assert Watched(monkeypatch).until(20, still).seconds() == [10]


def test_zero_switches_it_off() -> None:
    before = threading.active_count()
    with Watchdog(0, warn=lambda *_: None, log=lambda _: None):
        doing("sampling")
        assert threading.active_count() == before
        assert watchdog._on is None


def test_two_threads_are_both_named_and_one_that_rests_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    watched, begun, go = Watched(monkeypatch), threading.Event(), threading.Event()

    def drawing() -> None:
        at("step 13", "sampling")
        begun.set()
        go.wait()
        rest()

    thread = threading.Thread(target=drawing)
    at("step 12", "update")

    def both() -> None:
        go.set()
        thread.join()

    with waiting("waiting for the next step's groups"):
        thread.start()
        begun.wait()
        watched.until(31, {15: both})
    first, _, last = (text for text, _ in watched.warnings)
    assert first.endswith("waiting for the next step's groups, step 12; also sampling, step 13")
    assert last.endswith(" s: waiting for the next step's groups, step 12")


class Statuses:
    """Of four ranks: the second tells what it does, the third told it once, the fourth nothing."""

    def __init__(self) -> None:
        self.beat, self.messages = 0, list[dict[str, object]]()

    def publish(self, words: dict[str, object]) -> None:
        self.messages.append(words)

    def read(self) -> dict[str, dict[str, object] | None]:
        self.beat += 1
        message = {"doing": "reward answer, step 3: sample 2 of 8", "quiet": 40.0}
        return {
            "rank 1 of 4": {**message, "beat": self.beat},
            "rank 2 of 4": {**message, "beat": 1},
            "rank 3 of 4": None,
        }


def test_other_ranks_are_told_with_what_they_do_or_that_they_are_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses = Statuses()
    watched = Watched(monkeypatch, status=statuses)
    doing("waiting for the other ranks")
    watched.until(21, {})
    text, _ = watched.warnings[1]
    assert "rank 1 of 4, still for 40 s: reward answer, step 3: sample 2 of 8" in text
    assert "rank 2 of 4 has published no status for 17 s" in text
    assert "rank 3 of 4 has published no status yet" in text
    assert statuses.messages[-1]["doing"] == "waiting for the other ranks"


def test_a_rank_tells_the_others_of_itself_before_it_begins() -> None:
    """Else one that is stopped in its first moments could not be named: it told nothing."""
    statuses = Statuses()
    with Watchdog(1800, warn=lambda *_: None, log=lambda _: None, status=statuses):
        assert statuses.messages[0]["doing"] == "starting"


def test_a_judge_that_is_waited_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the address, and how many answers are there."""
    warnings: list[str] = []

    def answer(seen: Seen) -> bytes:
        if seen.completion == "2":
            wait_for(lambda: any("1 of 2 answers" in text for text in warnings), lambda: str(warnings))
        return says("Score: 10")

    dog = Watchdog(0.3, warn=lambda text, _: warnings.append(text), log=lambda _: None)
    with Server(answer) as server, dog:
        at("step 3", "reward judge")
        address, judge = server.address, opened(server.url, monkeypatch, allowed=True)
        assert values(judge, "1", "2") == [1.0, 1.0]
        judge.close()
    assert any(f"waiting for the judge at {address}, step 3: 1 of 2 answers are there" in text for text in warnings)


def test_a_run_whose_reward_hangs_records_what_it_waits_for(runs_home, tmp_path, monkeypatch) -> None:
    """Two rewards of its first step hang until the watchdog has said what it is to say."""
    run, out, before, calls = setting(runs_home, "plain"), tmp_path / "out", runner.ruled, list[int]()

    def slow(*words: object) -> object:
        calls.append(1)
        if wanted := {30: "in slow", 40: "resumed after"}.get(len(calls)):
            wait_for(lambda: wanted in (out / "log.txt").read_text(), wanted)
        return before(*words)

    monkeypatch.setattr(runner, "ruled", slow)
    assert run.train(out, engine={"watchdog_seconds": 0.8}, eval={"before": False, "after": False}) == 0
    events = [row for row in rows(out / "events.jsonl") if row.get("type") == "waiting"]
    assert any("step 1: sample" in str(event["data"]["doing"]) for event in events), events
    assert any(event["data"]["over"] for event in events)
    assert "stacks:" in (out / "log.txt").read_text()


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("grpo_core.runtime.progress.time.monotonic", lambda: now[0])
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
        state = json.loads(file.read_text())
        assert state.pop("at")
        return state

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
