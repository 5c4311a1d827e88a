"""Jobs about a model: its evaluation, which is that of a run's trainer, and a chat with it, whose answers are those of
the sampler on the prompt that its chat template makes."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from grpo_core.config.prompt import PromptConfig
from grpo_core.data.problem import Message, Problem
from grpo_core.data.prompts import completion_text
from grpo_core.errors import ConfigError, DataError
from grpo_core.lab.chat import ChatEnded, Exchange
from grpo_core.lab.evaluation import ModelEvaluation, fitted
from grpo_core.lab.job import Job
from grpo_core.lab.run import run_job
from grpo_core.model.tiny import byte_tokenizer
from grpo_core.protocol.messages import ChatAnswer, ChatTurn
from grpo_core.rollout.base import Decoding
from grpo_core.rollout.local import LocalRollout
from grpo_core.runtime.progress import Progress
from tests.core.runs import PLAIN, merged, rows, train_here
from tests.core.tiny import load, tiny_folder
from tests.processes import wait_for

EXACT = {"components": [{"name": "right", "kind": "exact", "params": {"extract": "whole"}}]}
SUITE: dict[str, Any] = {"name": "performance", "path": "builtin:performance", "max_completion_tokens": 6}
BOTH = ("model", "reference")


def run(folder: Path, **job: Any) -> dict[str, Any]:
    return run_job(Job.model_validate(job), base=folder, progress=Progress(quiet=True), turns=folder / "turns")


# ---------------------------------------------------------------------- evaluation


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_evaluation_is_that_of_the_trainer(runs_home: Path, tmp_path: Path, temperature: float) -> None:
    """Every field of every item, and all totals but the time."""
    out = tmp_path / "run"
    evaluated = {
        "temperature": temperature,
        "samples_per_problem": 2,
        "suites": [{**SUITE, "limit": 6}],
        "after": False,
    }
    parts = merged(PLAIN, {"eval": evaluated, "reward": EXACT, "optim": {"steps": 1}})
    assert train_here(runs_home, out, **parts) == 0
    recorded = rows(out / "evals/before.jsonl")
    options = {"temperature": temperature, "samples": 2, "max_completion_tokens": 4, "limit": 6, "seed": 0}
    job = {"model": {"path": "base"}, "data": {"path": "heldout.jsonl"}, "reward": EXACT, "suites": [SUITE]}
    result = ModelEvaluation.model_validate(run(runs_home, kind="evaluate", options=options, **job))
    items = [row for row in recorded if row["kind"] == "eval_item"]
    assert len(items) == 3 + 6
    assert [item.model_dump(mode="json") for item in result.items] == items
    totals = [{**row, "seconds": 0} for row in recorded if row["kind"] == "eval_result"]
    assert [{**each.model_dump(mode="json"), "seconds": 0} for each in result.results] == totals


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with two models without a chat template, and one with one."""
    tiny_folder(tmp_path / "base")
    tiny_folder(tmp_path / "other", seed=1)
    tiny_folder(tmp_path / "talks")
    talking = byte_tokenizer()
    talking.chat_template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    talking.save_pretrained(tmp_path / "talks")
    return tmp_path


def test_a_suite_that_does_not_fit_names_its_item(models: Path) -> None:
    job = {"kind": "evaluate", "model": {"path": "base"}, "suites": [{**SUITE, "max_completion_tokens": None}]}
    with pytest.raises(ConfigError, match=r"suite performance: the prompt of item \S+ \(\d+ tokens\)"):
        run(models, **job, options={"max_completion_tokens": 500})
    with pytest.raises(DataError, match="suite performance: builtin:performance is not the file meant"):
        run(models, kind="evaluate", model={"path": "base"}, suites=[{**SUITE, "sha256": "0" * 64}])


@pytest.mark.parametrize(
    ("job", "word"),
    [
        ({"kind": "evaluate", "model": {"path": "base"}}, "needs suites"),
        ({"kind": "evaluate", "suites": [SUITE]}, "needs a model"),
        ({"kind": "evaluate", "model": {"path": "base"}, "suites": [SUITE, SUITE]}, "given twice: performance"),
        ({"kind": "evaluate", "model": {"path": "base"}, "data": {"path": "x.jsonl"}}, "come together"),
        ({"kind": "chat"}, "needs a model"),
        ({"kind": "chat", "model": {"path": "base"}, "suites": [SUITE]}, "suites are for an evaluation"),
        ({"kind": "doctor", "model": {"path": "base"}, "reference": {"path": "base"}}, "reference is for a chat"),
        ({"kind": "chat", "model": {"path": "base"}, "reward": EXACT}, "about a model alone"),
    ],
)
def test_what_such_a_job_needs(job: dict[str, Any], word: str) -> None:
    with pytest.raises(ValidationError, match=word):
        Job.model_validate(job)


def test_totals_are_those_of_the_items_and_texts_give_way(models: Path) -> None:
    result = run(models, kind="evaluate", model={"path": "base"}, suites=[SUITE], options={"limit": 4})
    whole = ModelEvaluation.model_validate(result)
    assert (len(whole.items), whole.texts_left_out) == (4, 0)
    size = len(whole.model_dump_json().encode())
    short = fitted(whole, size - 1)
    assert [bool(item.prompt) for item in short.items] == [True] * (4 - short.texts_left_out) + [False] * (
        short.texts_left_out
    )
    assert short.texts_left_out >= 1
    assert [item.score for item in short.items] == [item.score for item in whole.items]
    assert len(fitted(whole, 1).items) == 4, "scores are kept in any case"
    for wrong in ({"correct": 3.5}, {"problems": 5}, {"truncated": 9}, {"suite": "another"}):
        spoilt = {**result, "results": [{**result["results"][0], **wrong}]}
        with pytest.raises(ValidationError, match=r"totals|has no result"):
            ModelEvaluation.model_validate(spoilt)
    with pytest.raises(ValidationError, match="there twice"):
        ModelEvaluation.model_validate({**result, "items": [result["items"][0]] * 4})


