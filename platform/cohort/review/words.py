"""The full-text search of a run's completions: what a search text asks for, and which samples have it.

A word is a run of letters and digits, an ideograph, or a symbol beyond ASCII. Samples that have all words come from an
index of hashes of words (`cohort.review.word_index` fills it); what is more than a word, a phrase, is then looked for
in their texts. Case, width and characters that nobody sees do not count. Reads only.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Any, Self

from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.db.models import F, Min, QuerySet
from django.db.models.expressions import RawSQL
from django.db.models.functions import Coalesce

from cohort.review.models import Group, Sample
from cohort.runs.models import Attempt, Run
from grpo_core.text import UNSEEN

MOST_CHARACTERS = 200
"""Of a search text."""
MOST_SAMPLES = 5_000
"""That one search finds."""
MANY = 12_000
"""Samples with the words that are read from the index; of more, samples are looked at one by one."""
FIRST_LOOK = 2_000
"""Samples that are looked at one by one before the index is asked."""
OFTEN = 40
"""Of these, with the words: where more have them, the index is not asked."""
MOST_LOOKED_AT = 50_000
"""Samples that one search looks at one by one."""
MOST_READ = 1_500
"""Texts in which one search looks for phrases."""
MOST_TEXT = 10_000_000
"""Characters of them."""
HELP = 'Words that must all occur; "words in quotes" as they are written; -word must not occur.'

_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Written without spaces, so that each is a word."""
_WORD = re.compile(rf"[{_IDEOGRAPHS}]|[^\W{_IDEOGRAPHS}]+|[^\s\w\x00-\x7f]")
_TERM = re.compile(r'(-?)(?:"([^"]*)"?|([^\s"]+))')
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_AT_ONCE = 500
_BLANK_BRAILLE = "\u2800"


def _seen(match: re.Match[str]) -> str:
    """What stands for an unseen character: those that leave a gap are spaces, and ASCII parts words as it is."""
    character = match[0]
    return character if character.isascii() else " " if character.isspace() or character == _BLANK_BRAILLE else ""


def folded(text: str) -> str:
    """As it is compared: without case, terminal colours, and characters that nobody sees."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if not text.isascii():
        text = UNSEEN.sub(_seen, unicodedata.normalize("NFKC", text))
    return text.casefold()


def words_of(text: str) -> set[str]:
    """Distinct words of a folded text."""
    return set(_WORD.findall(text))


@lru_cache(maxsize=1 << 17)
def _hash(word: str) -> int:
    """Not negative; 63 bits, so that no two words of any run share it in practice."""
    return int.from_bytes(blake2b(word.encode(), digest_size=8).digest()) >> 1


def hashes(run_id: int, words: Iterable[str]) -> list[int]:
    """What `SampleWords.words` holds."""
    return [-run_id, *map(_hash, words)]


@dataclass(frozen=True)
class Term:
    """A word or a phrase that is looked for."""

    text: str
    """Folded."""
    words: frozenset[str]

    @property
    def is_word(self) -> bool:
        return self.words == {self.text}

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        pattern = r"\s+".join(map(re.escape, self.text.split()))
        before = r"(?<!\w)" if _bounded(self.text[0]) else ""
        return re.compile(before + pattern + (r"(?!\w)" if _bounded(self.text[-1]) else ""))

    def occurs(self, text: str) -> bool:
        """In a folded text, and not as a part of longer words."""
        return self._pattern.search(text) is not None


def _bounded(character: str) -> bool:
    return re.fullmatch(rf"[^\W{_IDEOGRAPHS}]", character) is not None


@dataclass(frozen=True)
class TextQuery:
    required: tuple[Term, ...]
    excluded: tuple[Term, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValidationError."""
        if len(text) > MOST_CHARACTERS:
            raise ValidationError(f"A search has at most {MOST_CHARACTERS} characters; this one has {len(text):,}.")
        terms: tuple[list[Term], list[Term]] = ([], [])
        for minus, quoted, plain in _TERM.findall(text):
            words = folded(quoted or plain).strip()
            if words:
                term = Term(words, frozenset(words_of(words)))
                if not term.words:
                    raise ValidationError(f"{quoted or plain!r} has no word: nothing but ASCII signs cannot be found.")
                terms[bool(minus)].append(term)
        if not any(terms):
            raise ValidationError(f"Nothing to search for. {HELP}")
        return cls(*map(tuple, terms))

    @property
    def phrases(self) -> bool:
        """Whether texts have to be read: words alone do not decide."""
        return not all(term.is_word for term in self.required + self.excluded)

    def fits(self, completion: str) -> bool:
        text = folded(completion)
        required = all(term.is_word or term.occurs(text) for term in self.required)
        return required and not any(not term.is_word and term.occurs(text) for term in self.excluded)

    def required_hashes(self, run_id: int) -> list[int]:
        """Of the words that `SampleWords.words` must have."""
        return hashes(run_id, sorted({word for term in self.required for word in term.words}))

    @property
    def excluded_hashes(self) -> list[int]:
        """Of those that it must not have. An excluded phrase excludes none of its words."""
        return [_hash(term.text) for term in self.excluded if term.is_word]


@dataclass(frozen=True)
class TextMatches:
    rows: QuerySet[Any]
    """Samples that fit, MOST_SAMPLES at most."""
    through: int | None
    """Where not all could be looked at: the step that was reached. Later steps are looked at by a filter of steps."""
    since: int | None = None
    """Where looking began later than at the first of `rows`: the step. Earlier ones may have samples that fit."""


@dataclass(frozen=True)
class _Walk:
    """Samples that were looked at one by one, in order of steps."""

    fitting: list[tuple[int, int]]
    """(id, step) of those that have the words, one more than wanted at most."""
    through: int | None
    """The step at which the walk ended before the samples did."""


