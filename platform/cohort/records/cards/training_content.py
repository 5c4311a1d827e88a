"""A draft of the public summary of training content, on the template of the European Commission's AI Office: every part
filled from the record, "not applicable" with the reason, or "to be stated" by a person. HTML and JSON.

Article 53(1)(d) of Regulation (EU) 2024/1689; explanatory notice and template of 24 July 2025, C(2025) 8311 final of
5 December 2025. The headings are the template's; everything else is in this project's own words. Of a modification, the
summary covers the content of the modification alone (guidelines C(2025) 7719 final, points 57 to 63). It is a draft:
whether anybody owes a summary, and whether this one is enough, it does not say.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from django.template.loader import render_to_string

from cohort.records.answers import count
from cohort.records.cards.reading import Reading
from cohort.records.cards.topics import EU_CONTENT
from cohort.records.cards.training_content_types import Field, Section, Status, Summary
from cohort.records.schema_types import AUDIENCE_WORDS
from cohort.records.statements.questions import BY_FIELD

HTML_FILE = "sheets/training-content-summary.html"
JSON_FILE = "sheets/training-content-summary.json"


@dataclass(frozen=True)
class _Filler:
    """Fills fields from what a reading holds."""

    reading: Reading

    def of(self, heading: str, *paths: str, else_: str = "", lead: str = "") -> Field:
        """The texts of these fields of the record, the first ones that are filled; `else_`: what is to be stated."""
        held = [(path, self.reading.filled_entry(path)) for path in paths]
        filled = [(path, entry) for path, entry in held if entry is not None and entry["source"] != "not applicable"]
        if filled:
            text = "; ".join(str(entry["text"]) for _, entry in filled)
            marks = ", ".join(dict.fromkeys(str(entry["source"]) for _, entry in filled))
            names = [path for path, _ in filled]
            return _field(heading, "filled", f"{lead}{text}", names, marks)
        hidden = [(path, audience) for path in paths if (audience := self.reading.withheld(path)) is not None]
        if hidden:
            text = f"in the record for {AUDIENCE_WORDS[hidden[0][1]]}"  # type: ignore[index]
            return _field(heading, "withheld", text, [path for path, _ in hidden])
        return self.to_state(heading, else_, *paths)

    def to_state(self, heading: str, what: str, *paths: str) -> Field:
        question = next((path for path in paths if path in BY_FIELD), "")
        where = f"; asked as “{BY_FIELD[question].label}” on the page Statements" if question else ""
        text = f"to be stated by a person: {what or 'the record has nothing on it'}{where}"
        return _field(heading, "to be stated", text, question=question)

    def value(self, path: str, *keys: str) -> Any:
        return self.reading.value(path, *keys)


def _field(
    heading: str, status: Status, text: str, sources: list[str] | None = None, source: str = "", question: str = ""
) -> Field:
    return Field(heading=heading, status=status, text=text, sources=sources or [], source=source, question=question)


def _not_applicable(heading: str, why: str, *sources: str) -> Field:
    return _field(heading, "not applicable", why, list(sources))


def _text_alone(heading: str) -> Field:
    return _field(heading, "filled", "text: the trainer takes problems as text alone", ["data.prompts"], "config")


def _comments(filler: _Filler) -> Field:
    return filler.to_state("Additional comments", "optional")


def training_content(reading: Reading) -> Summary:
    """Of the record as this audience gets it."""
    filler, head, sheet = _Filler(reading), reading.head, EU_CONTENT
    return Summary(
        model=str(head["title"]),
        version=f"run {head['run']}, end {head['end']}, record version {head['version']}",
        last_update=str(head["sealed_at"]),
        seal=reading.seal,
        audience=reading.audience,
        covers=_covers(filler),
        template=sheet.source,
        read=sheet.read,
        dates=list(sheet.dates),
        sections=[
            Section(number=number, heading=heading, fields=list(fill(filler))) for number, heading, fill in _SECTIONS
        ],
    )


_MODIFIED = {
    "grpo": "one modification, by reinforcement learning, of",
    "sft": "one modification, by supervised fine-tuning, of",
    "distill": "one modification, by supervised fine-tuning on another model's answers, of",
    "reward_model": "the training of a reward model, which gives scores and no text, from",
    "sample": "a dataset that was sampled, without any training, from",
}


def _covers(filler: _Filler) -> str:
    base = filler.reading.text("subject.base_model") or "a base model that this copy does not name"
    return (
        f"The content of {_MODIFIED[filler.reading.kind]} this model: {base}. What the original was "
        "trained on is for its own provider's summary: a modifier's duties are those of the modification (Commission "
        "guidelines C(2025) 7719 final, points 57 to 63)."
    )


# ---------------------------------------------------------------------- 1. General information


def _provider(filler: _Filler) -> Iterator[Field]:
    yield filler.to_state("Provider name and contact details", "the record has no address of who provides the model")
    yield filler.to_state("Authorised representative", "name and contact, or that there is none")


def _model(filler: _Filler) -> Iterator[Field]:
    head = filler.reading.head
    name = f"{head['title']}, run {head['run']}, record version {head['version']}"
    weights = filler.reading.text("subject.trained_policy")
    yield _field(
        "Versioned model name(s)",
        "filled",
        f"{name}; trained policy: {weights}" if weights else name,
        ["subject.trained_policy"] if weights else [],
        "measured",
    )
    yield filler.of("Model dependencies", "subject.base_model", "subject.lineage", else_="what it was made from")
    yield filler.to_state("Date of placement of the model on the Union market", "the date, or that it is not placed")


RANGES = ((1e9, "less than 1 billion tokens"), (1e13, "1 billion to 10 trillion tokens"))


def size_range(tokens: float) -> str:
    """The template's range."""
    return next((words for most, words in RANGES if tokens < most), "more than 10 trillion tokens")


