"""From problems to prompt tokens, once, before anything is sampled. Long prompts are refused or dropped here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpo_core.data.problem import Problem
from grpo_core.errors import DataError


@dataclass(frozen=True)
class Prompted:
    """A problem as the policy sees it."""

    problem: Problem
    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Encoded:
    """The problems of one file, ready to sample from."""

    prompts: tuple[Prompted, ...]
    dropped: tuple[str, ...]
    """Ids of problems left out because their prompt was too long."""

    def token_stats(self) -> dict[str, float]:
        lengths = [len(prompt.tokens) for prompt in self.prompts]
        return {"min": min(lengths), "mean": sum(lengths) / len(lengths), "max": max(lengths)}


def encode_problems(
    problems: Sequence[Problem], tokenizer: Any, *, template: str, limit: int, drop_long: bool, source: str
) -> Encoded:
    """Fill the template and tokenise. Raises DataError for a prompt over `limit` tokens unless those are dropped, for
    one without tokens, and when nothing is left. `source` is the file's name for messages."""
    prompts, dropped = [], []
    for problem in problems:
        text = template.replace("{prompt}", problem.prompt)
        tokens = tuple(tokenizer(text)["input_ids"])
        if not tokens:
            raise DataError(f"{source}: the prompt of problem {problem.id} is empty")
        if len(tokens) > limit:
            if not drop_long:
                raise DataError(
                    f"{source}: the prompt of problem {problem.id} has {len(tokens)} tokens, over "
                    f"data.max_prompt_tokens = {limit}; raise the limit, or set data.long_prompts: drop"
                )
            dropped.append(problem.id)
            continue
        prompts.append(Prompted(problem, text, tokens))
    if not prompts:
        what = f"all {len(dropped)} prompts are over data.max_prompt_tokens = {limit}" if dropped else "no problems"
        raise DataError(f"{source}: {what}, so nothing is left to use")
    return Encoded(tuple(prompts), tuple(dropped))


def completion_text(tokenizer: Any, tokens: Sequence[int], eos_ids: frozenset[int]) -> str:
    """The completion as text, without the end token. Other special tokens stay visible: they were sampled."""
    kept = tokens[:-1] if tokens and tokens[-1] in eos_ids else tokens
    return str(tokenizer.decode(list(kept), skip_special_tokens=False, clean_up_tokenization_spaces=False))