def text_matches(rows: QuerySet[Any], run: Run, query: TextQuery) -> TextMatches:
    """Those of `rows`, samples of the run, whose completion fits: the earliest MOST_SAMPLES by step; phrases are looked
    for in the earliest MOST_READ that have their words.

    The index answers for words that few samples have, however many samples there are. What it costs grows with how many
    have them, so that the first samples are looked at one by one: where many of these have the words, it goes on like
    that, for MOST_LOOKED_AT.
    """
    most, since = MOST_READ if query.phrases else MOST_SAMPLES, None
    walk = _walked(rows, run, query, FIRST_LOOK, most)
    if walk.through is not None and len(walk.fitting) <= most:
        if _is_frequent(rows, run, query, walk):
            walk = _walked(rows, run, query, MOST_LOOKED_AT, most)
        elif len(indexed := _with_words(run, query)) <= MANY:
            having = rows.filter(pk__in=_rows_of([pk for pk, fits in indexed if fits]))
            walk = _Walk(list(having.order_by("step", "pk").values_list("pk", "step")[: most + 1]), None)
        else:
            first = rows.filter(pk__in=_rows_of([pk for pk, fits in indexed if fits][:FIRST_LOOK]))
            since = first.aggregate(step=Min("step"))["step"]
            later = rows if since is None else rows.filter(step__gte=since)
            walk = _walked(later, run, query, MOST_LOOKED_AT, most)
    through = walk.through
    if len(walk.fitting) > most:
        through = walk.fitting[most - 1][1]
    ids = [pk for pk, _ in walk.fitting[:most]]
    if query.phrases:
        ids, looked_at = _with_phrases(ids, query)
        through = walk.fitting[looked_at - 1][1] if looked_at < len(walk.fitting) else through
    return TextMatches(rows.filter(pk__in=_rows_of(ids)), through, since if through is not None else None)


def _is_frequent(rows: QuerySet[Any], run: Run, query: TextQuery, walk: _Walk) -> bool:
    """Whether many of the first samples have the required words; the index knows nothing of excluded ones."""
    if query.excluded and len(walk.fitting) <= OFTEN:
        walk = _walked(rows, run, replace(query, excluded=()), FIRST_LOOK, OFTEN)
    return len(walk.fitting) > OFTEN


def _rows_of(ids: list[int]) -> RawSQL:
    return RawSQL("SELECT unnest(%s::bigint[])", [ids])


def _walked(rows: QuerySet[Any], run: Run, query: TextQuery, look_at: int, most: int) -> _Walk:
    """The earliest `look_at` of the rows, no further than to one more than `most` that have the words."""
    ordered = rows.order_by("step", "pk")
    looked_at, values = ordered.values_list("pk", "step")[:look_at].query.sql_with_params()
    # Asked of each row by itself, so that the planner cannot begin at the index of words.
    statement = f"""
        SELECT id, step FROM ({looked_at}) AS looked_at (id, step)
        WHERE (SELECT words @> %s::bigint[] AND NOT words && %s::bigint[] FROM review_samplewords WHERE sample_id = id)
        ORDER BY step, id LIMIT {most + 1}
    """
    with connection.cursor() as cursor:
        cursor.execute(statement, [*values, query.required_hashes(run.pk), query.excluded_hashes])
        fitting = cursor.fetchall()
    if len(fitting) > most:
        return _Walk(fitting, fitting[-1][1])
    return _Walk(fitting, next(iter(ordered.values_list("step", flat=True)[look_at - 1 : look_at]), None))


_INDEXED = """
    SELECT sample_id, NOT words && %s::bigint[] FROM review_samplewords WHERE words @> %s::bigint[] LIMIT %s
"""


def _with_words(run: Run, query: TextQuery) -> list[tuple[int, bool]]:
    """(id, whether it has none of the excluded words) of samples of the run, current or not, that have the required
    ones: MANY and one more at most, in no order."""
    with transaction.atomic(), connection.cursor() as cursor:
        # Where each word is frequent the planner expects to have enough of them soon; of words that never meet it would
        # read the whole table. With little memory it forgets which samples of a page had them and reads all.
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute("SET LOCAL work_mem = '64MB'")
        cursor.execute(_INDEXED, [query.excluded_hashes, query.required_hashes(run.pk), MANY + 1])
        ids: list[tuple[int, bool]] = cursor.fetchall()
        cursor.execute("SET LOCAL enable_seqscan TO DEFAULT")
        cursor.execute("SET LOCAL work_mem TO DEFAULT")
    return ids


def _with_phrases(ids: list[int], query: TextQuery) -> tuple[list[int], int]:
    """(those whose text fits, how many were looked at before the texts were too long)."""
    fitting: list[int] = []
    looked_at = characters = 0
    while looked_at < len(ids) and characters < MOST_TEXT:
        batch = ids[looked_at : looked_at + _AT_ONCE]
        texts = dict(Sample.objects.filter(pk__in=batch).values_list("pk", "completion"))
        fitting += [pk for pk in batch if query.fits(texts[pk])]
        looked_at += len(batch)
        characters += sum(map(len, texts.values()))
    return fitting, looked_at


def unindexed_from(run: Run) -> int | None:
    """The first step whose samples a search does not see yet; None where it sees all that is stored."""
    indexed = Coalesce("words_position__seq", 0)
    waiting = Attempt.objects.filter(run=run).annotate(indexed=indexed).filter(acked_seq__gt=F("indexed"))
    steps = [
        Group.objects.filter(attempt=attempt, seq__gt=seq).order_by("seq").values_list("step", flat=True).first()
        for attempt, seq in waiting.values_list("pk", "indexed")
    ]
    return min((step for step in steps if step is not None), default=None)