def _modalities(filler: _Filler) -> Iterator[Field]:
    tokens, problems = filler.value("budget.tokens", "tokens"), filler.value("data.prompts", "problems")
    if isinstance(tokens, int | float):
        of = f", prompts from {count(problems)} problems" if isinstance(problems, int | float) else ""
        text = f"{size_range(tokens)}: {filler.reading.text('budget.tokens')}{of}"
        yield _field("Text: training data size", "filled", text, ["budget.tokens", "data.prompts"], "measured")
    else:
        yield filler.of("Text: training data size", "data.prompts", else_="how many tokens were trained on")
    yield filler.of("Text: types of content", "reward.domain", else_="which kinds of text the problems are")
    for modality in ("Image", "Audio", "Video", "Other"):
        yield _not_applicable(modality, "the trainer takes problems and gives completions as text alone")
    yield filler.to_state(
        "Latest date of data acquisition or collection",
        "of the problems; the completions trained on were sampled during the run"
        if filler.reading.kind == "grpo"
        else "of the rows of the file",
        "data.provenance",
    )
    yield _not_applicable(
        "Whether the model is trained continuously on new data after that date", "the run has ended and was sealed"
    )
    languages = filler.value("data.prompts", "languages")
    if isinstance(languages, list) and languages:
        text = ", ".join(map(str, languages))
        yield _field("Linguistic characteristics", "filled", text, ["data.prompts"], "measured")
    else:
        yield filler.to_state("Linguistic characteristics", "languages are not measured of the problems", "data.choice")
    yield filler.of("Other relevant characteristics", "data.prompts", "data.selection")
    yield filler.of("Additional comments", "data.choice", else_="optional")


# ---------------------------------------------------------------------- 2. List of data sources


def _public_datasets(filler: _Filler) -> Iterator[Field]:
    hub, sha256 = filler.value("data.prompts", "hub"), filler.value("data.prompts", "sha256")
    if isinstance(hub, dict):
        path = filler.value("data.prompts", "path")
        text = f"yes: {path} on the Hugging Face Hub, at commit {hub.get('revision')}, split {hub.get('split')}"
        yield _field("Publicly available datasets used", "filled", text, ["data.prompts"], "measured")
    else:
        yield filler.of(
            "Publicly available datasets used",
            "data.provenance",
            else_="whether the file of problems is publicly available",
            lead="as stated of the file of problems: ",
        )
    yield filler.of("Modality of the content", "data.prompts", lead="text: ")
    what = f"the file of problems, sha256 {sha256}" if sha256 else "the file of problems"
    yield filler.of("List of large publicly available datasets", "data.provenance", else_=f"name and address of {what}")
    yield filler.to_state(
        "General description of other publicly available datasets", "of those that are not large", "data.provenance"
    )
    yield _comments(filler)


def _licensed(filler: _Filler) -> Iterator[Field]:
    yield filler.to_state(
        "Commercial licensing agreements with rightsholders or their representatives",
        "a file of problems does not say under which agreement it came",
        "data.provenance",
    )
    yield _text_alone("Modality of the licensed content")


def _other_private(filler: _Filler) -> Iterator[Field]:
    yield filler.to_state(
        "Private datasets obtained from other third parties",
        "whether the problems came from one, and which",
        "data.provenance",
    )
    yield _text_alone("Modality of the private content")
    yield filler.to_state("List of publicly known private datasets", "their names", "data.provenance")
    yield filler.to_state(
        "General description of private datasets that are not publicly known", "of such", "data.provenance"
    )
    yield _comments(filler)


def _crawled(filler: _Filler) -> Iterator[Field]:
    samples = " of problems and sampled completions of them" if filler.reading.kind in ("grpo", "sample") else ""
    why = f"this run crawled nothing: it was given a file{samples}"
    yield _not_applicable("Crawlers used", why, "data.prompts", "method.sampling")
    for heading in (
        "Names or identifiers of the crawlers",
        "Purposes of the crawlers",
        "General description of the crawlers' behaviour",
        "Period of data collection",
        "Type of content and online sources crawled",
        "Modality of the crawled content",
        "Summary of the most relevant domain names",
    ):
        yield _not_applicable(heading, why, "data.prompts", "method.sampling")
    yield filler.to_state(
        "Additional comments", "optional; whether whoever made the file of problems crawled", "data.provenance"
    )


