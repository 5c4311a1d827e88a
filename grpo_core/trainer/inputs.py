"""Everything a run reads before it starts: model, reference, problems, reward. All of it is checked here, so that a
fault is reported in the first seconds and not after an hour of sampling."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from grpo_core.config.evaluation import HELDOUT
from grpo_core.config.kinds import ScoredConfig
from grpo_core.config.run import RunConfig
from grpo_core.data.decontaminate import overlap
from grpo_core.data.hub import find_data
from grpo_core.data.loaders import load_problems
from grpo_core.data.problem import Problem, holdout
from grpo_core.data.prompts import Encoded, encode_problems, within_limit
from grpo_core.distributed.environment import pick_device
from grpo_core.distributed.ranks import Ranks
from grpo_core.errors import CheckpointError, ConfigError, DataError, GrpoError, ModelError
from grpo_core.evaluate.suites.load import Suite, load_suites
from grpo_core.evaluate.task import Manner, Task, encode_items, heldout_task, manner_of, suite_fits, suite_task
from grpo_core.files.checkpoint import MANIFEST, read_manifest, read_origin, verify_checkpoint
from grpo_core.model.doctor import findings
from grpo_core.model.layout_choice import resolve_layout
from grpo_core.model.load import LoadedModel, find_model, load_model
from grpo_core.model.lora import load_policy
from grpo_core.model.source import vocabulary_sha256
from grpo_core.records.types import Event, Manifest
from grpo_core.rewards import Rubric, Runner
from grpo_core.rewards.base import Context
from grpo_core.trainer.manifest import DataSource, data_facts, inputs_of, suite_facts
from grpo_core.training.critic import Critic, load_critic


@dataclass
class Inputs:
    """A run's inputs, loaded and checked."""

    policy: LoadedModel
    reference: LoadedModel | None
    """Loaded only where the penalty needs a separate model: KL to the reference, without adapters."""
    critic: Critic | None
    """Loaded only with advantage: gae."""
    runner: Runner
    """Scores with the reward's rubric; closed by the caller that loaded the inputs, as the next is."""
    heldout_runner: Runner
    """Judges the held-out problems: the same, or with `eval.reward` one of its own."""
    train: Encoded
    heldout: Encoded | None
    train_facts: dict[str, Any]
    heldout_facts: dict[str, Any] | None
    suites: tuple[Suite, ...]
    suite_facts: dict[str, dict[str, Any]]
    """Of each suite, by name."""
    tasks: tuple[Task, ...]
    """What is evaluated, in this order: the held-out problems, then the suites as the config names them."""
    notes: tuple[str, ...]
    """About the prompts, `PromptEncoder.notes`."""
    unreadable: dict[str, list[tuple[str, str]]]
    """(id, why) of problems that were dropped because the reward cannot read their reference: training, held-out."""

    def positions(self, config: ScoredConfig) -> int:
        """Most tokens of one sequence that is sampled in the run, prompt and completion together."""
        limits = [(self.train, config.sampling.max_completion_tokens)]
        limits += [(task.prompts, task.max_completion_tokens) for task in self.tasks]
        return max(int(encoded.token_stats()["max"]) + completion for encoded, completion in limits)

    @property
    def runners(self) -> tuple[Runner, ...]:
        """Each once."""
        return (self.runner,) if self.heldout_runner is self.runner else (self.runner, self.heldout_runner)

    def reward_facts(self) -> dict[str, dict[str, Any]]:
        """`Runner.facts` of the reward; those of a held-out verifier of its own under `heldout/<component>`."""
        facts = self.runner.facts()
        if self.heldout_runner is not self.runner:
            facts |= {f"{HELDOUT}/{name}": own for name, own in self.heldout_runner.facts().items()}
        return facts

    def overlap(self) -> dict[str, dict[str, Any]]:
        """What of each evaluation the training problems already hold (`data.decontaminate.overlap`), by its name. Of an
        item the plain prompt is looked for, without attack and template, and its options, as the platform does at
        upload."""
        train = [(prompted.problem.id, prompted.problem.text) for prompted in self.train.prompts]
        compared = {suite.config.name: [(item.id, item.prompt) for item in suite.items] for suite in self.suites}
        if self.heldout is not None:
            heldout = [(prompted.problem.id, prompted.problem.text) for prompted in self.heldout.prompts]
            compared = {HELDOUT: heldout, **compared}
        options = {
            suite.config.name: {item.id: item.choices for item in suite.items if item.choices} for suite in self.suites
        }
        return {name: overlap(train, items, options.get(name, {})) for name, items in compared.items()}


