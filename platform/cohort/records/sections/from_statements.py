"""What a person stated, as an answer of the record."""

from typing import Any, cast

from cohort.records.answers import moment, not_stated
from cohort.records.models import Statement
from cohort.records.schema_types import Answer, Audience
from cohort.records.statements.questions import BY_FIELD

ASKED = "Only a person can say this; nobody has yet."


def statement_answer(statement: Statement, *, value: Any = None, text: str = "", note: str = "") -> Answer:
    """`value` and `text` override those of the statement."""
    when = f"Stated {moment(statement.at)}." + _standing(statement)
    return Answer(
        value=statement.value if value is None else value,
        text=text or statement.text,
        source=f"stated by {statement.by.username}",
        evidence="stated",
        note=f"{note} {when}".strip(),
        audience=cast("Audience", statement.audience),
    )


def _standing(statement: Statement) -> str:
    kept = statement.standing
    if kept is None:
        return ""
    return f" It is the project's standing answer, kept by {kept.by.username} since {moment(kept.at)}."


def statement_text(statement: Statement) -> str:
    return f"{statement.by.username} stated on {moment(statement.at)}: {statement.text}"


def given(statement: Statement) -> dict[str, Any]:
    """The statement's value for machines."""
    return dict(statement.value or {})


def stated_or_asked(statements: dict[str, Statement], field: str) -> Answer:
    """The field as a person stated it, else not stated."""
    if (statement := statements.get(field)) is not None:
        return statement_answer(statement)
    question = BY_FIELD[field]
    return not_stated(f"Asked of every run; nobody has answered. {question.why}" if question.required else ASKED)
