"""The section about the problems: what was trained on, what was held out, and their overlap."""

from typing import Any

from cohort.evidence.canonical import dig
from cohort.records.answers import (
    count,
    declared,
    measured,
    not_applicable,
    not_evaluated,
    not_stated,
    number,
    of,
    plain,
    short,
    stated,
)
from cohort.records.facts import Facts
from cohort.records.fields import Data
from cohort.records.schema_types import Answer
from cohort.records.sections.from_statements import stated_or_asked, statement_answer
from cohort.records.sections.subject import NO_MANIFEST
from grpo_core.config.kinds import ScoredConfig
from grpo_core.data.containers import TITLES as CONTAINERS
from grpo_core.data.layouts import LAYOUTS

_READ_WHERE_GIVEN = {("id", "id"), ("system", "system")}
"""(role, field) that every layout reads in the rows that have the field."""


def data(facts: Facts) -> Data:
    train = dig(facts.manifest, "data", "train")
    return Data(
        prompts=_prompts(facts, train),
        example=_example(train),
        selection=_selection(facts),
        choice=stated_or_asked(facts.statements, "data.choice"),
        provenance=_provenance(facts),
        heldout=_heldout(facts),
        decontamination=_decontamination(facts),
    )


def _prompts(facts: Facts, train: dict[str, Any] | None) -> Answer:
    dataset = facts.run.dataset
    what = _ROWS[dataset.content]
    if train is None:
        return measured(
            {"dataset": dataset.name, "sha256": dataset.sha256, "problems": dataset.problems},
            f"{dataset.name}: {count(dataset.problems)} {what} in the file, {short(dataset.sha256)}",
            note=NO_MANIFEST,
        )
    value = {"dataset": dataset.name, **{name: fact for name, fact in train.items() if name != "prompt_example"}}
    if not isinstance(facts.config, ScoredConfig):
        sampled = dataset.sampled_by
        by = f", sampled by run {sampled.pk}, {sampled.name}" if sampled is not None else ""
        return measured(plain(value), f"{dataset.name}: {what}, {short(train['sha256'])}{by}; see “The stage”")
    lengths = train["prompt_tokens"]
    return measured(
        value,
        f"{dataset.name}: {count(train['problems'])} {what}, {short(train['sha256'])}{layout_text(train)}; "
        f"prompts of {number(lengths['min'])} to {number(lengths['max'])} tokens, "
        f"mean {number(round(lengths['mean'], 1))}{_chat(train.get('chat'))}",
    )


_ROWS = {"problems": "problems", "conversations": "conversations", "preferences": "preferences"}
"""Content of a dataset → what its rows are called."""


def _example(train: dict[str, Any] | None) -> Answer:
    """Of the problems themselves, so that only those inside see it."""
    example = train.get("prompt_example") if train is not None else None
    if example is None:
        return not_stated("The trainer reported none.")
    starts, tokens = example["answer_starts"], example["tokens"]
    ids = f"{' '.join(map(str, tokens[:starts]))} ▸ {' '.join(map(str, tokens[starts:]))}"
    more = f", and {count(example['left_out'])} more" if example["left_out"] else ""
    return measured(
        example,
        f"problem {example['problem_id']}: {example['text']}",
        note=f"Token ids, ▸ where the answer begins: {ids}{more}.",
    )


def layout_text(train: dict[str, Any]) -> str:
    """What the file was read as, in words."""
    if "format" not in train:
        return ""
    read = {pair: f"{pair[0]} from {pair[1]}" for pair in train["columns"].items() if pair[1]}
    columns = ", ".join(words for pair, words in read.items() if pair not in _READ_WHERE_GIVEN)
    if where_given := ", ".join(words for pair, words in read.items() if pair in _READ_WHERE_GIVEN):
        columns += f"; where a row has it, {where_given}"
    return f"; {CONTAINERS[train['container']]} read as {LAYOUTS[train['format']].title} ({columns})"


def _chat(chat: dict[str, Any] | None) -> str:
    """Which chat template made prompts of them, in words."""
    if chat is None or chat["sha256"] is None:
        return ""
    given = [name for name in ("system", "prefill", "kwargs") if chat[name]]
    words = {"system": "a system message", "prefill": "a prefill", "kwargs": "settings of its own"}
    more = f", with {' and '.join(words[name] for name in given)}" if given else ""
    return f"; through the chat template of {chat['source']}, {short(chat['sha256'])}{more}"


def _provenance(facts: Facts) -> Answer:
    """The statement about this run, else the source that the uploader named."""
    dataset = facts.run.dataset
    source = dataset.source.strip()
    if (statement := facts.statements.get("data.provenance")) is not None:
        return statement_answer(statement, note=f"The uploader wrote: {source}" if source else "")
    by = dataset.created_by.username if dataset.created_by else "the uploader"
    return stated(source, source, by=by) if source else not_stated("The uploader named no source.")


def _selection(facts: Facts) -> Answer:
    config = facts.config
    if not isinstance(config, ScoredConfig):
        limit = config.data.limit
        taken = f"the first {count(limit)} rows" if limit is not None else "all rows"
        apart = f", without {count(config.data.holdout)} held out" if config.data.holdout else ""
        return declared(
            {"limit": limit, "holdout": config.data.holdout, "batch_size": config.optim.batch_size},
            f"{taken}{apart}, shuffled anew by seed in each epoch; {config.optim.batch_size} a step",
        )
    if config.kind == "sample":
        each = f"{_taken(facts, config)}, each once, in the file's order; {config.sampling.prompts_per_step} a step"
        return declared(_selected(config, "the file's"), each)
    a_step = config.sampling.prompts_per_step
    text = f"{_taken(facts, config)}, shuffled anew by seed each time all were used; {a_step} a step"
    return declared(_selected(config, "shuffled each epoch by seed"), text)