def load_inputs(
    config: ScoredConfig,
    *,
    base: Path,
    device: torch.device | None = None,
    learning: bool = True,
    cache: Path | None = None,
) -> Inputs:
    """Read and check everything; relative paths are taken from `base`, `device` from the config when not given. Without
    `learning` neither adapters nor reference nor critic are made. `cache`: folder for what a judge answered. Raises a
    GrpoError that says what is wrong."""
    rubric = Rubric(config.reward)
    heldout_rubric = Rubric(config.eval.reward) if config.eval.reward is not None else rubric
    suites = load_suites(config.eval.suites, base=base)
    source = find_model(config.model, base=base)
    problems, heldout_problems, sources = read_problems(config, base)
    drop = config.data.unreadable == "drop"
    problems, unreadable = rubric.readable(problems, drop=drop)
    heldout_problems, unreadable_heldout = heldout_rubric.readable(heldout_problems, drop=drop)

    device = device or pick_device(config.engine.device)
    # Opened first: a missing sandbox or judge is reported before a model is loaded.
    context = Context(limits=config.reward.limits, base=base, device=str(device), cache=cache)
    with ExitStack() as opened:
        runner = heldout_runner = opened.enter_context(Runner(rubric, context))
        if config.eval.reward is not None:
            own = Context(limits=config.eval.reward.limits, base=base, device=str(device), cache=cache)
            heldout_runner = opened.enter_context(Runner(heldout_rubric, own))
        if learning:
            policy = load_policy(source, config.model, device=device, seed=config.seed)
        else:
            policy = load_model(source, dtype=config.model.dtype, device=device)
        resolve_layout(policy, config.engine.layout)
        encoder = policy.encoder(config.data)
        train = fit_limit(config, encode_problems(problems, encoder, source=config.data.path), config.data.path)
        train_facts = data_facts(sources[0], train, len(unreadable))
        heldout = heldout_facts = None
        if heldout_problems:
            shown = sources[-1].path
            heldout = fit_limit(config, encode_problems(heldout_problems, encoder, source=shown), shown)
            heldout_facts = data_facts(sources[-1], heldout, len(unreadable_heldout))
        fit_context(config, policy.context, train, heldout)
        manner = manner_of(config)
        from_suites = suite_tasks(suites, policy, manner)
        tasks = (
            [heldout_task(heldout, runner=heldout_runner, manner=manner)] if heldout is not None else []
        ) + from_suites

        reference = critic = None
        if learning and config.algorithm.needs_reference and not config.model.lora.rank:
            reference = load_model(source, dtype=config.model.dtype, device=device)
            reference.model.requires_grad_(False)
            resolve_layout(reference, config.engine.layout)
        if learning and isinstance(config, RunConfig) and config.algorithm.estimator.critic:
            critic = load_critic(source, config, device=device)
        inputs = Inputs(
            policy,
            reference,
            critic,
            runner,
            heldout_runner,
            train,
            heldout,
            train_facts,
            heldout_facts,
            suites,
            {
                suite.config.name: suite_facts(suite, task.prompts)
                for suite, task in zip(suites, from_suites, strict=True)
            },
            tuple(tasks),
            tuple(encoder.notes()),
            {"training": unreadable, "held-out": unreadable_heldout},
        )
        opened.pop_all()
    return inputs


