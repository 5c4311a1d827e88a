"""Everything a fine-tuning run reads before it starts: model, conversations, what is evaluated. All of it is checked
here, so that a fault is reported in the first seconds."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from grpo_core.config.evaluation import HELDOUT
from grpo_core.config.sft import MANY_EPOCHS, ConversationsConfig, DistillConfig, SftConfig
from grpo_core.data.answers import EncodedConversations, encode_conversations
from grpo_core.data.decontaminate import overlap
from grpo_core.data.hub import find_data
from grpo_core.data.loaders import load_problems
from grpo_core.data.problem import holdout
from grpo_core.data.prompts import Encoded, PromptEncoder, encode_problems
from grpo_core.data.sampled_dataset import find_sampled, source_of
from grpo_core.data.supervised import Conversation, load_conversations
from grpo_core.distributed.environment import pick_device
from grpo_core.errors import ConfigError, DataError
from grpo_core.evaluate.suites.load import Suite, load_suites
from grpo_core.evaluate.task import Task, heldout_task, manner_of, prompts_fit
from grpo_core.files.checkpoint import read_origin
from grpo_core.model.doctor import findings
from grpo_core.model.layout_choice import resolve_layout
from grpo_core.model.load import LoadedModel, find_model
from grpo_core.model.lora import load_policy
from grpo_core.records.types import Event
from grpo_core.rewards import Rubric, Runner
from grpo_core.rewards.base import Context
from grpo_core.trainer.conversation_facts import conversation_facts
from grpo_core.trainer.inputs import suite_tasks
from grpo_core.trainer.manifest import DataSource, data_facts, suite_facts


@dataclass
class SftInputs:
    """A run's inputs, loaded and checked."""

    policy: LoadedModel
    train: EncodedConversations
    heldout: EncodedConversations | None
    """Conversations whose loss is measured."""
    train_facts: dict[str, Any]
    heldout_facts: dict[str, Any] | None
    sampled_by: dict[str, Any] | None
    """What the sampled dataset says of itself that the conversations are."""
    repeated: int
    """Conversations of the training data that equal an earlier one."""
    leaked: int
    """Held-out conversations whose prompt is trained on."""
    runner: Runner | None
    """Judges held-out problems; closed by the caller that loaded the inputs."""
    problems: Encoded | None
    """Held-out problems."""
    problem_facts: dict[str, Any] | None
    suites: tuple[Suite, ...]
    suite_facts: dict[str, dict[str, Any]]
    tasks: tuple[Task, ...]
    """What is evaluated: the held-out problems, then the suites as the config names them."""
    notes: tuple[str, ...]
    """About the prompts, `PromptEncoder.notes`."""

    def positions(self) -> int:
        """Most tokens of one sequence that is sampled in the run, prompt and completion together."""
        return max(int(task.prompts.token_stats()["max"]) + task.max_completion_tokens for task in self.tasks)

    def overlap(self) -> dict[str, dict[str, Any]]:
        """As `inputs.Inputs.overlap`; of a conversation with its answers, which may hold an item's."""
        train = [(e.conversation.id, e.conversation.whole_text) for e in self.train.conversations]
        compared = {suite.config.name: [(item.id, item.prompt) for item in suite.items] for suite in self.suites}
        if self.problems is not None:
            heldout = [(prompted.problem.id, prompted.problem.text) for prompted in self.problems.prompts]
            compared = {HELDOUT: heldout, **compared}
        options = {
            suite.config.name: {item.id: item.choices for item in suite.items if item.choices} for suite in self.suites
        }
        return {name: overlap(train, items, options.get(name, {})) for name, items in compared.items()}


