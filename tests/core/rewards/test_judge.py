"""The kind judge with a server that works: what is asked, paid and kept, and that its key is told to nobody."""

import json
import re

import pytest

from grpo_core.data.problem import Problem
from grpo_core.rewards import Runner
from grpo_core.rewards.base import ScoreRequest
from grpo_core.rewards.judge.kind import JudgeParams
from grpo_core.rewards.judge.response import NoScore, as_number, by_field, by_pattern, share
from tests.tables import cases

from .judge_server import KEY, PROBLEM, Server, chat, http, reply_of, says, scored, values
from .scoring import rubric_of


def by_completion(seen):
    return says(f"Score: {seen.completion}")


# ---------------------------------------------------------------------- what is asked


def test_what_is_asked(judging):
    judge, server = judging(by_completion, system="Be strict.", extra={"reasoning_effort": "low"}, max_tokens=99)
    assert values(judge, "7") == [0.7]
    (seen,) = server.seen
    assert seen.path == "/v1/chat/completions"
    assert seen.headers["accept-encoding"] == "identity"
    body = seen.body
    expected = {"model": "grader", "temperature": 0.0, "max_tokens": 99, "reasoning_effort": "low"}
    assert {name: body[name] for name in expected} == expected
    assert body["messages"][0] == {"role": "system", "content": "Be strict."}
    # SHA-256 of "7": 7902699be42c8a8e46fbbb4501726517e86b22c56a189f7625a6da49081b2451
    question = body["messages"][1]["content"]
    assert "Question:\n2+2?\n\nReference answer:\n4\n" in question
    assert "\n[7902699be42c]\n7\n[7902699be42c]\n" in question
    assert "from 0 (wrong" in question
    # A completion that names a field of the template is left as it is.
    judge, server = judging(lambda _: says("Score: 1"), template="{completion}|{answer}|{unknown}")
    judge.score([ScoreRequest(Problem("p", "{completion}", "{prompt}"), "{answer}{mark}")], lambda: None)
    assert server.seen[0].question == "{answer}{mark}|{prompt}|{unknown}"


# ---------------------------------------------------------------------- what is paid


@pytest.mark.parametrize(("text", "score"), cases("judge/scores", "text", "score"))
def test_the_usual_pattern(text, score):
    pattern = JudgeParams(base_url="https://judge.example", model="m").score_pattern
    if score is not None:
        assert by_pattern(text, pattern) == score
    else:
        with pytest.raises(NoScore):
            by_pattern(text, pattern)


def test_a_field_of_the_last_object_that_has_it_and_a_pattern_that_takes_for_ever(monkeypatch):
    monkeypatch.setattr("grpo_core.rewards.judge.response._PATTERN_SECONDS", 0.2)
    with pytest.raises(NoScore, match="takes more than"):
        by_pattern("a" * 5000 + "!", "(?:a|aa)+$")
    text = 'So {"score": 1}.\n```json\n{"why": {"score": 5}, "score": 3}\n```\n{"other": 2} {broken'
    assert by_field(text, "score") == 3
    assert by_field('{"a": "{\\"score\\": 9}", "score": 4}', "score") == 4
    for without in ("", "{}", "[1]", "{" * 50_000, '{"a":' * 4000):
        with pytest.raises(NoScore):
            by_field(without, "score")


def test_numbers_and_their_share_of_the_scale():
    for given, number in (("7", 7.0), (" 7.5. ", 7.5), ("-.5", -0.5), ("1e2", 100.0), (3, 3.0), (0.25, 0.25)):
        assert as_number(given) == number
    none = {"value": ("nan", "-Infinity", float("nan"), 10**400, "9" * 400)}
    none["parse"] = ("1,000", "7/10", "٧", "", True, None, [7], {"score": 7})
    for error_class, texts in none.items():
        for given in texts:
            with pytest.raises(NoScore) as fault:
                as_number(given)
            assert fault.value.error_class == error_class, given
    assert [share(score, minimum=1, maximum=5) for score in (1, 2, 5)] == [0, 0.25, 1]
    for outside in (0.999, 5.001):
        with pytest.raises(NoScore):
            share(outside, minimum=1, maximum=5)


def test_votes_are_averaged_and_need_a_majority(judging):
    votes = {"good": iter(["2", "none", "7"]), "bad": iter(["4", "none", "none"])}

    def answer(seen):
        return says(f"Score: {next(votes[seen.completion])}")

    judge, server = judging(answer, votes=3, temperature=1.0, pass_at=0.45)
    good, bad = scored(judge, "good", "bad")
    assert (good.value, good.passed) == (0.45, True)
    assert good.detail.startswith("2, 7 on 0 to 10")
    assert (bad.value, bad.error_class) == (None, "parse")
    assert (len(server.seen), judge.facts()["unreadable"]) == (6, 3)
    # Votes that a server did not answer are not the sample's doing.
    replies = iter([says("none"), http("404 Not Found", b""), says("none")])
    judge, _ = judging(lambda _: next(replies), votes=3, temperature=1.0)
    assert scored(judge, "4")[0].error_class == "infra"


def test_an_empty_answer_earns_nothing_and_nobody_is_asked(judging):
    judge, server = judging(lambda _: says("Score: 10"), extract="answer_tag")
    assert values(judge, "", " \n", "4", "<answer> </answer>") == [0, 0, 0, 0]
    (score,) = scored(judge, "<answer>\ud800</answer>")
    assert (score.error_class, server.seen) == ("sample", [])