def suite_tasks(suites: Sequence[Suite], policy: LoadedModel, manner: Manner) -> list[Task]:
    """The suites as prompts for `policy`. Raises DataError or ConfigError naming suite and item when one does not
    fit."""
    encoder = policy.encoder(manner.prompts)
    tasks = []
    for suite in suites:
        encoded = encode_items(suite, encoder, manner)
        suite_fits(suite, encoded, manner, context=policy.context)
        tasks.append(suite_task(suite, encoded, manner))
    return tasks


def read_problems(config: ScoredConfig, base: Path) -> tuple[list[Problem], list[Problem], list[DataSource]]:
    """Training problems, held-out problems (empty when nothing is evaluated), and where they are from: one source, or
    with `eval.path` two."""
    part = config.data
    source = DataSource(part.path, find_data(part.path, part.hub, base=base), part)
    problems = load_problems(source.files, part.format, columns=part.columns, limit=part.limit)
    if config.eval.path is not None:
        own = config.eval
        second = DataSource(config.eval.path, find_data(config.eval.path, own.hub, base=base), own)
        heldout = load_problems(second.files, own.format, columns=own.columns, limit=own.limit)
        return problems, heldout, [source, second]
    if config.eval.holdout == 0:
        return problems, [], [source]
    train, heldout = holdout(problems, config.eval.holdout, config.seed)
    return train, heldout[: config.eval.limit], [source]


def fit_limit(config: ScoredConfig, encoded: Encoded, source: str) -> Encoded:
    """What the config takes of training or held-out problems. Raises DataError."""
    drop_long = config.data.long_prompts == "drop"
    return within_limit(encoded, config.data.max_prompt_tokens, drop_long=drop_long, source=source)


def fit_context(config: ScoredConfig, context: int | None, train: Encoded, heldout: Encoded | None) -> None:
    """A model run past its positions (`context`) outputs noise without an error, so this is refused beforehand, by
    ConfigError."""
    if context is None:
        return
    limits = [(train, config.sampling.max_completion_tokens, "sampling.max_completion_tokens")]
    if heldout is not None:
        limits.append((heldout, config.eval_max_completion_tokens, "the evaluation's completion limit"))
    for encoded, completion, name in limits:
        longest = int(encoded.token_stats()["max"])
        if longest + completion > context:
            raise ConfigError(
                f"the longest prompt ({longest} tokens) and {name} ({completion}) need {longest + completion} "
                f"positions; the model has {context}. Lower the limit, or data.max_prompt_tokens"
            )


def loaded(inputs: Inputs, config: ScoredConfig) -> list[Event]:
    """What was loaded, in words, what the doctor warns of, and which problems were dropped."""
    parameters = inputs.policy.parameters()
    text = f"{inputs.policy.source.given}: {parameters:,} parameters; {len(inputs.train.prompts):,} problems"
    if inputs.heldout is not None:
        text += f", {len(inputs.heldout.prompts):,} held out"
    if inputs.suites:
        text += f", {sum(len(suite.items) for suite in inputs.suites):,} items of {len(inputs.suites)} suites"
    events = [Event(type="loaded", message=text)]
    if (adapter := inputs.policy.source.adapter) is not None:
        trained = isinstance(config, RunConfig) and config.model.adapter == "continue"
        does = "go on being trained" if trained else "are merged into the weights"
        message = f"the adapters in {adapter} {does}; their base model is {inputs.policy.source.folder}"
        events.append(Event(type="model", message=message))
    if (checkpoint := inputs.policy.source.checkpoint) is not None:
        step = read_origin(checkpoint).step
        message = f"the weights are those of the checkpoint {checkpoint}, after step {step} of its run"
        if isinstance(config, RunConfig):
            message += "; the optimiser is new"
        events.append(Event(type="model", message=message))
    if inputs.policy.unshared is not None:
        reason = "engine.layout auto is right here, and prompts go through the model with each of their completions"
        events.append(Event(type="layout", message=f"{reason}: {inputs.policy.unshared}"))
    events += _other_tokenizers(inputs)
    events += [Event(type="prompts", message=note) for note in inputs.notes]
    events += [finding.event() for finding in findings(inputs.policy, config) if finding.severity != "note"]
    for encoded, what in ((inputs.train, "training"), (inputs.heldout, "held-out")):
        if encoded is not None and encoded.dropped:
            message = f"{len(encoded.dropped)} {what} problems were dropped: prompt over data.max_prompt_tokens"
            events.append(Event(type="data", message=message, data={"dropped": list(encoded.dropped[:100])}))
    for what, faults in inputs.unreadable.items():
        if faults:
            message = f"{len(faults)} {what} problems were dropped: the reward cannot read their reference"
            events.append(Event(type="data", message=message, data={"unreadable": dict(faults[:100])}))
    return events


