"""What a reward model's training reads before it starts, all of it checked; which rows each batch holds; and how
held-out pairs are measured."""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from grpo_core.config.evaluation import HELDOUT
from grpo_core.config.reward_model import RewardModelConfig, scoring_texts
from grpo_core.data.containers import container_of
from grpo_core.data.fingerprint import file_sha256
from grpo_core.data.hub import find_data
from grpo_core.data.preferences import (
    Pair,
    Preference,
    ScoredText,
    comparable_pairs,
    load_pairs,
    load_scores,
    preferences_digest,
    prompt_digest,
    prompt_key,
    replay_rows,
    split_rows,
)
from grpo_core.data.prompts import Encoded, Prompted, length_stats
from grpo_core.distributed.environment import pick_device
from grpo_core.errors import ConfigError, DataError
from grpo_core.evaluate.task import Task
from grpo_core.model.classifier import Classifier, load_classifier
from grpo_core.model.load import find_model
from grpo_core.model.source import dataset_digest
from grpo_core.records.types import ComponentScore, EvalItem, EvalResult, Phase
from grpo_core.rewards.models.texts import ScoringTexts
from grpo_core.stats.preferences import RankedPair
from grpo_core.trainer.checkpoints.state import DrawState
from grpo_core.trainer.evaluation import Evaluation
from grpo_core.trainer.row_order import RowOrder
from grpo_core.trainer.sampled import Position
from grpo_core.training.reward_model import PreferenceRow, RewardModelTraining

_REPLAY_SEED = 1
"""Added to the run's, so that the order of replayed rows is another than that of the new ones."""


@dataclass(frozen=True)
class EncodedRow:
    """One row with the tokens that the model reads of it."""

    preference: Preference
    row: PreferenceRow


@dataclass
class PreferenceInputs:
    """A reward model run's inputs, loaded and checked."""

    classifier: Classifier
    train: list[EncodedRow]
    replay: list[EncodedRow]
    """Of an earlier reward model; empty where there are none."""
    heldout: list[EncodedRow]
    """As the file has them; empty where nothing is measured."""
    pairs: list[EncodedRow]
    """What the held-out rows are measured as: themselves, or of scores every two of a prompt that differ."""
    train_facts: dict[str, Any]
    heldout_facts: dict[str, Any] | None
    dropped: dict[str, list[str]] = field(default_factory=dict)
    """Ids of rows that were left out for their length: training, held-out, replayed."""


