"""sheets/*.md: topics of external documentation forms and the record fields that cover them. Rows show the field's
text or "not stated" and do not judge whether it is enough."""

from collections.abc import Sequence

from cohort.records.cards.asked import EU_FORM, NIST_RMF, Asked
from cohort.records.cards.markdown import escape
from cohort.records.cards.reading import Reading
from cohort.records.fields import field_facts

EU_FILE = "sheets/eu-documentation-form.md"
NIST_FILE = "sheets/nist-ai-rmf.md"
_TEXT = 600
"""Characters of a field; record.json has all of it."""

_CAUTION = (
    "This sheet says which fields of the record speak to what {who} asks for, and what stands in them. It quotes no "
    "law and no standard: the topics are put in this project's own words and may miss what the text means. It judges "
    "nothing. Whether an answer is enough, true or owed at all is for the reader to decide, with the text at hand."
)


def eu_sheet(reading: Reading) -> bytes:
    return _sheet(
        reading,
        "What the EU's model documentation form asks, and what is found here",
        "the documentation form for providers of general-purpose AI models in the EU",
        EU_FORM,
    )


def nist_sheet(reading: Reading) -> bytes:
    return _sheet(
        reading,
        "What NIST's AI Risk Management Framework asks, and what is found here",
        "NIST's AI Risk Management Framework",
        NIST_RMF,
    )


def _sheet(reading: Reading, title: str, who: str, rows: Sequence[Asked]) -> bytes:
    answered = sum(any(reading.text(path) for path in topic.fields) for topic in rows)
    lines = [
        f"# {title}",
        "",
        _CAUTION.format(who=who),
        "",
        f"Record of {escape(reading.head['title'])}, run {reading.head['run']}; seal `{reading.seal}`. "
        f"This copy is for: {reading.audience}. {answered} of {len(rows)} topics find something here.",
        "",
        "| Asked (part: topic) | Found here |",
        "| --- | --- |",
        *(f"| {escape(topic.item)} | {_cell(reading, topic)} |" for topic in rows),
        "",
    ]
    return "\n".join(lines).encode()


def _cell(reading: Reading, topic: Asked) -> str:
    if not topic.fields:
        return "not stated (the record of a training run has no such field)"
    return "<br>".join(_answer(reading, path) for path in topic.fields)


def _answer(reading: Reading, path: str) -> str:
    label = f"**{escape(field_facts(path).label)}** (`{path}`)"
    if (audience := reading.withheld(path)) is not None:
        return f"{label}: in the card for {audience}"
    text = reading.text(path)
    if text is None:
        return f"{label}: not stated"
    entry = reading.filled_entry(path)
    assert entry is not None
    cut = text if len(text) <= _TEXT else f"{text[:_TEXT]}… (cut; whole in record.json)"
    return f"{label}: {escape(cut)} ({escape(entry['source'])})"
