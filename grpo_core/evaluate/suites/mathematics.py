"""GSM8K (Cobbe et al. 2021, arXiv 2110.14168) and MGSM (Shi et al. 2022, arXiv 2210.03057) as suite items."""

import io
import re
from collections.abc import Iterator, Sequence

from grpo_core.data.loaders import scan_problems
from grpo_core.errors import DataError
from grpo_core.evaluate.item import SuiteItem
from grpo_core.evaluate.suites.tables import tsv_rows
from grpo_core.rewards.kinds.numeric import parse_number

LANGUAGES = ("bn", "de", "en", "es", "fr", "ja", "ru", "sw", "te", "th", "zh")
"""MGSM's eleven."""

_MGSM_NAME = re.compile(r"(?:.*[_/\\-])?([a-z]{2})\.tsv", re.IGNORECASE)


def gsm8k(files: Sequence[tuple[str, bytes]]) -> Iterator[SuiteItem]:
    """One item a problem; the worked solution is kept in `solution`."""
    for name, content in files:
        for problem in scan_problems(io.BytesIO(content), "gsm8k", source=name):
            number = problem.id.removeprefix("line-")
            yield SuiteItem(id=f"gsm8k-{number}", prompt=problem.prompt, target=problem.answer, meta=problem.meta)


def mgsm(files: Sequence[tuple[str, bytes]]) -> Iterator[SuiteItem]:
    """The same problem in several languages is one cluster; the language is the slice. Problem by problem, so that the
    first so many items are whole clusters. Raises DataError when the files do not hold the same problems: the answers
    of one line must be equal."""
    tables: dict[str, list[tuple[str, str]]] = {}
    for name, content in files:
        match = _MGSM_NAME.fullmatch(name)
        language = match[1].lower() if match else ""
        if language not in LANGUAGES:
            raise DataError(
                f"{name}: the file's name does not give its language; expected mgsm_<language>.tsv with one of "
                f"{', '.join(LANGUAGES)}"
            )
        if language in tables:
            raise DataError(f"{name}: the language {language} was given twice")
        rows = []
        for line, (question, answer) in tsv_rows(name, content, columns=2):
            if not question.strip() or not answer.strip():
                line.fail("has an empty question or an empty answer")
            if parse_number(answer) is None:
                line.fail(f"the answer is {answer.strip()!r}; expected a number")
            rows.append((question, answer.strip()))
        tables[language] = rows
    first = next(iter(tables))
    for language, rows in tables.items():
        if len(rows) != len(tables[first]):
            raise DataError(
                f"{language} has {len(rows)} problems and {first} {len(tables[first])}; all languages must have the "
                "same problems in the same order"
            )
    for index in range(len(tables[first])):
        for language, rows in tables.items():
            question, answer = rows[index]
            if parse_number(answer) != parse_number(tables[first][index][1]):
                raise DataError(
                    f"line {index + 1}: the answer is {answer} in {language} and {tables[first][index][1]} in {first}; "
                    "all languages must have the same problems in the same order"
                )
            yield SuiteItem(
                id=f"mgsm-{language}-{index + 1}",
                prompt=question,
                target=answer,
                cluster=f"mgsm-{index + 1}",
                slice=language,
            )
