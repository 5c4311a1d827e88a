"""What pages and records read of a manifest, by name; other facts may come with them."""

from typing import Any, NotRequired

from pydantic import with_config
from typing_extensions import TypedDict  # pydantic takes typing's own from Python 3.12 on only

from grpo_core.records.bounds import Count, Name, Sha256, Sum


@with_config(extra="allow")
class CodeFacts(TypedDict):
    version: Name
    git_commit: NotRequired[Name | None]
    dirty_sha256: NotRequired[Sha256 | None]
    """Hash of the uncommitted difference; null where there is none, or no git checkout."""


@with_config(extra="allow")
class MachineFacts(TypedDict):
    """Python, operating system, processor, device, threads."""

    device: NotRequired[Name]
    processor: NotRequired[str | None]
    python: NotRequired[str | None]
    threads: NotRequired[Count]
    ranks: NotRequired[Count]
    energy_meter: NotRequired[str | None]


@with_config(extra="allow")
class ModelFacts(TypedDict):
    source: str
    parameters: Count
    dtype: Name
    weights: dict[str, Sha256]
    revision: NotRequired[str | None]
    architecture: NotRequired[str | None]
    shape: NotRequired[dict[str, Any]]
    """As grpo_core.compute.shape has it."""
    context: NotRequired[Count | None]
    """Most positions that the model was made for; null where its config says none."""
    settings_sha256: NotRequired[Sha256 | None]
    tokenizer_sha256: NotRequired[Sha256 | None]
    provenance: NotRequired[dict[str, Any] | None]
    adapter: NotRequired[dict[str, Sha256]]
    """Of the LoRA adapters that the run began with, on top of the weights."""
    checkpoint: NotRequired[dict[str, Sha256]]
    """Of the checkpoint that the run began with: all weights are its own, and not those of `weights`."""
    below: NotRequired[dict[str, Sha256]]
    """Of checkpoints and adapters between `weights` and `adapter`, by folder."""


class TokenStats(TypedDict):
    min: Count
    mean: Sum
    max: Count


class LengthCounts(TypedDict):
    """How many prompts are how long: `counts` of the bins between `edges`, in tokens."""

    edges: list[Sum]
    counts: list[Count]


class PromptExample(TypedDict):
    """The first prompt as the policy sees it."""

    problem_id: str
    text: str
    tokens: list[Count]
    answer_starts: Count
    """Index of the first token that belongs to the answer, which `data.prefill` may begin."""
    left_out: Count
    """Tokens that are not listed, because there were too many; the text is shortened likewise."""


class ChatFacts(TypedDict):
    """What made prompts of problems."""

    source: str
    """Whose chat template: the tokenizer, data.chat_template, or none."""
    sha256: Sha256 | None
    """Of the chat template's text."""
    system: str | None
    kwargs: dict[str, Any]
    prefill: str


@with_config(extra="allow")
class FileFacts(TypedDict):
    """Problems of a file, or of files that are one set: path, sha256, problems, dropped, prompt_tokens."""

    files: NotRequired[dict[str, Sha256]]
    """By the name that each has in the config, or in the Hub repository."""
    hub: NotRequired[dict[str, str | None] | None]
    """Commit, config and split of a dataset on the Hub."""
    container: NotRequired[str]
    format: NotRequired[str]
    """The layout that the rows were read as; never auto."""
    columns: NotRequired[dict[str, str]]
    """Role → the field that it was read from; "" for none."""
    chat: NotRequired[ChatFacts]
    prompt_example: NotRequired[PromptExample]
    prompt_lengths: NotRequired[LengthCounts]

    sha256: Sha256
    problems: Count
    problems_digest: NotRequired[Sha256]
    dropped: Count
    unreadable: NotRequired[Count]
    """Dropped because the reward cannot read their reference."""
    prompt_tokens: TokenStats


@with_config(extra="allow")
class OverlapCounts(TypedDict):
    touched: Count
    same_but_numbers: Count


@with_config(extra="allow")
class OverlapItems(TypedDict):
    texts: Count


@with_config(extra="allow")
class TouchedItem(TypedDict):
    id: str


@with_config(extra="allow")
class OverlapFacts(TypedDict):
    """What of an evaluation the training problems hold, as grpo_core.data.decontaminate reports it."""

    counts: OverlapCounts
    items: OverlapItems
    touched: NotRequired[list[TouchedItem]]


@with_config(extra="allow")
class DataFacts(TypedDict):
    train: FileFacts
    eval: NotRequired[FileFacts | None]
    suites: NotRequired[dict[str, dict[str, Any]]]
    overlap: NotRequired[dict[str, OverlapFacts]]