def _other_tokenizers(inputs: Inputs) -> Iterator[Event]:
    """Models of the reward that read other tokens than the policy writes. They are given text, so that is allowed; a
    text that is one token here may be several there, and limits in tokens differ."""
    own = vocabulary_sha256(inputs.policy.tokenizer)
    for name, facts in inputs.reward_facts().items():
        if facts.get("vocabulary_sha256", own) != own:
            message = (
                f"the reward component {name} reads with the tokenizer of {facts['source']}, which is another than the "
                f"policy's, of {inputs.policy.source.given}: it is given text, so this is allowed; its limits count "
                "its own tokens"
            )
            yield Event(type="model", message=message, data={"component": name})


def answer_cache(ranks: Ranks, run_folder: Path | None) -> Path | None:
    """Folder for the judge's answers: next to the run's records, for all ranks that can reach those."""
    (folder, *_) = ranks.gather(str(run_folder) if run_folder is not None else None)
    return Path(folder, "reward-cache") if folder is not None and Path(folder).is_dir() else None


def reward_used(facts: Sequence[dict[str, Any]]) -> list[Event]:
    """Facts about scoring, from `Runner.facts` of each rank at the end of the run; none for rules alone."""
    return [
        Event(
            type="reward_facts", message=f"what the reward used{'' if len(facts) == 1 else f', rank {rank}'}", data=used
        )
        for rank, used in enumerate(facts)
        if used
    ]


# Whether the ranks of a run read the same: config, model, problems, and the checkpoint that they resume from.
#
# They exchange gradients and never weights, so ranks that began apart would train several policies and call them one.
# Each machine reads its own files, which are another's only where the disk is shared.

_CONFIG = "the config"


def check_inputs_alike(ranks: Ranks, manifest: Manifest) -> None:
    """Raise ConfigError, ModelError or DataError, on every rank, when one has other inputs than the first."""
    first, *others = ranks.gather({_CONFIG: manifest.config_digest, **inputs_of(manifest)})
    for rank, theirs in enumerate(others, start=1):
        differs = [what for what in first if first[what] != theirs[what]]
        if differs:
            raise _kind(differs[0])(_differ(ranks, rank, ", ".join(differs)))


def check_checkpoint_alike(ranks: Ranks, folder: Path) -> None:
    """Raise CheckpointError, on every rank, when one finds another checkpoint in `folder` than the first, or one that
    is not whole. The first rank has looked at its own when it was chosen; ranks of one machine read one disk."""

    def seal() -> str:
        if ranks.first_here and not ranks.main:
            verify_checkpoint(folder)
        else:
            read_manifest(folder)
        return hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()

    first, *others = ranks.gather(ranks.together(seal))
    for rank, theirs in enumerate(others, start=1):
        if theirs != first:
            raise CheckpointError(_differ(ranks, rank, f"the checkpoint {folder}"))


def _differ(ranks: Ranks, rank: int, what: str) -> str:
    return (
        f"{ranks.name(0)} and {ranks.name(rank)} do not read the same: {what}. Every machine of a run reads the same "
        "files at the same paths; put them on a disk that all share"
    )


def _kind(what: str) -> type[GrpoError]:
    if what == _CONFIG:
        return ConfigError
    return DataError if "problems" in what or "conversations" in what else ModelError