def load_preferences(config: RewardModelConfig, *, base: Path, device: torch.device | None = None) -> PreferenceInputs:
    """Read and check everything; relative paths are taken from `base`. Raises a GrpoError that says what is wrong."""
    data = config.data
    source = find_model(config.model, base=base)
    files = find_data(data.path, data.hub, base=base)
    train = _read(config, files, limit=data.limit)
    heldout: list[Any] = []
    heldout_files: Sequence[Path] = files
    if data.heldout_path is not None:
        heldout_files = find_data(data.heldout_path, None, base=base)
        heldout = _read(config, heldout_files, limit=None)
    elif data.holdout:
        train, heldout = split_rows(train, data.holdout, config.seed)
    held_prompts = {prompt_key(row) for row in heldout}
    replay: list[Any] = []
    replay_files: Sequence[Path] = ()
    left_out = 0
    if data.replay_path is not None:
        replay_files = find_data(data.replay_path, None, base=base)
        every = _read(config, replay_files, limit=None)
        replay = [row for row in every if prompt_key(row) not in held_prompts]
        left_out = len(every) - len(replay)
        if not replay:
            raise DataError(f"{data.replay_path}: the prompts of all its rows are held out, so nothing can be replayed")

    classifier = load_classifier(source, config, device=device or pick_device(config.engine.device))
    encoder = _Encoder(config, classifier)
    dropped: dict[str, list[str]] = {}
    encoded = {
        what: encoder.rows(rows, shown, dropped.setdefault(what, []))
        for what, rows, shown in (
            ("training", train, data.path),
            ("held-out", heldout, data.heldout_path or data.path),
            ("replayed", replay, data.replay_path or ""),
        )
        if rows
    }
    train_rows, heldout_rows = encoded["training"], encoded.get("held-out", [])
    facts = _facts(data.path, files, train_rows, dropped["training"], config)
    facts["hub"] = data.hub.model_dump() if data.hub is not None else None
    if replay:
        facts["replay"] = _facts(data.replay_path or "", replay_files, encoded["replayed"], dropped["replayed"], config)
        facts["replay"] |= {"share": data.replay_share, "held_out_left_out": left_out}
    pairs = heldout_rows
    heldout_facts = None
    if heldout:
        if config.objective == "regression":
            scored = [row.preference for row in heldout_rows if isinstance(row.preference, ScoredText)]
            pairs = encoder.rows(comparable_pairs(scored), data.heldout_path or data.path, [])
            if not pairs:
                raise DataError(
                    f"{data.heldout_path or data.path}: no two held-out completions of one prompt differ in their "
                    "score, so there is nothing to rank; give several completions of each prompt"
                )
        shown = data.heldout_path or data.path
        heldout_facts = _facts(shown, heldout_files, heldout_rows, dropped["held-out"], config)
        trained = {prompt_key(row.preference) for row in train_rows}
        heldout_facts["pairs"] = len(pairs)
        heldout_facts["rows_with_a_training_prompt"] = sum(
            prompt_key(row.preference) in trained for row in heldout_rows
        )
    return PreferenceInputs(
        classifier, train_rows, encoded.get("replayed", []), heldout_rows, pairs, facts, heldout_facts, dropped
    )


def _read(config: RewardModelConfig, files: Sequence[Path], *, limit: int | None) -> list[Any]:
    """Pairs, or scored completions, as the objective needs them."""
    return (load_pairs if config.objective == "bradley_terry" else load_scores)(files, limit=limit)


class _Encoder:
    """Makes of rows what the model reads, exactly as the reward kind does that scores with it."""

    def __init__(self, config: RewardModelConfig, classifier: Classifier) -> None:
        """Raises ConfigError where `data.chat` needs a chat template and there is none."""
        self._data = config.data
        self._texts = ScoringTexts(classifier.loaded.tokenizer, source=classifier.loaded.source.folder)
        if config.data.chat:
            self._texts.check_chat()
        self._context = classifier.loaded.context

    def rows(self, rows: Sequence[Preference], source: str, dropped: list[str]) -> list[EncodedRow]:
        """All that fit; ids of those that are too long are added to `dropped`, where data.long says so. Raises
        DataError."""
        encoded = []
        for row in rows:
            texts = tuple(self.ids(row, completion, source) for completion in row.completions)
            longest = max(map(len, texts))
            if longest <= self._data.max_tokens:
                if self._context is not None and longest > self._context:
                    raise ConfigError(
                        f"{source}: row {row.problem.id} has a text of {longest} tokens, and the model has "
                        f"{self._context} positions; set data.max_tokens: {self._context} and data.long: drop, or take "
                        "a model with more positions"
                    )
                target = row.margin if isinstance(row, Pair) else row.score
                encoded.append(EncodedRow(row, PreferenceRow(texts, target)))
            elif self._data.long == "drop":
                dropped.append(row.problem.id)
            else:
                raise DataError(
                    f"{source}: row {row.problem.id} has a text of {longest} tokens, over data.max_tokens = "
                    f"{self._data.max_tokens}; raise the limit, or set data.long: drop"
                )
        if dropped and not encoded:
            raise DataError(f"{source}: all {len(dropped)} rows are over data.max_tokens = {self._data.max_tokens}")
        return encoded

    def ids(self, row: Preference, completion: str, source: str) -> tuple[int, ...]:
        prompt = row.problem.prompt
        try:
            if self._data.chat:
                ids = self._texts.chat_ids(prompt, completion)
            else:
                ids = self._texts.template_ids(self._data.template, prompt=prompt, completion=completion)
        except ValueError as error:
            raise DataError(f"{source}: row {row.problem.id}: the chat template refuses the text: {error}") from None
        return tuple(ids)


