"""The kind judge against a real server that goes wrong in every way: each is told apart, and none is paid 0."""

import gzip
import itertools
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grpo_core.config_reward import RewardComponent, RewardConfig, RewardLimits
from grpo_core.data.problem import Problem
from grpo_core.errors import Interrupted
from grpo_core.records import ComponentScore
from grpo_core.rewards import Rubric, Runner, judge_calls
from grpo_core.rewards.base import Context, Unscored
from grpo_core.rewards.judge import Judge, JudgeParams
from tests.processes import wait_for

from .judge_server import Reply, Seen, Server, chat, http, says

PROBLEM = Problem("p1", "2+2?", "4")


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_calls, "FIRST_PAUSE", 0.01)


def graded(
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[Seen], Reply],
    *completions: str,
    limits: RewardLimits | None = None,
    late_after: float | None = None,
    **params: object,
) -> tuple[list[ComponentScore], Server, dict[str, object]]:
    """What a judge with this server says of each completion; the server, and the facts afterwards. With `late_after` a
    request's deadline of `timeout_seconds` is brought to so long after it came to the server."""

    def hurried(seen: Seen) -> Reply:
        if late_after is not None:
            (child,) = [one for one in judge._calls._pool._children if one.tag is not None]
            assert child.deadline - child.began == pytest.approx(params["timeout_seconds"])
            child.began = time.monotonic()
            child.deadline = child.began + late_after
        return answer(seen)

    with Server(hurried) as server:
        monkeypatch.setenv("GRPO_JUDGE_ALLOW", server.place)
        made = {"base_url": server.url, "model": "judge", "key_env": None, **params}
        judge = Judge(JudgeParams(**made), Context(limits=limits or RewardLimits(retries=1)))
        try:
            scores = judge.score([Unscored(PROBLEM, one) for one in completions], lambda: None)
        finally:
            judge.close()
        return scores, server, judge.facts()


def drip(_: Seen) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
    while True:
        time.sleep(0.05)
        yield b" "


def endless(_: Seen) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
    while True:
        yield b" " * 65536


def endless_headers(_: Seen) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\n"
    for number in itertools.count():
        yield b"X-%d: y\r\n" % number


