"""A record's evaluations as logs of Inspect, made from a card: one for each suite before and after training. They hold
what that card holds: where it withholds the texts of items, so do they."""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

from cohort.base.inspect_log import log_header, log_sample, written
from cohort.evidence.card_reader import CardReader

PHASES = ("before", "after")
_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")
_WITHHELD = "withheld: texts of items are in the card for a wider audience"


def evaluation_logs(card: CardReader, more: dict[str, Any]) -> Iterator[tuple[str, Iterator[bytes]]]:
    """(file name, content) of each log; each content is to be read before the next is asked for. `more` goes into each
    log's metadata. Raises Rejected for a card that cannot be read."""
    document = json.loads(card.whole("record.json"))
    for phase in PHASES:
        texts = _Texts(card, phase)
        for number, (suite, items) in enumerate(groupby(card.lines(f"evals/{phase}.jsonl"), itemgetter("suite"))):
            header = _header(document, phase, suite, more)
            samples = _samples(items, texts, header["eval"]["model"])
            name = _PLAIN.sub("-", suite).strip("-.")[:80] or "suite"
            yield f"{phase}-{number + 1:03d}-{name}.json", (part.encode() for part in written(header, samples))


def _header(document: dict[str, Any], phase: str, suite: str, more: dict[str, Any]) -> dict[str, Any]:
    head = document["head"]
    field = document["sections"]["behaviour"]["performance"]
    compared = next((row for row in field.get("value") or () if row["suite"] == suite), None)
    side = compared[phase] if compared else None
    base = document["sections"]["subject"]["base_model"].get("value") or {}
    model = str(base.get("name") or "not stated")
    dataset = {"name": compared["title"], "samples": compared["problems"]} if compared else {"name": suite}
    facts = {
        "phase": phase,
        "run": head["run"],
        "run_name": head["title"],
        "record_end": head["end"],
        "record_version": head["version"],
        "seal": document["seal"],
        "audience": document["audience"],
        "protocol": compared["protocol"] if compared else None,
        "comparison": compared and {name: compared[name] for name in ("change", "verdict", "margin", "category")},
    }
    return log_header(
        name=f"cohort-run-{head['run']}-{head['end']}-{head['version']}-{phase}-{suite}",
        task=suite,
        model=model if phase == "before" else f"{model}, trained by run {head['run']}",
        dataset=dataset,
        started=head["sealed_at"],  # when items were answered is not in a card
        completed=head["sealed_at"],
        metadata=facts | more,
        plan="evaluation",
        results=_results(side, compared["problems"]) if compared and side else None,
    )


def _results(side: dict[str, Any], problems: int) -> dict[str, Any]:
    """The score as the record has it, with its interval."""
    numbers = {"mean": side["share"], "ci95_low": side["interval"]["low"], "ci95_high": side["interval"]["high"]}
    metrics = {name: {"name": name, "value": value, "params": {}} for name, value in numbers.items()}
    return {
        "total_samples": problems,
        "completed_samples": problems,
        "scores": [{"name": "score", "scorer": "score", "scored_samples": problems, "params": {}, "metrics": metrics}],
    }


class _Texts:
    """The texts of items of one side, in the order of their scores; those of sensitive suites are in a file apart."""

    def __init__(self, card: CardReader, phase: str) -> None:
        self._files = [card.lines(f"evals/{kind}-{phase}.jsonl") for kind in ("texts", "sensitive")]
        self._heads = [next(lines, None) for lines in self._files]

    def of(self, item: dict[str, Any]) -> dict[str, Any] | None:
        """None where the card withholds them."""
        for index, row in enumerate(self._heads):
            if row is not None and (row["suite"], row["problem_id"]) == (item["suite"], item["problem_id"]):
                self._heads[index] = next(self._files[index], None)
                return dict(row)
        return None


def _samples(items: Iterable[dict[str, Any]], texts: _Texts, model: str) -> Iterator[dict[str, Any]]:
    for item in items:
        text = texts.of(item)
        shown = text or {"prompt": "", "answer": "", "completion": "", "detail": ""}
        metadata = {name: item[name] for name in ("slice", "cluster", "truncated", "error")}
        yield log_sample(
            id=item["problem_id"],
            epoch=1,
            prompt=shown["prompt"],
            target=shown["answer"],
            completion=shown["completion"],
            model=model,
            stop_reason="max_tokens" if item["truncated"] else "stop",
            tokens=item["tokens"],
            scores={"score": {"value": item["score"], "answer": None, "explanation": shown["detail"] or item["error"]}},
            metadata=metadata if text else metadata | {"texts": _WITHHELD},
        )