def _user_data(filler: _Filler) -> Iterator[Field]:
    why = "whether the problems came from users"
    yield filler.to_state("Data from users' interactions with the model", why, "data.provenance")
    yield filler.to_state("Data from users' interactions with other services", why, "data.provenance")
    yield filler.to_state("Services or products that the user data came from", "where there are any", "data.provenance")
    yield _text_alone("Modality of the user data")
    yield _comments(filler)


def _synthetic(filler: _Filler) -> Iterator[Field]:
    kind = filler.reading.kind
    if kind in ("sft", "reward_model"):
        what = "whether the conversations or preferences that were learned from were generated, and by what"
        yield filler.to_state("Synthetic data generated by AI models used", what, "data.provenance")
        yield _text_alone("Modality of the synthetic data")
    else:
        yield _generated(filler, kind)
        yield _field("Modality of the synthetic data", "filled", "text", ["method.sampling"], "config")
    yield filler.to_state(
        "General-purpose AI models on the market that generated it",
        "whether the base model, or one that the problems were made with, is on the Union market",
        "data.provenance",
    )
    heading = "Other AI models that generated it"
    if kind == "distill":
        yield filler.of(heading, "stage.teacher", lead="the teacher: ")
    elif kind in ("sft", "reward_model"):
        yield filler.to_state(heading, "where there are any", "data.provenance")
    else:
        lead = "the policy in training, which began as the base model: " if kind == "grpo" else "the model: "
        yield filler.of(heading, "subject.old_policy", "subject.base_model", lead=lead)
    if kind in ("grpo", "sample"):
        yield filler.of(
            "Additional comments", "reward.rule_or_model", else_="whether a model scored", lead="what scored it: "
        )
    else:
        yield _comments(filler)


def _generated(filler: _Filler, kind: str) -> Field:
    completions = filler.value("budget.tokens", "completions")
    many = f"{count(completions)} " if isinstance(completions, int | float) else ""
    text = {
        "grpo": f"yes: {many}completions that the model itself sampled while it was trained, each scored by the reward",
        "sample": f"yes: {many}completions that the model sampled, each scored by the reward; nothing was trained",
        "distill": "yes: the answers that were learned from, which another model sampled",
    }[kind]
    sources = ["stage.teacher"] if kind == "distill" else ["budget.tokens", "method.sampling"]
    return _field("Synthetic data generated by AI models used", "filled", text, sources, "measured")


def _other_sources(filler: _Filler) -> Iterator[Field]:
    headings = ("Other sources of data used", "Description of these sources and their data")
    if filler.reading.kind in ("grpo", "sample"):
        yield filler.of(headings[0], "reward.source", lead="the reward, which is not text: ")
        yield filler.of(headings[1], "reward.verifier", else_="what the reward was made from")
    else:
        for heading in headings:
            yield _not_applicable(heading, "no reward was learned from", "reward.source")
    yield _comments(filler)


# ---------------------------------------------------------------------- 3. Data processing aspects


def _reservations(filler: _Filler) -> Iterator[Field]:
    yield filler.to_state("Signatory of the code of practice", "whether the provider signed it")
    yield filler.to_state(
        "Measures to respect reservations of rights from text and data mining",
        "a policy on copyright is owed of a modification too",
        "data.provenance",
    )
    yield _comments(filler)


def _illegal(filler: _Filler) -> Iterator[Field]:
    yield filler.to_state(
        "Measures to avoid or remove illegal content", "what was done with the problems", "data.choice"
    )


def _other(filler: _Filler) -> Iterator[Field]:
    yield filler.of("Problems dropped", "rejected.problems")
    yield filler.of("Overlap with evaluations", "data.decontamination", else_="optional")
    yield filler.of("Completions discarded", "rejected.samples")


_SECTIONS: tuple[tuple[str, str, Callable[[_Filler], Iterator[Field]]], ...] = (
    ("1.1", "Provider identification", _provider),
    ("1.2", "Model identification", _model),
    ("1.3", "Modalities, overall training data size and other characteristics", _modalities),
    ("2.1", "Publicly available datasets", _public_datasets),
    ("2.2.1", "Private datasets commercially licensed by rightsholders or their representatives", _licensed),
    ("2.2.2", "Private datasets obtained from other third parties", _other_private),
    ("2.3", "Data crawled and scraped from online sources", _crawled),
    ("2.4", "User data", _user_data),
    ("2.5", "Synthetic data", _synthetic),
    ("2.6", "Other sources of data", _other_sources),
    ("3.1", "Respect of reservation of rights from text and data mining exception or limitation", _reservations),
    ("3.2", "Removal of illegal content", _illegal),
    ("3.3", "Other information", _other),
)


# ---------------------------------------------------------------------- files


def summary_json(reading: Reading) -> bytes:
    return training_content(reading).model_dump_json(indent=2).encode() + b"\n"


def summary_html(reading: Reading) -> bytes:
    """A page of its own, without script and without any reference to elsewhere."""
    return render_to_string("cards/training_content.html", {"summary": training_content(reading)}).encode()