def load_sft_inputs(config: SftConfig, *, base: Path, device: torch.device | None = None) -> SftInputs:
    """Read and check everything; relative paths are taken from `base`, `device` from the config when not given. Raises
    a GrpoError that says what is wrong."""
    suites = load_suites(config.eval.suites, base=base)
    source = find_model(config.model, base=base)
    sources = training_sources(config.data, base)
    facts = sampled_facts(config, sources)
    train, heldout, heldout_sources = read_conversations(config, sources, base)
    if isinstance(config, DistillConfig) and facts is None:
        require_sampled(sources[0], [*train, *(heldout if config.data.heldout_path is None else [])])
    rubric = Rubric(config.eval.reward) if config.eval.path is not None and config.eval.reward is not None else None
    device = device or pick_device(config.engine.device)
    with ExitStack() as opened:
        runner = None
        if rubric is not None:  # opened first: a missing sandbox or judge is reported before a model is loaded
            runner = opened.enter_context(
                Runner(rubric, Context(limits=rubric.config.limits, base=base, device=str(device)))
            )
        policy = load_policy(source, config.model, device=device, seed=config.seed)
        resolve_layout(policy, config.engine.layout)
        encoder = policy.encoder(config.data)
        encoded = _encoded(train, encoder, policy, config.data, source=config.data.path)
        encoded_heldout = None
        if heldout:
            shown = heldout_sources[0].path
            encoded_heldout = _encoded(heldout, encoder, policy, config.data, source=shown)
        manner = manner_of(config)
        tasks = suite_tasks(suites, policy, manner)
        of_suites = {
            suite.config.name: suite_facts(suite, task.prompts) for suite, task in zip(suites, tasks, strict=True)
        }
        problems = problem_facts = None
        if runner is not None:
            problems, problem_facts = _problems(config, runner, encoder, policy, base)
            tasks = [heldout_task(problems, runner=runner, manner=manner), *tasks]
        prompts = {_key(e.conversation) for e in encoded.conversations}
        inputs = SftInputs(
            policy,
            encoded,
            encoded_heldout,
            conversation_facts(sources, encoded),
            conversation_facts(heldout_sources, encoded_heldout) if encoded_heldout is not None else None,
            facts,
            sum(Counter(e.conversation.messages for e in encoded.conversations).values())
            - len({e.conversation.messages for e in encoded.conversations}),
            sum(_key(e.conversation) in prompts for e in encoded_heldout.conversations) if encoded_heldout else 0,
            runner,
            problems,
            problem_facts,
            suites,
            of_suites,
            tuple(tasks),
            tuple(encoder.notes()),
        )
        opened.pop_all()
    return inputs


def _key(conversation: Conversation) -> str:
    """What two conversations are the same by: their prompt, white space aside."""
    return " ".join(conversation.text.split())


# ---------------------------------------------------------------------- conversations


def training_sources(part: ConversationsConfig, base: Path) -> list[DataSource]:
    """`data.path`, then `data.more`. The folder of a sampled dataset stands for its rows. Raises DataError."""
    sources = []
    for path, hub in [(part.path, part.hub), *((path, None) for path in part.more)]:
        files = find_data(path, hub, base=base)
        rows = tuple(_rows_in(file) for file in files) if hub is None else files
        sources.append(DataSource(path, rows, part))
    return sources


def _rows_in(file: Path) -> Path:
    """The rows of a sampled dataset, whose folder or description `file` may be; else the file itself."""
    sampled = find_sampled(file)
    return file if sampled is None else sampled.rows


def sampled_facts(config: SftConfig, sources: Sequence[DataSource]) -> dict[str, Any] | None:
    """What the run of kind `sample` said of the dataset that `data.path` is; None where it has none of its own. Raises
    DataError."""
    (first, *_) = sources
    sampled = find_sampled(first.files[0]) if config.data.hub is None else None
    if sampled is None:
        return None
    facts = sampled.facts
    if facts.get("content", "conversations") != "conversations":
        held = facts.get("rows_are", facts["content"])
        raise DataError(
            f"{first.path}: the sampled dataset holds {held}, which a run of kind reward_model learns from; sample "
            "with rows: conversations"
        )
    return facts


def require_sampled(source: DataSource, conversations: Sequence[Conversation]) -> None:
    """Refuse to distil, by DataError, what no run sampled: every row of a sampled dataset names its sample."""
    if (other := next((own for own in conversations if not own.sampled), None)) is not None:
        raise DataError(
            f"{source.path}: has no dataset.json of a run of kind sample next to it, and conversation {other.id} does "
            "not name the sample that it is, so which model answered is not known; give the dataset that such a run "
            "wrote, or use kind: sft"
        )