# ---------------------------------------------------------------------- what is kept, and what it costs


def test_the_same_is_asked_once(judging):
    judge, server = judging(by_completion)
    assert values(judge, "3", "3", "5") == [0.3, 0.3, 0.5]
    assert values(judge, "5", "3") == [0.5, 0.3]
    facts = judge.facts()
    assert len(server.seen) == 2
    assert (facts["calls"], facts["cache_hits"], facts["answers"]) == (2, 3, 2)
    assert (facts["prompt_tokens"], facts["completion_tokens"], facts["models"]) == (14, 6, ["judge-2026-01"])


def test_a_run_that_goes_on_asks_nothing_again_and_has_what_is_left_of_its_budget(judging, judge_at, tmp_path):
    judge, server = judging(by_completion, cache=tmp_path, budget_calls=3)
    assert values(judge, "3", "5") == [0.3, 0.5]
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes() + b'\n{"request": "torn')
    judge = judge_at(server.url, cache=tmp_path, budget_calls=3)
    assert values(judge, "5", "3", "6", "7") == [0.5, 0.3, 0.6, None]
    assert (judge.facts()["calls"], judge.facts()["cache_hits"]) == (3, 2)
    other = judge_at(server.url, cache=tmp_path, max_tokens=9)  # another judge, with answers of its own
    assert values(other, "3") == [0.3]
    assert [seen.completion for seen in server.seen] == ["3", "5", "6", "3"]
    assert file.stat().st_mode & 0o077 == 0


def test_a_budget_of_calls_is_never_passed_and_never_paid_0(judging, monkeypatch):
    replies = iter([http("500 Oops", b""), says("Score: 3"), says("Score: 4")])
    judge, server = judging(lambda _: next(replies), budget_calls=3)
    scores = scored(judge, *"abcd")
    assert len(server.seen) == 3
    assert [score.error_class for score in scores].count("budget") == 2
    assert "budget_calls" in next(score.error for score in scores if score.error)
    monkeypatch.setenv("WORLD_SIZE", "2")  # several processes share it
    assert values(judging(by_completion, budget_calls=5)[0], "1", "2", "3") == [0.1, 0.2, None]


@pytest.mark.parametrize("counted", [True, False])
def test_a_budget_of_tokens(judging, counted):
    judge, server = judging(
        lambda _: says("Score: 3", usage=(60, 50) if counted else None),
        budget_tokens=200 if counted else 1,
        template="{completion}",
    )
    assert values(judge, "a", "b", "c") == ([0.3, 0.3, None] if counted else [0.3, None, None])
    facts = judge.facts()
    if counted:
        assert (facts["prompt_tokens"], facts["completion_tokens"], facts["estimated_answers"]) == (120, 100, 0)
    else:
        sent = len(server.seen[0].raw)
        assert (facts["prompt_tokens"], facts["completion_tokens"]) == (-(-sent // 3), 3)  # "Score: 3": 8 bytes
        assert facts["estimated_answers"] == 1


@pytest.mark.parametrize(
    "usage", [{"prompt_tokens": -5, "completion_tokens": True}, {"prompt_tokens": 1e300}, [1], "x"]
)
def test_a_server_that_lies_about_its_usage(judging, usage):
    body = json.loads(chat("Score: 3"))
    body["usage"] = usage
    judge, _ = judging(lambda _: http("200 OK", json.dumps(body).encode()))
    assert values(judge, "a") == [0.3]
    assert judge.facts()["estimated_answers"] == 1
    assert judge.facts()["prompt_tokens"] > 0


# ---------------------------------------------------------------------- the key


@pytest.mark.parametrize("reply", cases("judge/key_echoes", "reply"))
def test_a_server_that_echoes_the_key_does_not_spread_it(judging, reply, tmp_path, caplog):
    caplog.set_level("DEBUG")

    def filled(part):
        if isinstance(part, str):
            return re.sub(r"\{(\d+)\}", lambda count: "x" * int(count[1]), part.replace("{key}", KEY))
        return [*map(filled, part)] if isinstance(part, list) else part

    judge, server = judging(
        lambda _: reply_of({name: filled(part) for name, part in reply.items()}), key=KEY, cache=tmp_path
    )
    (score,) = scored(judge, "4")
    assert {seen.headers["authorization"] for seen in server.seen} == {f"Bearer {KEY}"}
    kept = "".join(path.read_text() for path in tmp_path.iterdir())
    for text in (repr(score), repr(judge.facts()), repr(judge.__dict__["_params"]), kept, caplog.text):
        assert KEY[:12] not in text


def test_the_runner_holds_one_judge_for_each_component(monkeypatch):
    with Server(by_completion) as server:
        monkeypatch.setenv("GRPO_JUDGE_ALLOW", server.address)
        params = {"base_url": server.url, "model": "grader", "key_env": None}
        second = {"kind": "judge", "weight": 0.5, "params": {**params, "maximum": 20}}
        with Runner(rubric_of({"kind": "judge", "params": params}, second)) as runner:
            assert runner.score_one(PROBLEM, "4").reward == pytest.approx(0.4 + 0.5 * 0.2)
            assert [facts["calls"] for facts in runner.facts().values()] == [1, 1]
