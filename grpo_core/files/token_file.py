"""The token arrays of one step: a Parquet file of one row a sample, described in docs/tokens.md. One definition for
the trainer that writes it and for the platform that checks, redacts and shows it. Loads no torch.

Token ids are the completion's text. So each row has its own salt, and the sample's leaf in the run's tree holds the
digest of the row (`row_digest`), not the file's: a row can be deleted with its text, and every other one still be
checked. Without its salt nobody can find out what a deleted row was, not even by guessing.
"""

import hashlib
import math
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from grpo_core.errors import GrpoError
from grpo_core.files.disk import fsync, raise_when_full
from grpo_core.records.leaves import SALT_BYTES

SCHEMA = "cohort-tokens/1"
_METADATA = b"cohort_schema"
_NOT_A_NUMBER = float("nan")


@dataclass(frozen=True)
class Column:
    """One array of a sample, a value for each completion token."""

    kind: Literal["id", "text", "float", "flag"]
    title: str
    words: str


COLUMNS: Mapping[str, Column] = {
    "token_id": Column("id", "Token id", "the tokenizer's id"),
    "piece": Column("text", "Text", "the token's text; a byte that is no UTF-8 by itself is written as <0xNN>"),
    "policy_logprob": Column("float", "Log-prob, policy", "log π at the last update that saw the token, before it"),
    "old_logprob": Column("float", "Log-prob, old policy", "log π before the step's first update"),
    "reference_logprob": Column("float", "Log-prob, reference", "log π of the KL penalty's reference"),
    "sampler_logprob": Column("float", "Log-prob, sampler", "log π as the sampler had it when it drew the token"),
    "entropy": Column("float", "Entropy", "of the policy's distribution at the token, nats"),
    "ratio": Column("float", "Ratio", "exp(policy − old log-prob), of the token alone; to the sampler's with DPPO"),
    "clipped": Column("flag", "Clipped", "the loss's clip held the token back at the last update that saw it"),
    "in_loss": Column("flag", "In the loss", "false: masked, so in no sum"),
    "advantage": Column("float", "Advantage", "as the loss multiplied it"),
    "value": Column("float", "Value", "the critic's prediction before the update"),
    "step_reward": Column("float", "Step reward", "weighted reward of the reasoning step that ends at the token"),
}
"""In the order of the file. A column that a run does not have is not in its files; of a sample that lacks it, it is
null."""

BYTES_PER_TOKEN = {"id": 4, "text": 6, "float": 4, "flag": 0.125}
"""Before compression; of a text on average, with its length."""


class TokenFileError(GrpoError):
    """The file is not one of token arrays, or not the one that was announced."""

    code = "token_file"


@dataclass(frozen=True)
class TokenRow:
    """The arrays of one sample."""

    group: int
    sample: int
    salt: bytes
    columns: Mapping[str, Sequence[Any]]
    """Of `COLUMNS`; a step_reward is None where no step ends."""

    @property
    def digest(self) -> str:
        """What the sample's leaf holds, as hex."""
        return row_digest(self.salt, self.columns)


def row_digest(salt: bytes, columns: Mapping[str, Sequence[Any]]) -> str:
    """SHA-256(salt ‖ for each column, by name: name ‖ 0x00 ‖ count as uint64 ‖ its values), as hex.

    Values little-endian: ids int64, floats float32 with the quiet NaN 0x7fc00000 for null, flags one byte, texts their
    length in bytes as uint32 and their UTF-8.
    """
    if len(salt) != SALT_BYTES:
        raise ValueError(f"a salt has {SALT_BYTES} bytes, not {len(salt)}")
    digest = hashlib.sha256(salt)
    for name in sorted(columns):
        digest.update(name.encode() + b"\x00" + len(columns[name]).to_bytes(8, "little"))
        digest.update(_packed(COLUMNS[name].kind, columns[name]))
    return digest.hexdigest()


