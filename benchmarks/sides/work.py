"""What both sides of the trainer benchmarks have alike: the work of each case, its prompts and its reward. Standard
library only, because both environments load it."""

import json
import random
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

PROMPTS_PER_STEP, GROUP_SIZE, MAX_TOKENS, LEARNING_RATE = 16, 8, 128, 1e-5
"""Of the small Llama's work, which benchmarks/watched.py has too."""
SAME = "0"
"""First character of a prompt whose completions are all paid alike, so that its group has no variance."""
SAME_OF_STEP = (4, 3, 3, 4, 3, 3)
"""Groups without variance among eight, step by step from the one that warms up: 40 % of the five after it."""

SHAPES: dict[str, dict[str, int]] = {
    "qwen2": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "num_key_value_heads": 2,
              "intermediate_size": 1024},
    "qwen2-tiny": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
                   "intermediate_size": 64},
    "qwen2-half-b": {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
                     "intermediate_size": 4864},
}  # fmt: skip
SHAPES["qwen2-full"] = SHAPES["qwen2"]
"""Of the Qwen2 models, by kind."""


@dataclass(frozen=True)
class Work:
    """One case: what is sampled and learned at each step. Lengths in tokens."""

    model: str = "qwen2"
    """As sides/make_model.py has it: qwen2, qwen2-full, qwen2-tiny, qwen2-half-b or llama."""
    prompts_per_step: int = 8
    group_size: int = 8
    max_tokens: int = 256
    prompt_tokens: tuple[int, int] = (64, 256)
    """Shortest and longest; evenly spread within each step."""
    same: bool = True
    """Whether some groups have no variance, as SAME_OF_STEP says."""
    beta: float = 0.0
    vocabulary: int = 32_768
    mean_tokens: float = 0.45
    """Mean length of completions that end by themselves, as a share of max_tokens; the model is made so."""
    learning_rate: float = LEARNING_RATE
    dtype: str = "float32"
    device: str = "cpu"
    micro_batch: int = 0
    """TRL's completions in one forward and backward pass; 0: all of a step at once."""
    engine: dict[str, Any] | None = None
    """Settings of Cohort's engine that are not the default."""
    threads: int = 2
    seed: int = 0
    """Of prompts, sampling and order; another in each round."""
    task: str = "letters"
    """What is paid: letters, as `reward` says, or addition and conversation, whose problems lie in problems.json."""
    clip_high: float = 0.2
    pretrained: str = ""
    """Folder of a model that is there, instead of one that is made."""

    @property
    def completions(self) -> int:
        return self.prompts_per_step * self.group_size

    def save(self, folder: Path) -> None:
        (folder / "work.json").write_text(json.dumps(asdict(self)))

    @staticmethod
    def load(folder: Path) -> "Work":
        told = json.loads((folder / "work.json").read_text())
        return Work(**told | {"prompt_tokens": tuple(told["prompt_tokens"])})


REFERENCE = Work(micro_batch=16)
"""22 M Qwen2, vocabulary 32,768; completions that end by themselves; 40 % of the groups without variance."""
WORST = Work("qwen2-full", 4, 8, 128, (11, 11), same=False, beta=0.04)
"""The same model with nothing to save: short prompts, all completions at full length, every group with variance."""
SMALL = Work("llama", PROMPTS_PER_STEP, GROUP_SIZE, MAX_TOKENS, same=False, vocabulary=258)
"""A random Llama of 919,168 parameters with a byte vocabulary."""
TINY = replace(REFERENCE, model="qwen2-tiny", prompts_per_step=2, group_size=4, max_tokens=16, prompt_tokens=(4, 9),
               vocabulary=512, micro_batch=4)  # fmt: skip
"""For the test that the benchmarks run."""


def problems_of(work: Work, folder: Path, steps: int) -> list[dict[str, Any]]:
    """Prompts and answers of so many steps, in the order in which both sides take them."""
    if work.task != "letters":
        problems: list[dict[str, Any]] = json.loads((folder / "problems.json").read_text())
        random.Random(work.seed).shuffle(problems)
        return problems[: steps * work.prompts_per_step]
    return [{"prompt": prompt, "answer": "none"} for prompt in prompts_of(work, steps)]


def prompts_of(work: Work, steps: int) -> list[str]:
    """The prompts where the task is letters."""
    if work.model == "llama":
        return prompts()[: steps * work.prompts_per_step]
    rng, (low, high), count = random.Random(1 + work.seed), work.prompt_tokens, work.prompts_per_step
    made = []
    for step in range(steps):
        lengths = [low + round((high - low) * k / max(1, count - 1)) for k in range(count)]
        rng.shuffle(lengths)
        alike = round(SAME_OF_STEP[step % len(SAME_OF_STEP)] / 8 * count) if work.same else 0
        marks = [SAME] * alike + ["1"] * (count - alike)
        rng.shuffle(marks)
        # Digits: the benchmark's tokenizer makes one token of each.
        made += [
            mark + "".join(rng.choices("123456789", k=size - 1)) for mark, size in zip(marks, lengths, strict=True)
        ]
    return made


def prompts() -> list[str]:
    """512 prompts of 38 to 60 bytes."""
    return [
        f"problem {n}: what is {n * 37 % 991} plus {n * 53 % 997}, and why? ".ljust(30 + n % 31) for n in range(512)
    ]


def reward(completion: str, prompt: Any = "", answer: str = "none", task: str = "letters") -> float:
    """letters: the share of characters that are small letters, which is cheap and rarely equal for two completions,
    and the same for all completions of a prompt that begins with SAME. addition: 1 where the last answer tag holds the
    answer, else 0. conversation: 1 where the last number is the answer, else 0."""
    if task == "conversation":
        return float((re.findall(r"\d+", completion) or [""])[-1] == answer)
    if task == "addition":
        end = completion.rfind("</answer>")
        start = completion.rfind("<answer>", 0, end) if end >= 0 else -1
        return float(start >= 0 and completion[start + len("<answer>") : end].strip() == answer)
    if prompt.startswith(SAME):
        return 0.5
    return sum(char.islower() for char in completion) / max(len(completion), 1)


def peak_rss_gb() -> float:
    """Most memory that this process ever had, GiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 2**20
    raise RuntimeError("the kernel does not tell VmHWM")