def read_conversations(
    config: SftConfig, sources: Sequence[DataSource], base: Path
) -> tuple[list[Conversation], list[Conversation], list[DataSource]]:
    """Conversations to learn from, those whose loss is measured, and where the latter are from. Raises DataError."""
    part = config.data
    conversations: list[Conversation] = []
    for source in sources:
        left = None if part.limit is None else part.limit - len(conversations)
        if left is None or left > 0:
            conversations += load_conversations(source.files, limit=left)
    if part.heldout_path is not None:
        own = DataSource(part.heldout_path, find_data(part.heldout_path, None, base=base), part)
        return conversations, load_conversations(own.files), [own]
    if part.holdout == 0:
        return conversations, [], []
    names = {"noun": "conversations", "field": "data.holdout", "instead": "data.heldout_path"}
    train, heldout = holdout(conversations, part.holdout, config.seed, **names)
    return train, heldout, list(sources)


def _encoded(
    conversations: Sequence[Conversation],
    encoder: PromptEncoder,
    policy: LoadedModel,
    part: ConversationsConfig,
    *,
    source: str,
) -> EncodedConversations:
    """Raises DataError, ConfigError."""
    encoded = encode_conversations(
        conversations,
        encoder,
        end=_end_token(policy),
        turns=part.turns,
        most=part.max_tokens,
        drop_long=part.long == "drop",
        source=source,
    )
    longest = max(encoded.conversations, key=lambda own: own.length)
    if policy.context is not None and longest.length > policy.context:
        raise ConfigError(
            f"{source}: conversation {longest.conversation.id} has {longest.length} tokens; the model has "
            f"{policy.context} positions. Lower data.max_tokens to that, with data.long: drop"
        )
    return encoded


def _end_token(policy: LoadedModel) -> int:
    """What ends an answer that no template ends: the tokenizer's end of text, else an id that the model names. Raises
    ConfigError."""
    end = policy.tokenizer.eos_token_id
    known = sorted(id_ for id_ in policy.eos_ids if id_ < policy.rows)
    if end is not None and end < policy.rows:
        return int(end)
    if not known:
        raise ConfigError(
            f"{policy.source.folder}: neither tokenizer nor generation_config.json names a token that ends an answer; "
            "set eos_token in tokenizer_config.json"
        )
    return known[0]


# ---------------------------------------------------------------------- what is evaluated


def _problems(
    config: SftConfig, runner: Runner, encoder: PromptEncoder, policy: LoadedModel, base: Path
) -> tuple[Encoded, dict[str, Any]]:
    """The held-out problems as prompts, and their facts. Raises DataError, ConfigError."""
    own = config.eval
    assert own.path is not None, "a verifier is opened for held-out problems alone"
    source = DataSource(own.path, find_data(own.path, own.hub, base=base), own)
    problems = load_problems(source.files, own.format, columns=own.columns, limit=own.limit)
    problems, _ = runner.rubric.readable(problems, drop=False)
    encoded = encode_problems(problems, encoder, source=own.path)
    longest = config.eval_max_completion_tokens
    manner = replace(manner_of(config), max_prompt_tokens=None)
    prompts_fit(encoded, manner, longest=longest, context=policy.context, source=own.path, each="problem")
    return encoded, data_facts(source, encoded, 0)


# ---------------------------------------------------------------------- in words


