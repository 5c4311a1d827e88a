"""The kind judge with a server that works: what is asked, paid and kept, and that its key is told to nobody."""

import json
import re
from pathlib import Path

import pytest

from grpo_core.config_reward import RewardConfig
from grpo_core.data.problem import Problem
from grpo_core.errors import ConfigError
from grpo_core.rewards import Rubric, Runner
from grpo_core.rewards.base import Unscored
from grpo_core.rewards.judge import JudgeParams
from grpo_core.rewards.judge_score import NoScore, as_number, by_field, by_pattern, share
from tests.tables import cases

from .examples import PAGES, Example, examples, run
from .judge_asked import PROBLEM, judging, opened, values
from .judge_server import Server, chat, http, reply_of, says

KEY = "sk-test-0123456789abcdef"


def by_completion(seen):
    return says(f"Score: {seen.completion}")


# ---------------------------------------------------------------------- what is asked


def test_what_is_asked(monkeypatch):
    with judging(monkeypatch, by_completion, system="Be strict.", extra={"reasoning_effort": "low"}, max_tokens=99) as (
        judge,
        server,
    ):
        assert values(judge, "7") == [0.7]
    (seen,) = server.seen
    assert seen.path == "/v1/chat/completions"
    assert seen.headers["accept-encoding"] == "identity"
    body = seen.body
    expected = {"model": "grader", "temperature": 0.0, "max_tokens": 99, "reasoning_effort": "low"}
    assert {name: body[name] for name in expected} == expected
    assert body["messages"][0] == {"role": "system", "content": "Be strict."}
    # SHA-256 of "7": 7902699be42c8a8e46fbbb4501726517e86b22c56a189f7625a6da49081b2451
    asked = body["messages"][1]["content"]
    assert "Question:\n2+2?\n\nReference answer:\n4\n" in asked
    assert "\n[7902699be42c]\n7\n[7902699be42c]\n" in asked
    assert "from 0 (wrong" in asked


def test_a_completion_that_names_places_is_left_as_it_is(monkeypatch):
    with judging(monkeypatch, lambda _: says("Score: 1"), template="{completion}|{answer}|{unknown}") as (
        judge,
        server,
    ):
        judge.score([Unscored(Problem("p", "{completion}", "{prompt}"), "{answer}{mark}")], lambda: None)
    assert server.seen[0].asked == "{answer}{mark}|{prompt}|{unknown}"


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"template": "{prompt}"}, "template"),
        ({"score_pattern": "score: ("}, "score_pattern"),
        ({"score_pattern": "(a)(b)"}, "score_pattern"),
        ({"votes": 3}, "votes"),
        ({"extra": {"n": 2, "stream": True}}, "extra"),
        ({"base_url": "judge"}, "base_url"),
        ({"minimum": 3, "maximum": 3}, ""),
    ],
)
def test_parameters_that_cannot_be_meant(params, field):
    given = {"base_url": "https://judge.example/v1", "model": "grader", **params}
    component = {"name": "judge", "kind": "judge", "params": given}
    with pytest.raises(ConfigError) as refused:
        Rubric(RewardConfig.model_validate({"components": [component]}))
    assert [one.path for one in refused.value.problems] == [f"reward.components.0.params.{field}".rstrip(".")]


# ---------------------------------------------------------------------- what is paid


@pytest.mark.parametrize(("text", "score"), cases("judge/scores", "text", "score"))
def test_the_usual_pattern(text, score):
    pattern = JudgeParams(base_url="https://judge.example", model="m").score_pattern
    if score is not None:
        assert by_pattern(text, pattern) == score
    else:
        with pytest.raises(NoScore):
            by_pattern(text, pattern)


def test_a_pattern_that_takes_for_ever_is_stopped(monkeypatch):
    monkeypatch.setattr("grpo_core.rewards.judge_score._PATTERN_SECONDS", 0.2)
    with pytest.raises(NoScore, match="takes more than"):
        by_pattern("a" * 5000 + "!", "(?:a|aa)+$")


def test_a_field_of_the_last_object_that_has_it():
    text = 'So {"score": 1}.\n```json\n{"why": {"score": 5}, "score": 3}\n```\n{"other": 2} {broken'
    assert by_field(text, "score") == 3
    assert by_field('{"a": "{\\"score\\": 9}", "score": 4}', "score") == 4
    for without in ("", "{}", "[1]", "{" * 50_000, '{"a":' * 4000):
        with pytest.raises(NoScore):
            by_field(without, "score")


@pytest.mark.parametrize(
    ("given", "number"), [("7", 7.0), (" 7.5. ", 7.5), ("-.5", -0.5), ("1e2", 100.0), (3, 3.0), (0.25, 0.25)]
)
def test_numbers(given, number):
    assert as_number(given) == number


