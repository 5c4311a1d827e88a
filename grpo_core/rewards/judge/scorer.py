"""Grades completions with a judge: parallel calls, retries with growing pauses or as the server asks, a budget."""

import asyncio
import hashlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from grpo_core.errors import ConfigError
from grpo_core.records.types import INFRASTRUCTURE_ERRORS, ComponentScore
from grpo_core.rewards.base import Context, ScoreRequest, extract_answer, missing_answer, shown
from grpo_core.rewards.judge.answer_cache import AnswerCache, request_digest
from grpo_core.rewards.judge.endpoint import check_encrypted, is_allowed, parse_endpoint, private_message, read_key
from grpo_core.rewards.judge.kind import JudgeParams
from grpo_core.rewards.judge.response import (
    Answer,
    Failed,
    NoScore,
    as_number,
    by_field,
    by_pattern,
    read_error,
    read_reply,
    share,
)
from grpo_core.rewards.scoring import failed
from grpo_core.runtime.http import HttpClient, HttpError
from grpo_core.runtime.watchdog import doing
from grpo_core.text import UNSTORABLE

FIRST_PAUSE = 0.5
"""Seconds before the second try; each further pause is twice as long."""
LONGEST_PAUSE = 60.0
"""A server that asks for more is not waited for."""
_MAX_REPLY_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Outcome:
    """Of a request with all its tries."""

    answer: Answer | Failed
    seconds: float = 0.0
    """Of all tries, without the pauses."""
    tries: int = 1


