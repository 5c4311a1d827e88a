"""Which samples of a step are stored token by token, and what is known of their tokens.

All of it is what sampling and update have computed anyway: no pass through a model is made for it, no random number of
the run is drawn, and nothing of it is read by the training.
"""

import codecs
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from grpo_core.algo.advantages import Advantages
from grpo_core.config.run import RunConfig
from grpo_core.files.run_folder import RunDir
from grpo_core.files.token_file import TokenRow, estimated_bytes, write_file
from grpo_core.model.load import LoadedModel
from grpo_core.records.commitments import new_salt
from grpo_core.records.types import MAX_TOKEN_FILE_BYTES, Event, Group, Sample, TokenArrays
from grpo_core.rewards.signal import component_weights
from grpo_core.rewards.steps import completion_step_rewards
from grpo_core.text import UNSTORABLE
from grpo_core.trainer.recorder import TOKENS, kept_groups
from grpo_core.trainer.sampled import SampledGroup
from grpo_core.training.base import TokenSignals

Key = tuple[int, int]
"""(group of the step, sample of the group)."""


def traced_rows(batch: Sequence[SampledGroup], config: RunConfig, step: int) -> frozenset[int]:
    """Rows of the update, group by group, of which its signals may be stored: which they are is known before it, but
    for those that are flagged."""
    rewards = {(p, g): score.reward for p, group in enumerate(batch) for g, score in enumerate(group.scores)}
    row_of = {key: row for row, key in enumerate(rewards)}
    kept = set(kept_groups(len(batch), config.traces.groups_per_step, config.seed, step))
    rewards = {key: reward for key, reward in rewards.items() if key[0] in kept}
    if "flagged" in config.traces.tokens:
        return frozenset(row_of[key] for key in rewards)
    return frozenset(row_of[key] for key in _chosen(rewards, [], config, step))


def _chosen(rewards: Mapping[Key, float | None], flagged: Sequence[Key], config: RunConfig, step: int) -> list[Key]:
    """Of the samples of the kept groups those to store, in order. `flagged`: most conspicuous first."""
    scored = [key for key, reward in rewards.items() if reward is not None]
    most, keys = config.traces.tokens_per_choice, list(rewards)
    chosen: set[Key] = set()
    for choice in config.traces.tokens:
        match choice:
            case "best":
                chosen.update(sorted(scored, key=lambda key: (-(rewards[key] or 0.0), key))[:most])
            case "worst":
                chosen.update(sorted(scored, key=lambda key: (rewards[key] or 0.0, key))[:most])
            case "flagged":
                chosen.update(flagged[:most])
            case "all":
                chosen.update(keys)
            case "random":
                count = min(most, len(keys))
                drawn = np.random.default_rng([config.seed, TOKENS, step]).choice(len(keys), count, replace=False)
                chosen.update(keys[index] for index in drawn.tolist())
    return sorted(chosen)


def _flagged(group: Group, sample: Sample, difference: float) -> tuple[bool, float]:
    """Sorts the conspicuous first: those with a cause, then by the largest difference of sampler and trainer."""
    error = any(score.error is not None for score in sample.components.values())
    return not (sample.mask_cause is not None or error or group.signal == "phantom"), -difference