def _packed(kind: str, values: Sequence[Any]) -> bytes:
    match kind:
        case "id":
            return _little("q", values)
        case "flag":
            return bytes(values)
        case "float":
            return _little("f", [_NOT_A_NUMBER if value is None else value for value in values])
        case _:
            texts = [value.encode() for value in values]
            return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def _little(code: str, values: Iterable[Any]) -> bytes:
    numbers = array(code, values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def estimated_bytes(columns: Iterable[str], tokens: int) -> int:
    """Of so many tokens in a file, before compression."""
    return math.ceil(sum(BYTES_PER_TOKEN[COLUMNS[name].kind] for name in columns) * tokens)


# ---------------------------------------------------------------------- writing


def write_rows(sink: IO[bytes], rows: Sequence[TokenRow]) -> None:
    """The file of these rows, one row group each, so that one is read without the others."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [name for name in COLUMNS if any(name in row.columns for row in rows)]
    schema = _schema(pa, names)
    data = {
        "group": [row.group for row in rows],
        "sample": [row.sample for row in rows],
        "salt": [row.salt for row in rows],
        **{name: [row.columns.get(name) for row in rows] for name in names},
    }
    table = pa.table(data, schema=schema)
    pq.write_table(table, sink, compression="zstd", row_group_size=1, use_dictionary=False, write_statistics=False)


def write_file(path: Path, rows: Sequence[TokenRow]) -> tuple[int, str]:
    """Write the file whole and durably; its size and SHA-256. Raises DiskFullError."""
    temporary = path.with_name(path.name + ".tmp")
    with raise_when_full(path.parent, path.name):
        path.parent.mkdir(exist_ok=True)
        with temporary.open("wb") as handle:
            write_rows(handle, rows)
        fsync(temporary)
        content = temporary.read_bytes()
        temporary.replace(path)
        fsync(path.parent)
    return len(content), hashlib.sha256(content).hexdigest()


def _schema(pa: Any, names: Iterable[str]) -> Any:
    kinds = {"id": pa.int64(), "text": pa.string(), "float": pa.float32(), "flag": pa.bool_()}
    fixed = [pa.field("group", pa.int64()), pa.field("sample", pa.int64()), pa.field("salt", pa.binary(SALT_BYTES))]
    lists = [pa.field(name, pa.list_(kinds[COLUMNS[name].kind])) for name in names]
    return pa.schema([*fixed, *lists], metadata={_METADATA: SCHEMA.encode()})


# ---------------------------------------------------------------------- reading


class TokenFile:
    """A file opened for reading. Nothing in it is trusted: raises TokenFileError for whatever is not as announced."""

    def __init__(self, source: IO[bytes]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._errors = (pa.ArrowException, OSError, ValueError, MemoryError)
        try:
            self._file = pq.ParquetFile(source)
            schema = self._file.schema_arrow
        except self._errors as error:
            raise TokenFileError(f"is not a Parquet file that can be read: {error}") from None
        self._names = [name for name in schema.names if name in COLUMNS]
        expected = _schema(pa, self._names)
        metadata = schema.metadata or {}
        if metadata.get(_METADATA) != SCHEMA.encode() or not schema.equals(expected):
            raise TokenFileError(f"its columns are not those of {SCHEMA}")
        self.rows = self._file.metadata.num_row_groups

    def row(self, number: int, *, most_tokens: int) -> TokenRow:
        """Row `number` from 0, with at most so many tokens."""
        if not 0 <= number < self.rows:
            raise TokenFileError(f"has {self.rows} rows and no row {number}")
        group = self._file.metadata.row_group(number)
        most_bytes = 4096 + 64 * len(COLUMNS) + 64 * len(COLUMNS) * most_tokens
        if group.num_rows != 1 or group.total_byte_size > most_bytes:
            raise TokenFileError(f"row {number} is larger than {most_tokens} tokens can be")
        try:
            values = self._file.read_row_group(number).to_pylist()[0]
        except (*self._errors, IndexError) as error:
            raise TokenFileError(f"row {number} cannot be read: {error}") from None
        columns = {name: values[name] for name in self._names if values[name] is not None}
        if not columns.get("token_id") or {len(column) for column in columns.values()} != {len(columns["token_id"])}:
            raise TokenFileError(f"row {number} has no tokens, or arrays of different lengths")
        if len(columns["token_id"]) > most_tokens:
            raise TokenFileError(f"row {number} has {len(columns['token_id'])} tokens, not {most_tokens}")
        holes = [name for name in columns if name != "step_reward" and None in columns[name]]
        if holes or values["salt"] is None or values["group"] is None or values["sample"] is None:
            raise TokenFileError(f"row {number} has holes in {', '.join(holes) or 'its key'}")
        return TokenRow(values["group"], values["sample"], values["salt"], columns)