def loaded_events(inputs: SftInputs, config: SftConfig) -> Iterable[Event]:
    """What was loaded, what the doctor warns of, and what a person would not expect of the data."""
    policy, train = inputs.policy, inputs.train
    rows = len(train.conversations)
    text = f"{policy.source.given}: {policy.parameters():,} parameters; {rows:,} conversations"
    tokens = sum(own.tokens for own in train.conversations)
    text += f" of {tokens:,} tokens, {train.answer_tokens:,} of them learned"
    if inputs.heldout is not None:
        text += f"; {len(inputs.heldout.conversations):,} held out"
    if inputs.problems is not None:
        text += f"; {len(inputs.problems.prompts):,} held-out problems"
    if inputs.suites:
        text += f"; {sum(len(suite.items) for suite in inputs.suites):,} items of {len(inputs.suites)} suites"
    yield Event(type="loaded", message=text)
    yield from _model_events(policy, config)
    epochs = config.steps * config.optim.batch_size / rows
    data = {"epochs": epochs, "steps": config.steps, "conversations": rows}
    length = f"{config.steps:,} steps of {config.optim.batch_size} are {epochs:.2f} epochs"
    yield Event(type="epochs", message=length, data=data)
    if epochs > MANY_EPOCHS:
        fewer = max(1, math.ceil(3 * rows / config.optim.batch_size))
        advice = f"each conversation is learned {epochs:.0f} times, and a model then learns them by heart: one to three"
        advice += f" epochs are usual, optim.steps {fewer} is three"
        yield Event(type="warning", message=advice)
    yield from _sampled_events(inputs, config)
    yield from (Event(type="prompts", message=note) for note in inputs.notes)
    yield from (finding.event() for finding in findings(policy, config) if finding.severity != "note")
    yield from _data_events(inputs)


def _model_events(policy: LoadedModel, config: SftConfig) -> Iterable[Event]:
    if (adapter := policy.source.adapter) is not None:
        does = "go on being trained" if config.model.adapter == "continue" else "are merged into the weights"
        message = f"the adapters in {adapter} {does}; their base model is {policy.source.folder}"
        yield Event(type="model", message=message)
    if (checkpoint := policy.source.checkpoint) is not None:
        step = read_origin(checkpoint).step
        message = f"the weights are those of the checkpoint {checkpoint}, after step {step} of its run; the optimiser "
        yield Event(type="model", message=f"{message}is new")


def _sampled_events(inputs: SftInputs, config: SftConfig) -> Iterable[Event]:
    """Who answered, and whether behind the prompts that the answers are learned behind."""
    facts = inputs.sampled_by
    if facts is None:
        if isinstance(config, DistillConfig):
            message = "each row names the sample that it is, and no dataset.json next to them the model that answered"
            yield Event(type="data", message=message)
        return
    message = f"the answers are samples of {source_of(facts)}, by the run {facts.get('run')}"
    yield Event(type="sampled_by", message=message, data=facts)
    own = {"template": config.data.template, "system": config.data.system}
    given = facts.get("prompt", own)
    if other := sorted(name for name, value in own.items() if given.get(name) != value):
        message = (
            f"the answers were sampled with another {' and '.join(f'data.{name}' for name in other)} than they are "
            "learned with, so each stands behind a prompt that its model was not given; set them alike if that is not "
            "meant"
        )
        yield Event(type="warning", message=message)


def _data_events(inputs: SftInputs) -> Iterable[Event]:
    for encoded, what in ((inputs.train, "training"), (inputs.heldout, "held-out")):
        if encoded is None:
            continue
        if encoded.dropped:
            message = f"{len(encoded.dropped):,} {what} conversations were dropped: over data.max_tokens"
            yield Event(type="data", message=message, data={"dropped": list(encoded.dropped[:100])})
        if encoded.rewritten:
            message = (
                f"the chat template would change {encoded.rewritten:,} {what} answers, as by leaving their reasoning "
                "out; they are learned as they are given"
            )
            yield Event(type="data", message=message, data={"rewritten": encoded.rewritten})
        if encoded.unjoined:
            message = f"{encoded.unjoined:,} {what} answers begin within a token of the whole text; each is encoded "
            yield Event(type="data", message=f"{message}by itself", data={"unjoined": encoded.unjoined})
    if inputs.repeated:
        message = f"{inputs.repeated:,} training conversations equal an earlier one, and are learned as often"
        yield Event(type="data", message=message, data={"repeated": inputs.repeated})
    if inputs.leaked:
        message = f"the prompts of {inputs.leaked:,} held-out conversations are trained on, so their loss says less"
        yield Event(type="warning", message=message, data={"leaked": inputs.leaked})