class TokenWriter:
    """Writes a step's file before the records that name it."""

    def __init__(self, config: RunConfig, policy: LoadedModel) -> None:
        self._config, self._policy = config, policy
        self._pieces: dict[int, str] = {}
        """Text of each token that was stored so far."""

    def write(
        self,
        run_dir: RunDir,
        step: int,
        batch: Sequence[SampledGroup],
        trained: Sequence[Group],
        advantages: Advantages | None,
        signals: Mapping[int, TokenSignals],
    ) -> tuple[list[Group], TokenArrays | Event | None]:
        """The groups that were trained on, with the digests of the rows that were stored, and what is to be recorded of
        the file; None where no sample was chosen. Raises DiskFullError."""
        keys = self._keys(step, batch, trained, signals)
        if not keys or advantages is None:
            return list(trained), None
        first_row = np.cumsum([0, *(len(group.samples) for group in trained)])
        rows = [
            TokenRow(
                p, g, new_salt(), self._columns(batch[p], trained[p], g, advantages, p, signals[int(first_row[p]) + g])
            )
            for p, g in keys
        ]
        size = sum(estimated_bytes(row.columns, len(row.columns["token_id"])) for row in rows)
        if size > MAX_TOKEN_FILE_BYTES:
            message = (
                f"step {step}: the token arrays of {len(rows)} samples would take {size:,} bytes, and a step may have "
                f"{MAX_TOKEN_FILE_BYTES:,}; they were not stored. Choose fewer samples by traces.tokens"
            )
            return list(trained), Event(type="tokens_too_large", message=message, data={"step": step, "bytes": size})
        path = run_dir.token_file(step)
        size, sha256 = write_file(path, rows)
        name = str(path.relative_to(run_dir.path))
        record = TokenArrays(step=step, path=name, size=size, sha256=sha256, samples=tuple(keys))
        return _with_digests(trained, rows), record

    def _keys(
        self, step: int, batch: Sequence[SampledGroup], trained: Sequence[Group], signals: Mapping[int, TokenSignals]
    ) -> list[Key]:
        config = self._config
        samples: dict[Key, Sample] = {}
        differences: dict[Key, float] = {}
        row = 0
        for p, group in enumerate(trained):
            for g, sample in enumerate(group.samples):
                if row in signals:
                    samples[p, g] = sample
                    differences[p, g] = _difference(batch[p].completions[g].logprobs, signals[row])
                row += 1
        order = sorted(samples, key=lambda key: (*_flagged(trained[key[0]], samples[key], differences[key]), key))
        kept = set(kept_groups(len(batch), config.traces.groups_per_step, config.seed, step))
        rewards = {
            (p, g): sample.reward
            for p, group in enumerate(trained)
            if p in kept
            for g, sample in enumerate(group.samples)
        }
        return _chosen(rewards, order, config, step)

    def _columns(
        self, sampled: SampledGroup, group: Group, g: int, advantages: Advantages, p: int, signals: TokenSignals
    ) -> dict[str, Sequence[Any]]:
        completion, sample, count = sampled.completions[g], group.samples[g], len(sampled.completions[g].tokens)
        tokens = advantages.tokens
        advantage = [float(advantages.advantages_PG[p, g])] * count if tokens is None else tokens[p][g].tolist()
        columns: dict[str, Sequence[Any]] = {
            "token_id": list(completion.tokens),
            "piece": [self._piece(token) for token in completion.tokens],
            "sampler_logprob": list(completion.logprobs),
            "advantage": advantage,
            **signals,
        }
        if sample.mask_cause is not None:
            columns["in_loss"] = [False] * count
        columns.setdefault("in_loss", [True] * count)
        if self._config.algorithm.supervision == "process" and sample.reward is not None:
            columns["step_reward"] = self._step_rewards(sampled, g)
        return columns

    def _step_rewards(self, sampled: SampledGroup, g: int) -> list[float | None]:
        policy, tokens = self._policy, sampled.completions[g].tokens
        weights = component_weights(self._config.reward, self._config.algorithm)
        components = sampled.scores[g].components
        given = dict(completion_step_rewards(components, weights, tokens, policy.tokenizer, policy.eos_ids))
        return [given.get(index) for index in range(len(tokens))]

    def _piece(self, token: int) -> str:
        if token not in self._pieces:
            self._pieces[token] = UNSTORABLE.sub("\ufffd", token_text(self._policy.tokenizer, token))
        return self._pieces[token]


def _difference(sampler: Sequence[float], signals: TokenSignals) -> float:
    """The largest difference of a token between sampler and trainer, by the log-probabilities nearest to the
    sampling; 0 where the trainer has none."""
    trainer = signals.get("old_logprob") or signals.get("policy_logprob") or []
    return max((abs(a - b) for a, b in zip(sampler, trainer, strict=False)), default=0.0)


def _with_digests(groups: Sequence[Group], rows: Sequence[TokenRow]) -> list[Group]:
    digests = {(row.group, row.sample): row.digest for row in rows}
    return [
        group.model_copy(
            update={
                "samples": tuple(
                    sample.model_copy(update={"tokens_sha256": digests.get((group.index, sample.index))})
                    for sample in group.samples
                )
            }
        )
        for group in groups
    ]


def token_text(tokenizer: Any, token: int) -> str:
    """A token's text, with the space that SentencePiece has before a word. Bytes that are no UTF-8 by themselves (a
    character of several tokens) are written <0xNN>."""
    name = str(tokenizer.convert_ids_to_tokens(token))
    text = str(tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False))
    if name.startswith("▁") and not text.startswith(" "):
        return " " + text
    if "\ufffd" not in text:
        return text
    if not all(letter in _byte_of() for letter in name):
        return name  # SentencePiece names a byte <0xNN> itself
    return bytes(_byte_of()[letter] for letter in name).decode("utf-8", "tokens_hex")


@cache
def _byte_of() -> dict[str, int]:
    """Letter of a byte-level vocabulary → byte (GPT-2's table, which all byte-level tokenizers share)."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    table: dict[int, str] = bytes_to_unicode()  # type: ignore[no-untyped-call]
    return {letter: byte for byte, letter in table.items()}


def _hex(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "".join(f"<0x{byte:02X}>" for byte in error.object[error.start : error.end]), error.end


codecs.register_error("tokens_hex", _hex)