class Judge:
    """Grades with one judge; owns the connections to it, its answers, and what they cost."""

    def __init__(self, params: JudgeParams, context: Context) -> None:
        self._params = params
        self._endpoint = parse_endpoint(params.base_url)
        check_encrypted(self._endpoint)
        self._key = read_key(params.key_env, self._endpoint)
        name = hashlib.sha256(params.model_dump_json(exclude={"key_env"}).encode()).hexdigest()[:16]
        self._cache = AnswerCache(context.cache, name=name, rank=int(os.environ.get("RANK", "0")))
        self._seconds = params.timeout_seconds or context.limits.deadline_seconds
        self._retries = context.limits.retries
        self._world = max(1, int(os.environ.get("WORLD_SIZE", "1")))
        self._slots = asyncio.Semaphore(context.limits.workers)
        self._resume_at = 0.0
        """Moment before which the server asked not to be called."""
        self._client = HttpClient(private=is_allowed(self._endpoint))
        try:
            look_up = self._client.resolve(self._endpoint.host, self._endpoint.port)
            self._client.run(asyncio.wait_for(look_up, self._seconds))
        except (HttpError, TimeoutError) as error:  # others may be over when the first call is made
            if isinstance(error, HttpError) and error.cause == "private":
                self.close()
                raise ConfigError(private_message(self._endpoint, str(error))) from None

    def close(self) -> None:
        self._client.close()

    def facts(self) -> dict[str, Any]:
        """Judge, question, budget, and this process's usage so far. The name of the key's variable, never the key."""
        params = self._params
        return {
            "base_url": params.base_url,
            "model": params.model,
            "key_env": params.key_env,
            "question_sha256": hashlib.sha256(params.question.encode()).hexdigest(),
            "budget_calls": params.budget_calls,
            "budget_tokens": params.budget_tokens,
            **asdict(self._cache.usage),
        }

    def score(self, samples: Sequence[ScoreRequest], check: Callable[[], None]) -> list[ComponentScore]:
        requests = [self._requests(sample) for sample in samples]
        outcomes = self._request([pair for each in requests if isinstance(each, dict) for pair in each.items()], check)
        return [
            each if isinstance(each, ComponentScore) else self._graded([outcomes[digest] for digest in each])
            for each in requests
        ]

    def _requests(self, sample: ScoreRequest) -> dict[str, str] | ComponentScore:
        """Bodies by digest, one for each vote; or the sample's score, where there is nothing to ask."""
        params = self._params
        graded = extract_answer(sample.completion, params.extract)
        if not graded:
            why = missing_answer(params.extract) if graded is None else "no text"
            return ComponentScore(value=0.0, passed=False, detail=f"not asked: {why}")
        if UNSTORABLE.search(sample.problem.prompt + sample.problem.answer + graded):
            return failed("sample", "the text holds NUL or half a surrogate pair, which cannot be sent to a judge")
        body = params.body(sample, graded)
        return {request_digest(self._endpoint.url, body, vote): body for vote in range(params.votes)}

    def _request(self, requests: Sequence[tuple[str, str]], check: Callable[[], None]) -> dict[str, Outcome]:
        """By digest. `check` may raise to stop; then no call is left open."""
        bodies, outcomes = dict(requests), dict[str, Outcome]()
        self._cache.usage.cache_hits += len(requests) - len(bodies)

        async def fetch(digest: str, body: str) -> None:
            outcomes[digest] = await self._outcome(digest, body)

        async def fetch_all() -> None:
            await asyncio.gather(*(fetch(digest, body) for digest, body in bodies.items()))

        def look() -> None:
            check()
            progress = f"{len(outcomes)} of {len(bodies)} answers are there"
            doing(f"waiting for the judge at {self._endpoint.address}", progress)

        look()
        self._client.run(fetch_all(), look)
        return outcomes

    async def _outcome(self, digest: str, body: str) -> Outcome:
        usage, tries, seconds = self._cache.usage, 0, 0.0
        if (cached := self._cache.find(digest)) is not None:
            return Outcome(cached)
        while True:
            async with self._slots:
                while (pause := self._resume_at - time.monotonic()) > 0:
                    await asyncio.sleep(pause)
                if (spent := self._spent()) is not None:
                    return Outcome(Failed(spent, "budget"), seconds, max(1, tries))
                usage.calls += 1
                usage.retried += tries > 0
                began = time.monotonic()
                answer = await self._call(body)
                tries, seconds = tries + 1, seconds + time.monotonic() - began
            if isinstance(answer, Answer):
                self._cache.add(digest, answer, body=body, tries=tries)
                return Outcome(answer, seconds, tries)
            pause = FIRST_PAUSE * 2 ** (tries - 1) if answer.wait is None else answer.wait
            retry = answer.retry and tries <= self._retries
            if retry and pause > LONGEST_PAUSE:
                wait = f"it asks to wait {pause:,.0f} s, over {LONGEST_PAUSE:g} s"
                retry, answer = False, replace(answer, error=f"{answer.error}; {wait}")
            if not retry:
                usage.failed += 1
                usage.refusals += answer.error_class == "refused"
                return Outcome(answer, seconds, tries)
            if answer.wait is not None:  # it means all calls
                self._resume_at = max(self._resume_at, time.monotonic() + pause)
            await asyncio.sleep(pause)

    async def _call(self, body: str) -> Answer | Failed:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        try:
            reply = await self._client.request(
                "POST",
                self._endpoint.url,
                headers=headers,
                body=body.encode(),
                seconds=self._seconds,
                max_bytes=_MAX_REPLY_BYTES,
            )
        except HttpError as error:
            if error.cause == "private":
                return Failed(private_message(self._endpoint, str(error)))
            return read_error(error, self._key)
        return read_reply(reply, self._key)

    def _spent(self) -> str | None:
        """What is spent of this process's part of the budget."""
        usage, params = self._cache.usage, self._params
        for name, spent, unit in (("budget_calls", usage.calls, "calls"), ("budget_tokens", usage.tokens, "tokens")):
            budget = getattr(params, name)
            if budget is not None and spent >= (part := max(1, budget // self._world)):
                return f"the judge's budget is spent: {spent:,} {unit} of {part:,} ({name})"
        return None

    def _graded(self, votes: Sequence[Outcome]) -> ComponentScore:
        params = self._params
        scores, faults = [], []
        for vote in votes:
            try:
                scores.append(self._score(vote.answer))
            except NoScore as fault:
                faults.append(fault)
                self._cache.usage.unreadable += isinstance(vote.answer, Answer)
        seconds, tries = sum(vote.seconds for vote in votes), max(vote.tries for vote in votes)
        if 2 * len(scores) <= len(votes):
            first = next((fault for fault in faults if fault.error_class in INFRASTRUCTURE_ERRORS), faults[0])
            return ComponentScore(
                value=None, error=str(first), error_class=first.error_class, seconds=seconds, tries=tries
            )
        value = share(fmean(scores), minimum=params.minimum, maximum=params.maximum)
        grades = ", ".join(f"{score:g}" for score in scores)
        reply_text = next((shown(vote.answer.text.strip()) for vote in votes if isinstance(vote.answer, Answer)), "")
        failed = f" ({len(faults)} votes without a score: {faults[0]})" if faults else ""
        detail = f"{grades} on {params.minimum:g} to {params.maximum:g}{failed}: {reply_text}"
        return ComponentScore(value=value, passed=value >= params.pass_at, detail=detail, seconds=seconds, tries=tries)

    def _score(self, answer: Answer | Failed) -> float:
        """The score, within its scale. Raises NoScore."""
        params = self._params
        if isinstance(answer, Failed):
            raise NoScore(answer.error, answer.error_class)
        try:
            if params.score_field is not None:
                score = as_number(by_field(answer.text, params.score_field))
            else:
                score = as_number(by_pattern(answer.text, params.score_pattern))
            share(score, minimum=params.minimum, maximum=params.maximum)
            return score
        except NoScore as fault:
            cut = f"; the judge was cut at {params.max_tokens:,} tokens, raise max_tokens"
            suffix = f"{cut if answer.finish == 'length' else ''}. It said: {shown(answer.text.strip()) or 'nothing'}"
            raise NoScore(f"{fault}{suffix}", fault.error_class) from None


open_scorer = Judge
"""Raises ConfigError where the address or the key may not be used on this worker."""