NO_NUMBERS: dict[str, tuple[object, ...]] = {
    "value": ("nan", "-Infinity", float("nan"), 10**400, "9" * 400),
    "parse": ("1,000", "7/10", "٧", "", True, None, [7], {"score": 7}),
}


@pytest.mark.parametrize("error_class", NO_NUMBERS)
def test_what_is_no_number(error_class):
    for given in NO_NUMBERS[error_class]:
        with pytest.raises(NoScore) as fault:
            as_number(given)
        assert fault.value.error_class == error_class, given


def test_a_score_is_a_share_of_the_scale():
    assert [share(one, minimum=1, maximum=5) for one in (1, 2, 5)] == [0, 0.25, 1]
    for outside in (0.999, 5.001):
        with pytest.raises(NoScore):
            share(outside, minimum=1, maximum=5)


def test_votes_are_averaged_and_need_a_majority(monkeypatch):
    said = {"good": iter(["2", "none", "7"]), "bad": iter(["4", "none", "none"])}

    def answer(seen):
        return says(f"Score: {next(said[seen.completion])}")

    with judging(monkeypatch, answer, votes=3, temperature=1.0, pass_at=0.45) as (judge, server):
        good, bad = judge.score([Unscored(PROBLEM, "good"), Unscored(PROBLEM, "bad")], lambda: None)
    assert (good.value, good.passed) == (0.45, True)
    assert good.detail.startswith("2, 7 on 0 to 10")
    assert (bad.value, bad.error_class) == (None, "parse")
    assert (len(server.seen), judge.facts()["unreadable"]) == (6, 3)


def test_votes_that_a_server_did_not_answer_are_not_the_samples_doing(monkeypatch):
    replies = iter([says("none"), http("404 Not Found", b""), says("none")])
    with judging(monkeypatch, lambda _: next(replies), votes=3, temperature=1.0) as (judge, _):
        (score,) = judge.score([Unscored(PROBLEM, "4")], lambda: None)
    assert score.error_class == "infra"


def test_an_empty_answer_earns_nothing_and_nobody_is_asked(monkeypatch):
    with judging(monkeypatch, lambda _: says("Score: 10"), extract="answer_tag") as (judge, server):
        assert values(judge, "", " \n", "4", "<answer> </answer>") == [0, 0, 0, 0]
        (score,) = judge.score([Unscored(PROBLEM, "<answer>\ud800</answer>")], lambda: None)
    assert (score.error_class, server.seen) == ("sample", [])


# ---------------------------------------------------------------------- what is kept, and what it costs


def test_the_same_is_asked_once(monkeypatch):
    with judging(monkeypatch, by_completion) as (judge, server):
        assert values(judge, "3", "3", "5") == [0.3, 0.3, 0.5]
        assert values(judge, "5", "3") == [0.5, 0.3]
        facts = judge.facts()
    assert len(server.seen) == 2
    assert (facts["calls"], facts["cache_hits"], facts["answers"]) == (2, 3, 2)
    assert (facts["prompt_tokens"], facts["completion_tokens"], facts["models"]) == (14, 6, ["judge-2026-01"])


def test_a_run_that_goes_on_asks_nothing_again_and_has_what_is_left_of_its_budget(tmp_path, monkeypatch):
    with judging(monkeypatch, by_completion, cache=tmp_path, budget_calls=3) as (judge, server):
        assert values(judge, "3", "5") == [0.3, 0.5]
        (file,) = tmp_path.iterdir()
        file.write_bytes(file.read_bytes() + b'\n{"request": "torn')
        judge = opened(server, monkeypatch, cache=tmp_path, budget_calls=3)
        assert values(judge, "5", "3", "6", "7") == [0.5, 0.3, 0.6, None]
        assert (judge.facts()["calls"], judge.facts()["cache_hits"]) == (3, 2)
        judge.close()
        other = opened(server, monkeypatch, cache=tmp_path, max_tokens=9)  # another judge, with answers of its own
        assert values(other, "3") == [0.3]
        other.close()
    assert [seen.completion for seen in server.seen] == ["3", "5", "6", "3"]
    assert file.stat().st_mode & 0o077 == 0


def test_a_budget_of_calls_is_never_passed_and_never_paid_0(monkeypatch):
    replies = iter([http("500 Oops", b""), says("Score: 3"), says("Score: 4")])
    with judging(monkeypatch, lambda _: next(replies), budget_calls=3) as (judge, server):
        scores = judge.score([Unscored(PROBLEM, text) for text in "abcd"], lambda: None)
    assert len(server.seen) == 3
    assert [one.error_class for one in scores].count("budget") == 2
    assert "budget_calls" in next(one.error for one in scores if one.error)