def _facts(
    shown: str, files: Sequence[Path], rows: Sequence[EncodedRow], dropped: Sequence[str], config: RewardModelConfig
) -> dict[str, Any]:
    """Of one set, as a manifest has them."""
    hashes = {path.name: file_sha256(path) for path in files}
    with files[0].open("rb") as handle:
        container, _ = container_of(handle, source=str(files[0]))
    lengths = [len(text) for row in rows for text in row.row.texts]
    preferences = [row.preference for row in rows]
    return {
        "path": shown,
        "files": hashes,
        "sha256": dataset_digest(hashes),
        "container": container,
        "format": "pairs" if config.objective == "bradley_terry" else "scores",
        "problems": len(rows),
        "problems_digest": preferences_digest(preferences),
        "prompts": len({prompt_key(row) for row in preferences}),
        "dropped": len(dropped),
        "prompt_tokens": length_stats(lengths),
        "texts": scoring_texts(config.data.template, chat=config.data.chat),
    }


# ---------------------------------------------------------------------- batches


class BatchSampler:
    """Which rows each batch holds: of the new ones each epoch all, in an order of its own by seed; of the replayed ones
    their share. The checkpoint manager's `Sampler`."""

    def __init__(self, config: RewardModelConfig, inputs: PreferenceInputs) -> None:
        self._inputs = inputs
        self._size, self._share = config.optim.batch_size, config.data.replay_share if inputs.replay else 0.0
        self._steps = 0
        self._order = RowOrder(len(inputs.train), config.seed)
        self._replay = RowOrder(len(inputs.replay), config.seed + _REPLAY_SEED)

    def draw(self) -> list[PreferenceRow]:
        """The rows of the next step, the replayed ones last."""
        old = self.replayed(self._steps + 1) - self.replayed(self._steps)
        rows = [self._inputs.train[index].row for index in self._order.draw(self._size - old)]
        rows += [self._inputs.replay[index].row for index in self._replay.draw(old)]
        self._steps += 1
        return rows

    def replayed(self, steps: int) -> int:
        """Rows of the first `steps` batches that are replayed."""
        return replay_rows(self._share, self._size, steps)

    @property
    def epoch(self) -> float:
        """How often the new rows have been gone through."""
        return self._order.epoch

    def position(self) -> Position:
        """See `Sampler`."""
        return Position(self._steps * self._size, ())

    def serialize(self, position: Position) -> DrawState:
        """See `Sampler`."""
        return DrawState(drawn=position.drawn)

    def restore(self, state: DrawState) -> None:
        """See `Sampler`."""
        self._steps = state.drawn // self._size
        replayed = self.replayed(self._steps)
        self._order.restore(DrawState(drawn=state.drawn - replayed))
        self._replay.restore(DrawState(drawn=replayed))


# ---------------------------------------------------------------------- measuring