BOMB = gzip.compress(b" " * 50_000_000)
GOOD = chat("Score: 5")
WRONG: dict[str, tuple[Callable[[Seen], Reply], str, str, int]] = {
    # name: (answer, class, beginning of what is told, tries)
    "slow drip": (drip, "infra", "timed out: no whole answer within 3 s", 2),
    "nothing at all": (lambda _: time.sleep(30) or b"", "infra", "timed out", 2),
    "web page": (
        lambda _: http("200 OK", b"<html><h1>Welcome</h1></html>", kind="text/html"),
        "infra",
        "the server gave a web page, not JSON",
        1,
    ),
    "web page under another name": (
        lambda _: http("200 OK", b"\n<!doctype html>"),
        "infra",
        "the server gave a web",
        1,
    ),
    "refusal": (
        lambda _: says(None, refusal="I cannot grade this."),
        "refused",
        "the judge declined to judge: I can",
        1,
    ),
    "filter": (
        lambda _: says("", finish="content_filter"),
        "refused",
        "the judge declined to judge (content filter)",
        1,
    ),
    "filter as 400": (
        lambda _: http("400 Bad Request", b'{"error": {"message": "Blocked.", "code": "content_filter"}}'),
        "refused",
        "the server declined to judge (content filter): Blocked.",
        1,
    ),
    "content length too large": (
        lambda _: http("200 OK", GOOD, length=len(GOOD) + 10),
        "infra",
        "the answer lies about its length",
        2,
    ),
    "content length too small": (
        lambda _: http("200 OK", GOOD, length=20),
        "infra",
        "the answer's JSON breaks off in the middle: its Content-Length says 20 bytes, and is too small",
        2,
    ),
    "content length huge": (lambda _: http("200 OK", b"", length=10**12), "infra", "the answer says it has 1,000,0", 2),
    "truncated": (
        lambda _: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n" + GOOD[:40],
        "infra",
        "the answer ended in the middle of a part",
        2,
    ),
    "cut without a length": (
        lambda _: b"HTTP/1.1 200 OK\r\n\r\n" + GOOD[:40],
        "infra",
        "the answer's JSON breaks off in the middle: it was cut",
        2,
    ),
    "endless body": (endless, "infra", "the answer has no end: more than 1,048,576 bytes", 2),
    "endless headers": (endless_headers, "infra", "the answer is no HTTP: HTTPException: got more than 100 headers", 2),
    "gzip bomb": (
        lambda _: http("200 OK", BOMB, "Content-Encoding: gzip"),
        "infra",
        "the answer is compressed (gzip), which was not asked for",
        1,
    ),
    "invalid JSON": (lambda _: http("200 OK", b"Score: 5"), "infra", "the answer is no JSON: Score: 5", 2),
    "JSON too deep": (lambda _: http("200 OK", b"[" * 100_000), "infra", "the answer is no JSON", 2),
    "empty body": (lambda _: http("200 OK", b""), "infra", "the answer is empty", 2),
    "other JSON": (lambda _: http("200 OK", b'{"ok": true}'), "infra", "the answer is JSON, but no chat completion", 1),
    "JSON list": (lambda _: http("200 OK", b"[1, 2]"), "infra", "the answer is JSON, but no chat completion", 1),
    "error with 200": (
        lambda _: http("200 OK", b'{"error": "busy"}'),
        "infra",
        "the server answered 200 OK with an e",
        2,
    ),
    "no HTTP": (lambda _: b"SSH-2.0-OpenSSH_9.2\r\n", "infra", "the answer is no HTTP: BadStatusLine", 2),
    "closed at once": (lambda _: b"", "infra", "the answer is no HTTP: RemoteDisconnected", 2),
    "no score": (lambda _: says("Well done!"), "parse", "no match of score_pattern in the judge's text", 1),
    "nothing said": (
        lambda _: says(None),
        "parse",
        "no match of score_pattern in the judge's text. It said: nothing",
        1,
    ),
    "cut by max_tokens": (
        lambda _: says("Let me think", finish="length"),
        "parse",
        "no match of score_pattern in the judge's text; the judge was cut at 1,024 tokens, raise max_tokens",
        1,
    ),
    "score out of range": (lambda _: says("Score: 55"), "parse", "the score 55 is not between 0 and 10", 1),
    "score below": (lambda _: says("Score: -1"), "parse", "the score -1 is not between 0 and 10", 1),
    "score 1e308": (lambda _: says("Score: 1e308"), "parse", "the score 1e+308 is not between 0 and 10", 1),
    "score in words": (lambda _: says("Score: seven"), "parse", "the score is not a number: 'seven'", 1),
    "NaN": (lambda _: says("Score: NaN"), "value", "the score is NaN, which is not a finite number", 1),
    "infinity": (lambda _: says("Score: -inf"), "value", "the score is -inf, which is not a finite number", 1),
    "unauthorised": (
        lambda _: http("401 Unauthorized", b'{"error": {"message": "Incorrect API key"}}'),
        "infra",
        "the server answered 401 Unauthorized: the key is missing, wrong or not allowed here: Incorrect API key",
        1,
    ),
    "no such model": (
        lambda _: http("404 Not Found", b'{"detail": "no judge"}'),
        "infra",
        "the server answered 404 Not Found: base_url or model is wrong: no judge",
        1,
    ),
    "too long for it": (
        lambda _: http("400 Bad Request", b'{"error": {"message": "x", "code": "context_length_exceeded"}}'),
        "sample",
        "too long for the judge: x",
        1,
    ),
    "other 400": (lambda _: http("400 Bad Request", b"{}"), "infra", "the server answered 400 Bad Request", 1),
    "quota": (
        lambda _: http("429 Too Many Requests", b'{"error": {"message": "Pay.", "code": "insufficient_quota"}}'),
        "infra",
        "the server answered 429 Too Many Requests: the account's quota is spent: Pay.",
        1,
    ),
    "busy for ever": (lambda _: http("429 Too Many Requests", b"{}"), "infra", "the server answered 429 Too Many", 2),
    "asks for an hour": (
        lambda _: http("503 Service Unavailable", b"{}", "Retry-After: 3600"),
        "infra",
        "the server answered 503 Service Unavailable; it asks to wait 3,600 s, over 60 s",
        1,
    ),
    "broken for ever": (
        lambda _: http("500 Oops", b"<html>"),
        "infra",
        "the server answered 500 Internal Server Er",
        2,
    ),
    "unknown status": (lambda _: http("799 What", b""), "infra", "the server answered 799 ?", 2),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_fault_is_told_apart(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, kind, told, tries = WRONG[name]
    slow = {"timeout_seconds": 600.0, "late_after": 3.0} if told.startswith("timed out") else {}
    (score,), server, facts = graded(monkeypatch, answer, "4", **slow)
    assert score.value is None
    assert score.passed is None
    assert (score.error_class, score.tries, len(server.seen)) == (kind, tries, tries)
    assert (score.error or "").startswith(told), score.error
    assert len(score.error or "") < 600
    assert facts["calls"] == tries
    assert facts["refusals"] == (kind == "refused")


def test_no_two_faults_are_told_alike() -> None:
    told = [text for _, _, text, _ in WRONG.values()]
    assert len({text[:60] for text in told}) >= len(told) - 5  # of a few there are two ways


@pytest.mark.parametrize("on_error", ["mask", "zero"])
def test_a_server_that_fails_is_never_paid_0(on_error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(lambda _: http("500 Oops", b"")) as server:
        monkeypatch.setenv("GRPO_JUDGE_ALLOW", server.place)
        params = {"base_url": server.url, "model": "judge", "key_env": None}
        component = RewardComponent(name="judge", kind="judge", params=params)
        config = RewardConfig(components=(component,), on_error=on_error, limits=RewardLimits(retries=0))
        with Runner(Rubric(config)) as runner:
            assert runner.one(PROBLEM, "4").reward is None


def test_a_redirect_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(lambda _: says("Score: 10")) as inner:
        (score,), outer, _ = graded(
            monkeypatch, lambda _: http("302 Found", b"", f"Location: http://{inner.place}/v1/chat/completions"), "4"
        )
        assert (score.error or "").startswith(
            f"the server redirects to http://{inner.place}/v1/chat/completions, which"
        )
        assert (len(outer.seen), inner.seen, score.error_class) == (1, [], "infra")


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen: nobody else can while this is open
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("GRPO_JUDGE_ALLOW", place)
        judge = Judge(JudgeParams(base_url=f"http://{place}/v1", model="judge", key_env=None), Context())
        (score,) = judge.score([Unscored(PROBLEM, "4")], lambda: None)
        judge.close()
    assert (score.error_class, score.tries) == ("infra", 3)
    assert score.error == f"{place} cannot be reached: Connection refused"


def test_a_name_that_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Judge(
        JudgeParams(base_url="https://no-such-judge.invalid/v1", model="judge", key_env=None),
        Context(limits=RewardLimits(retries=0)),
    )
    (score,) = judge.score([Unscored(PROBLEM, "4")], lambda: None)
    judge.close()
    assert score.error_class == "infra"
    assert (score.error or "").startswith("the name no-such-judge.invalid leads nowhere")


def test_busy_then_well_waits_as_long_as_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = iter([http("429 Too Many Requests", b"{}", "Retry-After: 1"), says("Score: 7")])
    (score,), server, facts = graded(monkeypatch, lambda _: next(replies), "4")
    assert (score.value, score.tries, score.error) == (0.7, 2, None)
    assert server.seen[1].at - server.seen[0].at >= 1
    assert (facts["calls"], facts["retried"], facts["answers"], facts["failed"]) == (2, 1, 1, 0)


def test_broken_then_well(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = iter([http("502 Bad Gateway", b"<html>"), b"", says("Score: 3")])
    (score,), server, _ = graded(monkeypatch, lambda _: next(replies), "4", limits=RewardLimits(retries=2))
    assert (score.value, score.tries, len(server.seen)) == (0.3, 3, 3)


def test_one_that_hangs_is_killed_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(seen: Seen) -> Reply:
        if seen.completion != "2":
            return says(f"Score: {seen.completion}")
        judge._calls._pool._children[0].deadline = time.monotonic()  # the others have all the time that they need
        return drip(seen)

    with Server(answer) as server:
        monkeypatch.setenv("GRPO_JUDGE_ALLOW", server.place)
        params = JudgeParams(base_url=server.url, model="judge", key_env=None)
        judge = Judge(params, Context(limits=RewardLimits(retries=0, workers=1)))
        pids: set[int] = set()

        def look() -> None:
            pids.update(c._process.pid for c in judge._calls._pool._children if c._process is not None)

        scores = judge.score([Unscored(PROBLEM, str(number)) for number in range(5)], look)
        assert [score.value for score in scores] == [0.0, 0.1, None, 0.3, 0.4]
        judge.close()
    assert len(pids) == 2  # one was killed, and another took its place
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_workers_ask_side_by_side_and_the_order_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(3, timeout=20)

    def answer(seen: Seen) -> Reply:
        together.wait()
        time.sleep(0.05 * (9 - int(seen.completion)))
        return says(f"Score: {seen.completion}")

    scores, _, facts = graded(
        monkeypatch, answer, *(str(number) for number in range(9)), limits=RewardLimits(workers=3, retries=0)
    )
    assert [score.value for score in scores] == [number / 10 for number in range(9)]
    assert facts["calls"] == 9


def test_a_wish_to_stop_ends_what_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(drip) as server:
        monkeypatch.setenv("GRPO_JUDGE_ALLOW", server.place)
        judge = Judge(JudgeParams(base_url=server.url, model="judge", key_env=None), Context())

        def check() -> None:
            if server.seen:
                raise Interrupted("stop")

        with pytest.raises(Interrupted):
            judge.score([Unscored(PROBLEM, "4")], check)
        assert [child._process for child in judge._calls._pool._children if child.tag is not None] == []
        server.answer = lambda _: says("Score: 4")
        assert judge.score([Unscored(PROBLEM, "5")], lambda: None)[0].value == 0.4
        judge.close()


def test_children_end_with_the_trainer_that_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is left to kill the one that waits for a server, so it ends itself."""
    program = """
import os, sys
from grpo_core.data.problem import Problem
from grpo_core.rewards.base import Context, Unscored
from grpo_core.rewards.judge import Judge, JudgeParams
judge = Judge(JudgeParams(base_url=sys.argv[1], model="judge", key_env=None, timeout_seconds=60), Context())
judge._calls._seconds = 1  # the child has started
print(judge._calls._pool._children[0]._process.pid, flush=True)
judge.score([Unscored(Problem("p", "q", "a"), "4")], lambda: None)
"""
    with Server(drip) as server:
        monkeypatch.setenv("GRPO_JUDGE_ALLOW", server.place)
        trainer = subprocess.Popen([sys.executable, "-c", program, server.url], stdout=subprocess.PIPE, text=True)
        assert trainer.stdout is not None
        child = int(trainer.stdout.readline())
        wait_for(lambda: server.seen, "the request")
        trainer.kill()
        trainer.wait()
        trainer.stdout.close()
        wait_for(lambda: not Path(f"/proc/{child}").exists(), "the end of the child")


def test_an_answer_longer_than_is_kept_is_read_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    (score,), _, _ = graded(monkeypatch, lambda _: says("Score: 1 " + "x" * 100_000 + "\nScore: 8"), "4")
    assert score.value == 0.8
    (score,), _, _ = graded(monkeypatch, lambda _: says("Score: 1 " + "x" * 100_000), "4")
    assert score.error_class == "parse"
