"""Every completion of a run leaves a salted leaf in the run's tree (commitments.jsonl), so that a completion shown
later, or alone, can be checked, and one that is withheld or deleted leaves all other proofs whole."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from cohort.evidence import keys
from cohort.evidence.merkle import HASH_BYTES, Nodes, root, verify_inclusion
from grpo_core.records.leaves import leaf

SAMPLE_SCHEMA = "cohort-sample/1"
_LINE = frozenset({"attempt", "count", "leaves", "step", "superseded"})
_GROUP, _SAMPLE = ("problem_id", "prompt"), ("completion", "tokens", "finish_reason", "reward", "advantage")
CONTENT = ("step", "group", "sample", *_GROUP, *_SAMPLE)
"""What a leaf commits to."""
TOKENS = "tokens_sha256"
"""And of a sample whose token arrays were stored: the digest of their row."""


class SampleFault(ValueError):
    """An invalid line of commitments or sample, or one that does not fit."""


@dataclass(frozen=True, slots=True)
class Line:
    """The leaves of one step of one attempt, in the order of groups and samples."""

    attempt: int
    """Fence of the attempt."""
    step: int
    superseded: bool
    """Done again by a later attempt; it stays in the tree."""
    leaves: tuple[bytes, ...]


def line_of(value: Any) -> Line:
    """A line of commitments.jsonl. Raises SampleFault."""
    if not isinstance(value, dict) or set(value) != _LINE:
        raise SampleFault(f"a line of commitments holds {', '.join(sorted(_LINE))}")
    numbers = [value["attempt"], value["step"], value["count"]]
    if not all(type(number) is int and number >= 0 for number in numbers) or type(value["superseded"]) is not bool:
        raise SampleFault("attempt, step and count are whole numbers, superseded is true or false")
    if not isinstance(value["leaves"], str):
        raise SampleFault("leaves is base64")
    try:
        packed = keys.decode(value["leaves"], HASH_BYTES * value["count"])
    except ValueError as error:
        raise SampleFault(f"leaves: {error}") from None
    leaves = tuple(packed[at : at + HASH_BYTES] for at in range(0, len(packed), HASH_BYTES))
    return Line(value["attempt"], value["step"], value["superseded"], leaves)


class Commitments:
    """commitments.jsonl read whole. Raises SampleFault when lines are not sorted by attempt and step, or one is twice,
    or a step has two current lines."""

    def __init__(self, lines: Iterable[Any]) -> None:
        self.lines: list[Line] = []
        self._current: dict[int, Line] = {}
        for number, value in enumerate(lines, start=1):
            try:
                self._add(line_of(value))
            except SampleFault as fault:
                raise SampleFault(f"line {number}: {fault}") from None

    def _add(self, line: Line) -> None:
        if self.lines and (self.lines[-1].attempt, self.lines[-1].step) >= (line.attempt, line.step):
            raise SampleFault("is not after the line before it, by attempt and step")
        self.lines.append(line)
        if not line.superseded and self._current.setdefault(line.step, line) is not line:
            raise SampleFault(f"step {line.step} occurs twice")

    def leaves(self) -> Iterator[bytes]:
        for line in self.lines:
            yield from line.leaves

    @property
    def count(self) -> int:
        return sum(len(line.leaves) for line in self.lines)

    def root(self) -> bytes:
        """The run's root."""
        return root(self.leaves())

    def current(self, step: int) -> Line | None:
        """The line of a step that no later attempt did again."""
        return self._current.get(step)

    def index(self, step: int, position: int) -> int:
        """Index, in the run's tree, of a sample of a current step. Raises SampleFault when there is none."""
        before = 0
        for line in self.lines:
            if line is self._current.get(step) and 0 <= position < len(line.leaves):
                return before + position
            before += len(line.leaves)
        raise SampleFault(f"there is no current sample {position} of step {step}")


