"""A conversation with a model, and with another one next to it: what the platform sends is answered by both, until it
sends no more. Models are loaded once. Loads torch only when it answers.

Worker and job exchange files, since a job knows no platform: the worker writes each turn that lacks an answer, and
sends on what the job answers. A turn holds the whole conversation of each model, so a job that begins anew has all.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from grpo_core.config.prompt import PromptConfig
from grpo_core.data.problem import Message as Turn
from grpo_core.data.problem import Problem
from grpo_core.data.prompts import PromptEncoder, completion_text
from grpo_core.errors import ConfigError, DataError
from grpo_core.lab.job import ChatOptions, Job
from grpo_core.lab.models import job_model, rows_at_once, use_threads
from grpo_core.lab.result import kept_text
from grpo_core.protocol.messages import ChatAnswer, ChatText, ChatTurn, Side
from grpo_core.records.bounds import Count, Name, Seconds
from grpo_core.records.types import Body
from grpo_core.runtime.progress import Progress

FOLDER = "turns"
"""Of the exchange, in the job's output folder."""
PAUSE = 0.1
"""Seconds between two looks for a turn."""


class ChatEnded(Body):
    """result.json of a chat; the answers were sent one by one."""

    kind: Literal["chat"] = "chat"
    model: str
    """As the job names it."""
    device: Name
    answers: Count
    seconds: Seconds
    """Of the whole job, loading included."""


class Exchange:
    """The folder through which a worker and a chat's job pass turns and answers, each a file that appears whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._answers: dict[Path, ChatAnswer] = {}
        """What was read before; a file never changes."""
        self._done: set[Path] = set()
        """Turns that were seen with all their answers."""

    # ------------------------------------------------------------------ the worker's side

    def send(self, turn: ChatTurn) -> None:
        """Once: the same turn again changes nothing."""
        path = self._folder / f"turn-{turn.turn}.json"
        if not path.exists():
            self._write(path, turn.model_dump_json())

    def answers(self) -> list[ChatAnswer]:
        """All so far, by turn."""
        for path in set(self._folder.glob("answer-*.json")) - self._answers.keys():
            self._answers[path] = ChatAnswer.model_validate_json(path.read_bytes())
        return sorted(self._answers.values(), key=lambda answer: (answer.turn, answer.side))

    def close(self) -> None:
        self._write(self._folder / "closed", "")

    # ------------------------------------------------------------------ the job's side

    @property
    def closed(self) -> bool:
        return (self._folder / "closed").exists()

    def pending(self) -> list[tuple[ChatTurn, Side]]:
        """What has no answer yet, oldest first."""
        waiting: list[tuple[ChatTurn, Side]] = []
        for path in set(self._folder.glob("turn-*.json")) - self._done:
            turn = ChatTurn.model_validate_json(path.read_bytes())
            missing = [side for side in turn.histories if not self._answer_path(turn.turn, side).exists()]
            waiting += [(turn, side) for side in missing]
            if not missing:
                self._done.add(path)
        return sorted(waiting, key=lambda each: (each[0].turn, each[1]))

    def answer(self, answer: ChatAnswer) -> None:
        self._write(self._answer_path(answer.turn, answer.side), answer.model_dump_json())

    def _answer_path(self, turn: int, side: Side) -> Path:
        return self._folder / f"answer-{turn}-{side}.json"

    def _write(self, path: Path, text: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.part")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)


def answer_turns(
    job: Job,
    options: ChatOptions,
    exchange: Exchange,
    *,
    base: Path,
    device: str,
    progress: Progress,
    check: Callable[[], None],
) -> ChatEnded:
    """Answer what comes until the exchange is closed. A turn that cannot be answered gets its error as the answer.
    Raises ModelError for a model that cannot be loaded."""
    assert job.model is not None
    began, answers = time.monotonic(), 0
    use_threads(job.threads)
    progress.begin("loading the model", 1 if job.reference is None else 2)
    speakers: dict[Side, _Speaker] = {"model": _Speaker(job_model(job.model, base, device), options, check)}
    if job.reference is not None:
        progress.advance(1, "model loaded")
        speakers["reference"] = _Speaker(job_model(job.reference, base, device), options, check)
    progress.begin("waiting for a message", 0)
    while not exchange.closed:
        check()
        pending = exchange.pending()
        if not pending:
            time.sleep(PAUSE)
            continue
        turn, side = pending[0]
        progress.begin("answering", 0, done=answers)
        exchange.answer(speakers[side].answer(turn, side))
        answers += 1
        progress.begin("waiting for a message", 0, done=answers)
    return ChatEnded(model=job.model.path, device=device, answers=answers, seconds=time.monotonic() - began)


class _Speaker:
    """One loaded model, and how a conversation becomes its prompt."""

    def __init__(self, policy: Any, options: ChatOptions, check: Callable[[], None]) -> None:
        from grpo_core.rollout.local import LocalRollout

        self._policy, self._system = policy, options.system
        self._encoder: PromptEncoder = policy.encoder(PromptConfig())
        self._chat: Literal["chat", "plain"] = "chat" if self._encoder.uses_chat() else "plain"
        self._rollout = LocalRollout(policy, max_rows=rows_at_once(policy), check=check, log=lambda text: None)

    def answer(self, turn: ChatTurn, side: Side) -> ChatAnswer:
        began = time.monotonic()
        given: tuple[int, ...] = ()
        try:
            given = self._prompt(turn.histories[side])
            self._require_room(len(given), turn.max_tokens)
        except (DataError, ConfigError) as error:
            return self._answered(turn, side, began, prompt_tokens=len(given), error=str(error)[:20_000])
        from grpo_core.rollout.base import Decoding

        decoding = Decoding(max_tokens=turn.max_tokens, temperature=turn.temperature, top_p=turn.top_p)
        ((completion,),) = self._rollout.generate([given], samples=1, decoding=decoding, key=(turn.seed, 1, 1))
        return self._answered(
            turn,
            side,
            began,
            prompt_tokens=len(given),
            text=kept_text(completion_text(self._policy.tokenizer, completion.tokens, self._policy.eos_ids)),
            tokens=len(completion.tokens),
            finish=completion.finish,
        )

    def _answered(self, turn: ChatTurn, side: Side, began: float, **fields: Any) -> ChatAnswer:
        own = {"turn": turn.turn, "side": side, "template": self._chat, "seconds": time.monotonic() - began}
        return ChatAnswer.model_validate({"text": "", "tokens": 0, "finish": None, **own, **fields})

    def _prompt(self, history: list[ChatText]) -> tuple[int, ...]:
        """Through the chat template; without one the texts one after another, which the model continues."""
        if self._chat == "plain":
            texts = [self._system] if self._system else []
            for message in history:
                if message.role == "assistant" and texts:
                    texts[-1] += message.text
                else:
                    texts.append(message.text)
            return self._encoder.encode(Problem(id="message", prompt="\n".join(texts), answer="")).tokens
        turns = tuple(Turn(message.role, message.text) for message in history)
        system = (Turn("system", self._system),) if self._system else ()
        problem = Problem(id="message", prompt=history[-1].text, answer="", messages=(*system, *turns))
        return self._encoder.encode(problem).tokens

    def _require_room(self, prompt: int, longest: int) -> None:
        if not prompt:
            raise DataError("the message has no tokens; write something")
        if (context := self._policy.context) is not None and prompt + longest > context:
            raise ConfigError(
                f"the conversation has {prompt:,} tokens and the answer may have {longest:,}, and the model has "
                f"{context:,} positions: begin a new conversation, or ask for a shorter answer"
            )