def _selected(config: ScoredConfig, order: str) -> dict[str, Any]:
    return {
        "limit": config.data.limit,
        "order": order,
        "prompts_per_step": config.sampling.prompts_per_step,
        "template": config.data.template,
        "max_prompt_tokens": config.data.max_prompt_tokens,
        "long_prompts": config.data.long_prompts,
        "unreadable": config.data.unreadable,
    }


def _taken(facts: Facts, config: ScoredConfig) -> str:
    """Which problems of the training file are trained on, in words."""
    run = facts.run
    limit = config.data.limit
    words = "all problems"
    if limit is not None and limit < run.dataset.problems:
        words = f"the first {count(limit)} of {count(run.dataset.problems)} problems"
    left_out = []
    if run.eval_dataset is None and config.eval.holdout:
        left_out.append(f"the {count(config.eval.holdout)} held out")
    dropped = dig(facts.manifest, "data", "train", "dropped")
    if config.data.long_prompts == "drop" and dropped != 0:
        number_of = "those" if dropped is None else f"{count(dropped)}"
        left_out.append(f"{number_of} with a prompt over {count(config.data.max_prompt_tokens)} tokens")
    if config.data.unreadable == "drop" and (unreadable := dig(facts.manifest, "data", "train", "unreadable")) != 0:
        number_of = "those" if unreadable is None else f"{count(unreadable)}"
        left_out.append(f"{number_of} with a reference that the reward cannot read")
    return words + (f" without {' and '.join(left_out)}" if left_out else "")


def _heldout(facts: Facts) -> Answer:
    run, config = facts.run, facts.config
    apart = config.eval.holdout if run.eval_dataset is None else run.eval_dataset.problems
    if not apart:
        return not_applicable("no problems were held out")
    used = dig(facts.manifest, "data", "eval", "problems")
    if used is None:
        used = min(apart, config.eval.limit or apart)
    problems = f"{count(apart)} problems" if used == apart else f"{count(used)} of {count(apart)} problems"
    if run.eval_dataset is not None:
        value = {"dataset": run.eval_dataset.name, "sha256": run.eval_dataset.sha256, "problems": used}
        return measured(value, f"{run.eval_dataset.name}: {problems}, {short(run.eval_dataset.sha256)}")
    value = {"split": "by SHA-256 of seed and prompt", "problems": used, "set_apart": apart}
    return declared(value, f"{problems} set apart from the training file by seed, never trained on")


def _decontamination(facts: Facts) -> Answer:
    """Evaluation items in the training file: as the trainer searched every suite, else by the platform's comparison of
    the held-out problems."""
    overlap = dig(facts.manifest, "data", "overlap")
    answer = _overlaps(overlap) if overlap else _equal_prompts(facts)
    seen = facts.seen_at_launch
    touched = [pair for pair in seen["pairs"] if pair["state"] == "found"] if seen else []
    if not seen or not touched:
        return answer
    known = ", ".join(f"{pair['with']}: {of(pair['touched'], pair['items'])}" for pair in touched)
    read = "who ticked that this was seen" if seen["acknowledged"] else "without saying that this was seen"
    note = f"Known before the run began ({known}); launched with an override by {seen['by']}, {read}."
    value = answer.value if isinstance(answer.value, dict) else {}
    at_launch = {**seen, "at": seen["at"].isoformat()}
    if answer.missing:
        return measured(plain({"at_launch": at_launch}), f"known before the run began: {known}", note=note)
    return answer.model_copy(
        update={"value": plain({**value, "at_launch": at_launch}), "note": f"{answer.note} {note}".strip()}
    )


def _overlaps(reports: dict[str, Any]) -> Answer:
    """The value holds the whole reports: a card checker leaves out the touched items by their ids."""
    parts, odd = [], []
    for suite, report in reports.items():
        counts, items = report["counts"], report["items"]["texts"]
        parts.append(f"{suite}: {of(counts['touched'], items)} items touched")
        if counts["same_but_numbers"]:
            odd.append(f"{count(counts['same_but_numbers'])} more of {suite} once all numbers count as the same")
    with_options = all("options" in report["counts"] for report in reports.values())  # an older trainer's are without
    ways = "13-grams, 8-grams, MinHash and options" if with_options else "13-grams, 8-grams and MinHash"
    note = (
        f"Searched for: equal texts, {ways}, letter case and punctuation aside. Scores without the items that were "
        "found are listed with each suite. It does not see paraphrase, translation, or what the base model read before."
    )
    text = "; ".join(parts) + (f" ({'; '.join(odd)})" if odd else "")
    return measured({"overlap": plain(reports)}, text, note=note)


def _equal_prompts(facts: Facts) -> Answer:
    more = "Near duplicates and overlap with the base model's own training were not searched for."
    if facts.overlap is not None:
        overlap, limit = facts.overlap, facts.config.data.limit
        among = f"among the first {count(limit)} of the training file" if limit else "in the training file"
        return measured(
            {
                "method": "equal prompts, letter case and white space aside",
                "heldout": overlap.heldout,
                "shared": overlap.shared,
                "of_the_first": limit,
            },
            f"{of(overlap.shared, overlap.heldout)} held-out prompts are {among}",
            note=f"Compared letter for letter, case and white space aside. {more}",
        )
    if facts.run.eval_dataset is None and facts.config.eval.holdout:
        return declared(
            {"method": "equal prompts stay on one side of the split"},
            "equal prompts stay on one side of the split",
            note=more,
        )
    return not_evaluated("There is nothing to compare with, or a file is no longer stored.")