def sample_leaf(salt: str, content: dict[str, Any]) -> bytes:
    """Leaf hash of a sample's content (`CONTENT`), `salt` as 32 hex digits: as `grpo_core.records.commitments.leaf`,
    with the SHA-256 of prompt and completion in place of the texts. Raises SampleFault."""
    try:
        packed = bytes.fromhex(salt)
        if packed.hex() != salt:
            raise ValueError
    except (TypeError, ValueError):
        raise SampleFault("its salt is not 32 hex digits") from None
    try:
        return leaf(packed, content)
    except (KeyError, ValueError, RecursionError) as error:
        raise SampleFault(f"its content cannot be hashed: {error}") from None


@dataclass(frozen=True, slots=True)
class Checked:
    """Samples of one line of a trace file."""

    fitting: int
    redacted: int
    """Their text was deleted; the commitment stays."""
    uncommitted: int
    """Of a step whose trainer made no commitments: nothing binds them to the run's root."""


def check_trace(line: Any, commitments: Commitments) -> Checked:
    """A line of traces/*.jsonl (one group) against the commitments of its step. A sample {"index", "redacted": true}
    is counted and not checked. Raises SampleFault with the first that does not fit."""
    match line:
        case {"step": int(step), "index": int(group), "samples": [*samples]} if samples:
            pass
        case _:
            raise SampleFault("is not a group of samples")
    committed = commitments.current(step)
    if committed is None:
        return Checked(0, 0, len(samples))
    redacted = 0
    for at, sample in enumerate(samples):
        where = f"step {step}, group {group}, sample {at}"
        position = group * len(samples) + at
        if not isinstance(sample, dict) or sample.get("index") != at or position not in range(len(committed.leaves)):
            raise SampleFault(f"{where}: is not there by the commitments")
        if sample.get("redacted") is True:
            if set(sample) != {"index", "redacted"}:
                raise SampleFault(f"{where}: is marked as redacted and still says something")
            redacted += 1
            continue
        content = {"step": step, "group": group, "sample": at}
        content |= {name: line.get(name) for name in _GROUP} | {name: sample.get(name) for name in _SAMPLE}
        if TOKENS in sample:
            content[TOKENS] = sample[TOKENS]
        try:
            leaf = sample_leaf(str(sample.get("salt")), content)
        except SampleFault as fault:
            raise SampleFault(f"{where}: {fault}") from None
        if leaf != committed.leaves[position]:
            raise SampleFault(f"{where}: is not what was committed to when it was sampled")
    return Checked(len(samples) - redacted, redacted, 0)


def sample_proof(commitments: Commitments, *, position: int, salt: str, content: dict[str, Any]) -> dict[str, Any]:
    """One sample to be shown alone, with the proof that it is in the run's tree: what `cohort verify --trace` reads."""
    index, size = commitments.index(content["step"], position), commitments.count
    path = Nodes(commitments.leaves()).inclusion(index, size)
    return {
        "schema": SAMPLE_SCHEMA,
        "run_root": commitments.root().hex(),
        "index": index,
        "size": size,
        "path": [keys.encode(digest) for digest in path],
        "salt": salt,
        "sample": content,
    }


def check_sample_proof(proof: Any, run_root: bytes, size: int) -> dict[str, Any]:
    """The sample of a proof, when it is in the tree of `size` leaves with this root. Raises SampleFault."""
    content: dict[str, Any]
    match proof:
        case {
            "schema": "cohort-sample/1",
            "run_root": str(stated_root),
            "index": int(index),
            "size": int(stated_size),
            "path": [*path],
            "salt": str(salt),
            "sample": dict(content),
            **more,
        } if not more and set(content) - {TOKENS} == set(CONTENT):
            pass
        case _:
            raise SampleFault(f"is not a sample with its proof ({SAMPLE_SCHEMA})")
    if (stated_root, stated_size) != (run_root.hex(), size):
        raise SampleFault("is of another run: its root is not the one of this card")
    try:
        hashes = [keys.decode(str(digest), HASH_BYTES) for digest in path]
    except ValueError as error:
        raise SampleFault(str(error)) from None
    if not verify_inclusion(sample_leaf(salt, content), index, size, hashes, run_root):
        raise SampleFault("is not in the run's tree as this card has it")
    return content