@pytest.mark.parametrize("counted", [True, False])
def test_a_budget_of_tokens(counted, monkeypatch):
    with judging(
        monkeypatch,
        lambda _: says("Score: 3", usage=(60, 50) if counted else None),
        budget_tokens=200 if counted else 1,
        template="{completion}",
    ) as (judge, server):
        assert values(judge, "a", "b", "c") == ([0.3, 0.3, None] if counted else [0.3, None, None])
        facts = judge.facts()
    if counted:
        assert (facts["prompt_tokens"], facts["completion_tokens"], facts["estimated_answers"]) == (120, 100, 0)
    else:
        sent = len(server.seen[0].raw)
        assert (facts["prompt_tokens"], facts["completion_tokens"]) == (-(-sent // 3), 3)  # "Score: 3": 8 bytes
        assert facts["estimated_answers"] == 1


def test_several_processes_share_a_budget(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with judging(monkeypatch, by_completion, budget_calls=5) as (judge, _):
        assert values(judge, "1", "2", "3") == [0.1, 0.2, None]


@pytest.mark.parametrize(
    "usage", [{"prompt_tokens": -5, "completion_tokens": True}, {"prompt_tokens": 1e300}, [1], "x"]
)
def test_a_server_that_lies_about_its_usage(usage, monkeypatch):
    body = json.loads(chat("Score: 3"))
    body["usage"] = usage
    with judging(monkeypatch, lambda _: http("200 OK", json.dumps(body).encode())) as (judge, _):
        assert values(judge, "a") == [0.3]
        assert judge.facts()["estimated_answers"] == 1
        assert judge.facts()["prompt_tokens"] > 0


# ---------------------------------------------------------------------- the key


@pytest.mark.parametrize("reply", cases("judge/key_echoes", "reply"))
def test_a_server_that_echoes_the_key_does_not_spread_it(reply, tmp_path, monkeypatch):
    def filled(part):
        if isinstance(part, str):
            return re.sub(r"\{(\d+)\}", lambda count: "x" * int(count[1]), part.replace("{key}", KEY))
        return [*map(filled, part)] if isinstance(part, list) else part

    with Server(lambda _: reply_of({name: filled(part) for name, part in reply.items()})) as server:
        monkeypatch.setenv("GRPO_JUDGE_KEY", KEY)
        monkeypatch.setenv("GRPO_JUDGE_KEY_HOSTS", server.place)
        judge = opened(server, monkeypatch, key_env="GRPO_JUDGE_KEY", cache=tmp_path)
        (score,) = judge.score([Unscored(PROBLEM, "4")], lambda: None)
        (child,) = judge._calls._pool._children
        process = Path(f"/proc/{child._process.pid}")
        environment = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
        judge.close()
    assert {seen.headers["authorization"] for seen in server.seen} == {f"Bearer {KEY}"}
    kept = "".join(path.read_text() for path in tmp_path.iterdir())
    for text in (repr(score), repr(judge.facts()), repr(judge.__dict__["_params"]), kept, environment.decode()):
        assert KEY[:12] not in text


# ---------------------------------------------------------------------- the page


def said_on_the_page():
    """What the judge says before each completion of the page; empty where nobody is asked."""
    page = (PAGES / "judge.md").read_text(encoding="utf-8")
    return [judge for judge, _ in re.findall(r"(?:```judge\n(.*?)\n```\n\n)?```completion\n(.*?)```", page, re.DOTALL)]


PAGE = examples(PAGES / "judge.md")


@pytest.mark.parametrize("place", range(len(PAGE)), ids=[one.where for one in PAGE])
def test_what_the_page_shows_is_so(place, monkeypatch):
    first = sum(len(one.shown) for one in PAGE[:place])
    example = PAGE[place]
    said = dict(zip((one.completion for one in example.shown), said_on_the_page()[first:], strict=False))

    def answer(seen):
        return says(next(text for completion, text in said.items() if f"\n{_graded(completion)}\n[" in seen.asked))

    with Server(answer) as server:
        monkeypatch.setenv("GRPO_JUDGE_ALLOW", server.place)
        told = example.reward.model_dump(mode="json")
        told["components"][0]["params"] |= {"base_url": server.url, "key_env": None}
        here = Example(example.where, RewardConfig.model_validate(told), example.problem, example.shown)
        run(here)
        assert len(server.seen) == sum(text != "" for text in said.values())


def _graded(completion):
    return completion.removeprefix("<answer>").removesuffix("</answer>")


def test_the_runner_holds_one_judge_for_each_component(monkeypatch):
    with Server(by_completion) as server:
        monkeypatch.setenv("GRPO_JUDGE_ALLOW", server.place)
        params = {"base_url": server.url, "model": "grader", "key_env": None}
        components = [
            {"name": "one", "kind": "judge", "params": params},
            {"name": "two", "kind": "judge", "weight": 0.5, "params": params | {"maximum": 20}},
        ]
        with Runner(Rubric(RewardConfig.model_validate({"components": components}))) as runner:
            assert runner.one(PROBLEM, "4").reward == pytest.approx(0.4 + 0.5 * 0.2)
            assert {name: facts["calls"] for name, facts in runner.facts().items()} == {"one": 1, "two": 1}
