"""code: the program in a completion passes its problem's tests, in the sandbox only.

Rewards by what the program does, never by how its process ends. A failure of the sandbox is an error of class infra,
never 0; tests that cannot be run are the problem's fault, class sample.
docs/rewards/code.md has the four forms of tests.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from grpo_core.errors import RewardError, SandboxError
from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import Context, ScoreRequest
from grpo_core.rewards.code.box import CodeBox
from grpo_core.rewards.code.cases import read_cases
from grpo_core.rewards.code.grader import SolutionJudge
from grpo_core.rewards.code.params import CodeParams, extract_code, prelude_of
from grpo_core.rewards.python.session import shared_sandbox, while_waiting
from grpo_core.rewards.scoring import failed
from grpo_core.runtime.watchdog import doing
from grpo_core.sandbox import Limits, Sandbox

MOST_CODE = 256 * 1024


def open_scorer(params: CodeParams, context: Context) -> "CodeScorer":
    """Raises SandboxError, with the fix, where there is no sandbox: nothing is ever run without one."""
    return CodeScorer(params, context, shared_sandbox())


class CodeScorer:
    def __init__(self, params: CodeParams, context: Context, sandbox: Sandbox) -> None:
        self._params, self._context, self._sandbox = params, context, sandbox
        self._pool = ThreadPoolExecutor(context.limits.workers, thread_name_prefix="code")
        self._open: set[CodeBox] = set()
        self._lock = threading.Lock()
        self._stopping = False
        self._scored = self._trouble = 0

    def score(self, samples: Sequence[ScoreRequest], check: Callable[[], None]) -> list[ComponentScore]:
        """In `limits.workers` threads in parallel; the order is kept. When `check` raises, what runs is killed."""
        futures = [self._pool.submit(self._score_sample, sample) for sample in samples]
        with ExitStack() as unless_done:
            unless_done.callback(self._stop, futures)
            while_waiting(futures, check, lambda: doing("reward", _progress(futures)))
            unless_done.pop_all()
        scores = [future.result() for future in futures]
        self._scored += len(scores)
        self._trouble += sum(score.error_class == "infra" for score in scores)
        return scores

    def facts(self) -> dict[str, Any]:
        return {"sandbox": self._sandbox.report.to_json(), "solutions": self._scored, "infra_errors": self._trouble}

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _stop(self, futures: Sequence[Future[ComponentScore]]) -> None:
        self._stopping = True
        for future in futures:
            future.cancel()
        with self._lock:
            boxes = list(self._open)
        for box in boxes:
            box.close()
        wait(futures)
        self._stopping = False

    def _score_sample(self, sample: ScoreRequest) -> ComponentScore:
        began = time.perf_counter()
        try:
            score = self._judged(sample)
        except SandboxError as error:
            score = failed("infra", f"SandboxError: {error}")
        except RewardError as error:
            head = f"problem {sample.problem.id}"
            score = failed("sample", f"RewardError: {head}: {str(error).removeprefix(f'{head}: ')}")
        return score.model_copy(update={"seconds": time.perf_counter() - began})

    def _judged(self, sample: ScoreRequest) -> ComponentScore:
        params = self._params
        cases = read_cases(sample.problem, tests=params.tests, entry_point=params.entry_point)
        prelude = prelude_of(sample.problem, params)
        code = extract_code(sample.completion, params.extract)
        if code is None or len(code) > MOST_CODE or not _is_text(code):
            missing = {"fenced": "no closed block of Python between ```", "answer_tag": "no <answer>…</answer>"}
            why = missing.get(params.extract, "no text") if code is None else "the program is too long or no UTF-8"
            return ComponentScore(value=0.0, passed=False, detail=why)
        verdict = SolutionJudge(self._box, params, cases, code, prelude).judge()
        share = verdict.passed / verdict.total
        value = share if params.pay == "share" else float(verdict.passed == verdict.total)
        count = f"{verdict.passed} of {verdict.total} cases passed"
        detail = (
            count if not verdict.failure else verdict.failure if params.pay == "all" else f"{count}; {verdict.failure}"
        )
        return ComponentScore(value=value, passed=verdict.passed == verdict.total, detail=detail)

    @contextmanager
    def _box(self, source: str) -> Iterator[CodeBox]:
        """A box that can be found and ended from another thread while it is open."""
        if self._stopping:
            raise SandboxError("scoring was stopped")
        deadline = self._context.limits.deadline_seconds
        limits = Limits(
            wall_seconds=deadline,
            cpu_seconds=max(1, round(deadline)),
            memory_bytes=self._params.memory_mb * 2**20,
            processes=32,
            output_bytes=4096,
        )
        with closing(CodeBox(self._sandbox, limits, self._params.packages, source)) as box:
            with self._lock:
                self._open.add(box)
            try:
                if self._stopping:  # since: what stopped may have looked at what is open before this box was
                    raise SandboxError("scoring was stopped")
                yield box
            finally:
                with self._lock:
                    self._open.discard(box)


def _progress(futures: Sequence[Future[ComponentScore]]) -> str:
    return f"{sum(future.done() for future in futures)} of {len(futures)} solutions tried"


def _is_text(code: str) -> bool:
    try:
        code.encode()
    except UnicodeEncodeError:
        return False
    return True