# ---------------------------------------------------------------------- chat


def turn(number: int, *texts: str, sides: tuple[str, ...] = BOTH, **more: Any) -> ChatTurn:
    """Of a person and a model by turns."""
    roles = ["user" if index % 2 == 0 else "assistant" for index in range(len(texts))]
    history = [{"role": role, "text": text} for role, text in zip(roles, texts, strict=True)]
    settings = {"temperature": 0.0, "top_p": 1.0, "max_tokens": 6, "seed": 0, **more}
    return ChatTurn.model_validate({"turn": number, "histories": dict.fromkeys(sides, history), **settings})


def talk(folder: Path, *turns: ChatTurn, **job: Any) -> list[ChatAnswer]:
    """What a chat's job answers to the turns, each sent when those before it are answered."""
    exchange = Exchange(folder / "turns")
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(run, folder, kind="chat", **job)
        count = 0
        for each in turns:
            exchange.send(each)
            count += len(each.histories)
            wait_for(lambda wanted=count: future.done() or len(exchange.answers()) == wanted, "it is answered")
        exchange.close()
        ended = ChatEnded.model_validate(future.result())
    assert ended.answers == count
    return exchange.answers()


def expected(folder: Path, prompt: Problem, *, tokens: int = 6, seed: int = 0, **decoding: Any) -> tuple[str, int]:
    """Text and number of tokens of what the sampler gives for the prompt."""
    policy = load(folder)
    given = policy.encoder(PromptConfig()).encode(prompt).tokens
    drawn = Decoding(max_tokens=tokens, **decoding)
    ((completion,),) = LocalRollout(policy, max_rows=8).generate([given], samples=1, decoding=drawn, key=(seed, 1, 1))
    return completion_text(policy.tokenizer, completion.tokens, policy.eos_ids), len(completion.tokens)


def test_two_models_answer_through_the_chat_template_and_without_one(models: Path) -> None:
    first, later = (
        turn(7, "What is 2 + 3?"),
        turn(8, "Hi.", "5", "And 3 + 4?", sides=("model",), temperature=0.9, seed=4),
    )
    job = {"model": {"path": "talks"}, "reference": {"path": "other"}, "options": {"system": ""}}
    chat, plain, second = talk(models, first, later, **job)
    assert [(each.turn, each.side, each.template) for each in (chat, plain, second)] == [
        (7, "model", "chat"),
        (7, "reference", "plain"),
        (8, "model", "chat"),
    ]
    alone = Problem("m", "What is 2 + 3?", "")
    assert (chat.text, chat.tokens) == expected(models / "talks", alone, temperature=0.0)
    assert (plain.text, plain.tokens) == expected(models / "other", alone, temperature=0.0)
    history = (Message("user", "Hi."), Message("assistant", "5"), Message("user", "And 3 + 4?"))
    whole = Problem("m", "And 3 + 4?", "", messages=history)
    assert (second.text, second.tokens) == expected(models / "talks", whole, temperature=0.9, seed=4)
    assert {each.finish for each in (chat, plain, second)} <= {"eos", "length"}
    assert all(each.prompt_tokens > 0 and not each.error for each in (chat, plain, second))


def test_a_system_message_goes_first_and_text_is_continued(models: Path) -> None:
    """Without a chat template the texts follow each other, each answer right behind what it answered."""
    third = turn(1, "One.", " two", "Three.", sides=("model",))
    (answer,) = talk(models, third, model={"path": "base"}, options={"system": "Count."})
    text = Problem("m", "Count.\nOne. two\nThree.", "")
    assert (answer.text, answer.tokens) == expected(models / "base", text, temperature=0.0)
    shutil.rmtree(models / "turns")
    first = turn(2, "One.", sides=("model",))
    (templated,) = talk(models, first, model={"path": "talks"}, options={"system": "Count."})
    system = (Message("system", "Count."), Message("user", "One."))
    prompt = Problem("m", "One.", "", messages=system)
    assert (templated.text, templated.tokens) == expected(models / "talks", prompt, temperature=0.0)


def test_what_cannot_be_answered_says_why_and_the_chat_goes_on(models: Path) -> None:
    long, short = turn(1, "x" * 600, sides=("model",)), turn(2, "x", sides=("model",))
    refused, answered = talk(models, long, short, model={"path": "base"})
    assert "has 512 positions: begin a new conversation" in refused.error
    assert (refused.text, refused.finish) == ("", None)
    assert (answered.error, answered.tokens > 0) == ("", True)


def test_a_turn_and_an_answer_are_passed_once(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path / "turns")
    assert (exchange.pending(), exchange.answers(), exchange.closed) == ([], [], False)
    exchange.send(turn(10, "a", sides=("model",)))
    exchange.send(turn(9, "b"))
    exchange.send(turn(9, "another"))
    assert [(each.turn, side) for each, side in exchange.pending()] == [(9, "model"), (9, "reference"), (10, "model")]
    assert exchange.pending()[0][0].histories["model"][0].text == "b"
    given = {"text": "c", "tokens": 1, "prompt_tokens": 1, "finish": "eos", "template": "plain", "seconds": 0.0}
    exchange.answer(ChatAnswer.model_validate({"turn": 9, "side": "model", **given}))
    assert [(each.turn, side) for each, side in exchange.pending()] == [(9, "reference"), (10, "model")]
    exchange.close()
    assert exchange.closed
