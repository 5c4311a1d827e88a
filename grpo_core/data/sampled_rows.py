"""Rows of the dataset that a run of kind `sample` writes: each with its prompt as the problem's file had it, and where
it came from. The same completions give the same bytes. Loads no torch."""

import json
from typing import Any, Literal

from grpo_core.config.sample import SampleConfig
from grpo_core.data.problem import Problem
from grpo_core.data.rejection import Choice
from grpo_core.records.types import Group, Sample

CONTENT: dict[str, Literal["conversations", "preferences"]] = {
    "conversations": "conversations",
    "pairs": "preferences",
    "scores": "preferences",
}
"""`rows` of the config → content of the dataset."""


def rows_of(group: Group, problem: Problem, choice: Choice, config: SampleConfig) -> list[bytes]:
    """One JSON line for each completion that `choice` kept. An answer begins with data.prefill, which the policy was
    given and did not write."""
    prefill = config.data.prefill
    prompt = _messages(problem) if problem.messages else problem.prompt
    name = "messages" if problem.messages else "prompt"
    lines = []
    for index, sample in enumerate(choice.kept):
        answer = prefill + sample.completion
        origin = _origin(group, sample)
        row: dict[str, Any]
        match config.rows:
            case "conversations" if problem.messages:
                row = {"messages": [*_messages(problem), {"role": "assistant", "content": answer}]}
            case "conversations":
                row = {"prompt": prompt, "completion": answer}
            case "pairs":
                below = choice.rejected[index]
                row = {name: prompt, "chosen": answer, "rejected": prefill + below.completion}
                origin |= {"rejected_sample": below.index, "rejected_reward": below.reward}
            case "scores":
                row = {name: prompt, "completion": answer, "score": sample.reward}
        lines.append(json.dumps(row | {"from": origin}, ensure_ascii=False, allow_nan=False).encode() + b"\n")
    return lines


def _messages(problem: Problem) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in problem.messages]


def _origin(group: Group, sample: Sample) -> dict[str, Any]:
    return {
        "problem_id": group.problem_id,
        "step": group.step,
        "group": group.index,
        "sample": sample.index,
        "reward": sample.reward,
    }