@dataclass(eq=False)
class HeldoutPairs:
    """Measures the held-out pairs, as an evaluation of the suite `heldout`."""

    config: RewardModelConfig
    inputs: PreferenceInputs
    training: RewardModelTraining
    progress: Callable[[int, str], None]

    def __post_init__(self) -> None:
        self._known: dict[tuple[int, ...], float] = {}
        """Rewards of texts by the weights after the step `_step`: each is read once."""
        self._step = -1

    def tasks(self) -> list[Task]:
        """The one that there is; none without pairs. An item's prompt is the pair's, its tokens the chosen text's."""
        pairs = [row.preference for row in self.inputs.pairs]
        if not pairs:
            return []
        digest = preferences_digest(pairs)
        texts = scoring_texts(self.config.data.template, chat=self.config.data.chat)
        prompts = tuple(
            Prompted(row.preference.problem, row.preference.problem.prompt, row.row.texts[0], 0)
            for row in self.inputs.pairs
        )
        protocol = {
            "objective": self.config.objective,
            "texts": texts,
            "problems": len(pairs),
            "problems_digest": digest,
            "items_digest": digest,
            "scorer_digest": hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest(),
        }
        parts = [("", prompt_digest(pair)) for pair in pairs]
        return [Task(HELDOUT, Encoded(prompts, (), {}), 1, (), _nothing_judged, parts, protocol)]

    def evaluations(
        self, phase: Phase, tasks: Sequence[Task], step: int, ready: Mapping[str, Evaluation]
    ) -> Iterator[Evaluation]:
        """Of each task; see `Evaluator.measure`."""
        for task in tasks:
            yield ready[task.name] if task.name in ready else self._evaluate(phase, task, step)

    def _evaluate(self, phase: Phase, task: Task, step: int) -> Evaluation:
        began = time.perf_counter()
        rows = self.inputs.pairs[: len(task.prompts.prompts)]
        rewards = self._rewards(rows)
        items = tuple(
            self._item(phase, step, row, rewards, cluster) for row, (_, cluster) in zip(rows, task.parts, strict=True)
        )
        if phase != "during":
            self.progress(len(items), "pairs measured")
        result = EvalResult(
            phase=phase,
            step=step,
            suite=task.name,
            problems=len(items),
            correct=sum(item.score for item in items),
            truncated=0,
            errors=0,
            mean_tokens=sum(item.tokens for item in items) / len(items),
            seconds=time.perf_counter() - began,
            protocol=task.protocol,
        )
        return Evaluation(items, result)

    def _rewards(self, rows: Iterable[EncodedRow]) -> dict[tuple[int, ...], float]:
        """The reward of every text that has been read of these weights, those of `rows` among them."""
        if self._step != self.training.changed_in:
            self._known, self._step = {}, self.training.changed_in
        texts = dict.fromkeys(text for row in rows for text in row.row.texts)
        unread = [text for text in texts if text not in self._known]
        self._known.update(zip(unread, self.training.rewards(unread), strict=True))
        return self._known

    def _item(
        self, phase: Phase, step: int, row: EncodedRow, rewards: Mapping[tuple[int, ...], float], cluster: str
    ) -> EvalItem:
        """`answer` is the chosen completion, `completion` the rejected one, `tokens` those of both texts."""
        pair, (chosen, rejected) = row.preference, row.row.texts
        assert isinstance(pair, Pair)
        ranked = _ranked(row, rewards, cluster)
        return EvalItem(
            phase=phase,
            step=step,
            suite=HELDOUT,
            problem_id=pair.problem.id,
            prompt=pair.problem.prompt,
            answer=pair.chosen,
            completion=pair.rejected,
            score=ranked.score,
            truncated=False,
            tokens=len(chosen) + len(rejected),
            detail=f"chosen {rewards[chosen]:.4g}, rejected {rewards[rejected]:.4g}",
            cluster=cluster,
        )

    def measured(self) -> tuple[list[RankedPair], list[float], float]:
        """(every held-out pair as the model ranks it now, the rewards of all held-out texts, the mean loss of the
        held-out rows)."""
        rewards = self._rewards([*self.inputs.pairs, *self.inputs.heldout])
        pairs = [_ranked(row, rewards, prompt_digest(row.preference)) for row in self.inputs.pairs]
        return pairs, list(rewards.values()), self.loss()

    def loss(self) -> float:
        """Mean of the objective over the held-out rows that have been measured since the last step."""
        rewards = self._rewards(())
        measured = [row.row for row in self.inputs.heldout if all(text in rewards for text in row.row.texts)]
        losses = self.training.losses(measured, rewards)
        return sum(losses) / len(losses)


def _ranked(row: EncodedRow, rewards: Mapping[tuple[int, ...], float], cluster: str) -> RankedPair:
    chosen, rejected = row.row.texts
    return RankedPair(rewards[chosen] - rewards[rejected], len(chosen) - len(rejected), cluster)


def _nothing_judged(answered: object, check: object) -> list[ComponentScore]:
    raise AssertionError("a reward model answers nothing")
