"""The one generation loop for held-out problems and suites, used before, while and after training so that what it gives
can be compared.

Same problems in the same order, same random streams, same decoding, same judge: the protocol that goes with each
result records these by digests. Never trains.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import MappingProxyType

from grpo_core.config.evaluation import HELDOUT
from grpo_core.data.prompts import completion_text
from grpo_core.distributed.ranks import Ranks
from grpo_core.evaluate.task import Answered, Manner, Task
from grpo_core.model.load import LoadedModel
from grpo_core.records.types import ComponentScore, EvalItem, EvalResult, Phase
from grpo_core.rollout.base import Completion, Decoding, Rollout

PROBLEMS_AT_ONCE = 512


@dataclass(frozen=True)
class Evaluation:
    items: tuple[EvalItem, ...]
    result: EvalResult


def evaluate_all(
    phase: Phase,
    tasks: Sequence[Task],
    *,
    step: int = 0,
    rollout: Rollout,
    policy: LoadedModel,
    manner: Manner,
    ranks: Ranks | None = None,
    ready: Mapping[str, Evaluation] = MappingProxyType({}),
    progress: Callable[[int, str], None] = lambda done, text: None,
    check: Callable[[], None] = lambda: None,
) -> Iterator[Evaluation]:
    """Every task in turn, each given as soon as it is done; those in `ready`, by name, as they are there. `progress` is
    given the number of problems done, of all tasks, and the newest's task. `check` is called often while completions
    are judged, and may raise to stop."""
    before = 0
    for task in tasks:
        if task.name in ready:
            yield ready[task.name]
            before += len(task.prompts.prompts)
            continue
        text = "problems answered" if task.name == HELDOUT else f"items answered, in {task.name}"

        def report(done: int, before: int = before, text: str = text) -> None:
            progress(before + done, text)

        yield evaluate(
            phase,
            task,
            step=step,
            rollout=rollout,
            policy=policy,
            manner=manner,
            ranks=ranks,
            progress=report,
            check=check,
        )
        before += len(task.prompts.prompts)


def evaluate(
    phase: Phase,
    task: Task,
    *,
    step: int = 0,
    rollout: Rollout,
    policy: LoadedModel,
    manner: Manner,
    ranks: Ranks | None = None,
    progress: Callable[[int], None] = lambda done: None,
    check: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Answer every problem `manner.samples` times and judge each completion. `step`: that the policy was trained for.

    An item's score is the mean over its completions; one with a completion that could not be scored is unscored: it
    carries the error, and its 0 counts for nothing. `truncated` is true when any of its completions reached the limit.
    `progress` is given the number done. Of several ranks each judges its share, and all end with every item; `rollout`
    is then one of all ranks too.
    """
    ranks = ranks or Ranks()
    began = time.perf_counter()
    decoding = Decoding(max_tokens=task.max_completion_tokens, temperature=manner.temperature, stop=manner.stop)
    prompts = task.prompts.prompts
    items: list[EvalItem] = []
    for start in range(0, len(prompts), PROBLEMS_AT_ONCE):
        indices = range(start, min(start + PROBLEMS_AT_ONCE, len(prompts)))
        groups = rollout.generate(
            [prompts[index].tokens for index in indices],
            samples=manner.samples,
            decoding=decoding,
            key=(*task.stream, start),
        )
        judged = ranks.together(partial(_judged, (phase, step), task, start, groups, ranks, policy, manner.stop, check))
        if ranks.world > 1:
            payloads = ranks.spread([item.model_dump(mode="json") for item in judged], len(indices))
            judged = [EvalItem.model_validate(item) for item in payloads]
        items += judged
        progress(len(items))
    result = EvalResult(
        phase=phase,
        step=step,
        suite=task.name,
        problems=len(items),
        correct=sum(item.score for item in items),
        truncated=sum(item.truncated for item in items),
        errors=sum(item.error is not None for item in items),
        mean_tokens=sum(item.tokens for item in items) / len(items),
        seconds=time.perf_counter() - began,
        protocol=task.protocol,
    )
    return Evaluation(tuple(items), result)


def _judged(
    when: tuple[Phase, int],
    task: Task,
    start: int,
    groups: list[list[Completion]],
    ranks: Ranks,
    policy: LoadedModel,
    stop: Sequence[str],
    check: Callable[[], None],
) -> list[EvalItem]:
    """This rank's share of the items whose first is number `start`."""
    mine = ranks.share(len(groups))
    answered = [
        Answered(
            start + i,
            completion_text(policy.tokenizer, completion.tokens, policy.eos_ids, stop),
            len(completion.tokens),
        )
        for i in mine
        for completion in groups[i]
    ]
    verdicts = zip(answered, task.judge(answered, check), strict=True)
    return [_item(when, task, groups[i], list(islice(verdicts, len(groups[i])))) for i in mine]


def _item(
    when: tuple[Phase, int], task: Task, group: list[Completion], judged: Sequence[tuple[Answered, ComponentScore]]
) -> EvalItem:
    """One problem's item. `tokens` is the mean over its completions, rounded; `detail` the first one's."""
    answered, scores = zip(*judged, strict=True)
    index = answered[0].index
    prompted, (part, cluster) = task.prompts.prompts[index], task.parts[index]
    errors = [score.error for score in scores if score.error is not None]
    return EvalItem(
        phase=when[0],
        step=when[1],
        suite=task.name,
        problem_id=prompted.problem.id,
        prompt=prompted.text,
        answer=prompted.problem.answer,
        completion=answered[0].completion,
        score=0.0 if errors else sum(score.value or 0.0 for score in scores) / len(scores),
        truncated=any(completion.finish == "length" for completion in group),
        error=errors[0] if errors else None,
        tokens=round(sum(answer.tokens for answer in answered) / len(answered)),
        detail=scores[0].detail,
        slice=part,
        cluster=cluster,
    )
