"""A card's headline numbers, computed again from the card's own files and compared with those in its record."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from cohort.evidence.canonical import CanonicalError, canonical, dig, sha256
from cohort.evidence.card_reader import Rejected
from cohort.evidence.compare import NOT_COMPARABLE, Case, SuiteFacts, by_suite, compare_all
from cohort.evidence.judgements import read_judgements, review_figures
from cohort.evidence.plain_text import change_points, counted, named, side_text
from cohort.evidence.rescores import check_rescore
from cohort.evidence.verify.opened import JUDGEMENTS, OpenCard
from cohort.evidence.verify.report import Withheld
from grpo_core.config.yaml_text import parse_yaml

# The comparisons of a record made again from its items: of the record only names and margins are used, and which
# items were found in the training data.

MAX_SUITES = 1_000
"""Each may cost half a second, where scores are not all 0 or 1."""


def recompute(
    recorded: list[dict[str, Any]],
    before: Iterable[Any],
    after: Iterable[Any],
    touched: Mapping[str, frozenset[str]],
) -> list[dict[str, Any]]:
    """The comparisons of `recorded`, in its order. `touched`: suite → ids of the items that the training texts held,
    where the record has a report of that; elsewhere what the comparison itself names. Raises KeyError, TypeError or
    ValueError for lines that are no items, and for suites that are not those of the record."""
    if len(recorded) > MAX_SUITES:
        raise ValueError(f"more than {MAX_SUITES:,} suites")
    old, new = by_suite(before), by_suite(after)
    suites = [str(comparison["suite"]) for comparison in recorded]
    if len(set(suites)) != len(suites) or set(suites) != set(old) | set(new):
        raise ValueError("the suites in the items are not those in the record")
    cases: list[Case] = []
    for comparison, suite in zip(recorded, suites, strict=True):
        clean = comparison["clean"]
        ids = None if clean is None else touched.get(suite, frozenset(clean["touched_ids"]))
        cases.append(
            (SuiteFacts.of(comparison), old.get(suite), new.get(suite), comparison["verdict"] != NOT_COMPARABLE, ids)
        )
    return compare_all(cases)


_TOLERANCE = 1e-9
"""For sums that another machine's mathematics library may round otherwise."""
CONFIG, METRICS = "config.yaml", "metrics.jsonl"


def config(card: OpenCard) -> str:
    """config.yaml has the digest that the record names, and the margin that its comparisons use."""
    if card.withholds(CONFIG):
        raise Withheld(f"{CONFIG} is withheld from this audience")
    recorded = dig(card.value("method", "config"), "sha256")
    content = card.reader.whole(CONFIG)
    try:
        parsed = parse_yaml(content.decode("utf-8"))
        digest = sha256(canonical(parsed))
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise Rejected(f"{CONFIG}: cannot be read: {error}") from None
    if digest != recorded:
        raise Rejected(f"{CONFIG}: its canonical JSON has sha256 {digest}, and the record says {recorded!a}")
    return f"{CONFIG} is the config that the record names{_margins(card, parsed)}"


def _margins(card: OpenCard, config: Any) -> str:
    """Every comparison was judged by the margin that the config fixed."""
    try:
        comparisons = card.value("behaviour", "performance") or []
    except Withheld:
        return "; the comparisons are withheld from this audience"
    suites = dig(config, "eval", "suites")
    listed = [suite for suite in suites if isinstance(suite, Mapping)] if isinstance(suites, list) else []
    own = {suite["name"]: suite.get("margin") for suite in listed if isinstance(suite.get("name"), str)}
    for comparison in comparisons:
        margin = own.get(comparison["suite"])
        margin = dig(config, "eval", "margin") if margin is None else margin
        if comparison["margin"] != margin:
            raise Rejected(f"{CONFIG}: fixed the margin {margin!a} for {comparison['suite']}, judged was by another")
    return f", with the margins that {counted(len(comparisons), 'suite')} were judged by"


def steps(card: OpenCard) -> str:
    """metrics.jsonl has one line for each step that the record counts, and its ends have the mean rewards it names."""
    if card.withholds(METRICS):
        raise Withheld(f"{METRICS} is withheld from this audience")
    if METRICS not in card.reader.entries:
        raise Rejected(f"there is no {METRICS}")
    first: Any = None
    last: Any = None
    done = 0
    for done, line in enumerate(card.reader.lines(METRICS), start=1):
        step = dig(line, "step")
        if type(step) is not int or step != done:
            raise Rejected(f"{METRICS}, line {done}: is not the line of step {done}")
        first, last = first if done > 1 else line, line
    recorded = dig(card.value("budget", "steps"), "done")
    if recorded != done:
        raise Rejected(f"{METRICS} ends at step {done}, and the record says {recorded!a}")
    course = card.value("reward", "course")
    for name, line in (("first", first), ("last", last)):
        actual = {f"{name}_step": dig(line, "step"), name: dig(line, "metrics", "reward")}
        if course is not None and actual != {key: dig(course, key) for key in actual}:
            raise Rejected(f"{METRICS}: the {name} step and its mean reward are not those that the record says")
    return f"steps 1 to {done} in {METRICS}, as the record says" if done else "no step was trained"


def statistics(card: OpenCard) -> str | tuple[str, ...]:
    """Every number of every comparison follows from evals/*.jsonl."""
    recorded: list[dict[str, Any]] = card.value("behaviour", "performance") or []
    for name in ("evals/before.jsonl", "evals/after.jsonl"):
        if card.withholds(name):
            raise Withheld(f"{name} is withheld from this audience")
    before, after = (card.reader.lines(f"evals/{phase}.jsonl") for phase in ("before", "after"))
    try:
        recomputed = recompute(recorded, before, after, _touched(card))
    except KeyError as error:
        raise Rejected(f"evals: an item has no {error}") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise Rejected(f"evals: {error}") from None
    for actual, stated in zip(recomputed, recorded, strict=True):
        if fault := difference(actual, stated, stated["suite"]):
            raise Rejected(f"evals: {fault}")
    return tuple(_line(comparison) for comparison in recorded) or "nothing was evaluated"


def human_review(card: OpenCard) -> str:
    """Every figure of people against the verifier follows from judgements.jsonl."""
    recorded = card.value("oversight", "human_review")
    if card.withholds(JUDGEMENTS):
        raise Withheld(f"{JUDGEMENTS} is withheld from this audience")
    if JUDGEMENTS not in card.reader.entries:
        if recorded is not None and "by_step" not in recorded:
            return "figures of an earlier release, whose cards hold no judgements to compute them from"
        if recorded is not None:
            raise Rejected(f"there is no {JUDGEMENTS}, and the record has figures of human review")
        return "no completion was judged by a person"
    try:
        figures = review_figures(read_judgements(card.reader.lines(JUDGEMENTS)))
    except KeyError as error:
        raise Rejected(f"{JUDGEMENTS}: a judgement has no {error}") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise Rejected(f"{JUDGEMENTS}: {error}") from None
    if fault := difference(figures, recorded, "human review"):
        raise Rejected(f"{JUDGEMENTS}: {fault}")
    judged = f"{counted(figures['judgements'], 'judgement')} of {counted(figures['samples'], 'completion')}"
    return f"{judged}; rates, intervals and kappa recomputed from them"


def rescores(card: OpenCard) -> str:
    """The agreement of both rewards, its interval and κ follow from the counts that the record has of each re-score."""
    recorded = card.value("oversight", "rescores")
    if recorded is None:
        return "no second reward has scored the samples"
    if not isinstance(recorded, list):
        raise Rejected("the record's re-scores are no list")
    for number, entry in enumerate(recorded, start=1):
        where = f"re-score {number} of the record"
        try:
            figures = check_rescore(entry)
            stated = {name: entry[name] for name in figures}
        except KeyError as error:
            raise Rejected(f"{where} has no {error}") from None
        except (TypeError, ValueError) as error:
            raise Rejected(f"{where}: {error}") from None
        if fault := difference(figures, stated, where, by="its counts"):
            raise Rejected(fault)
    samples = sum(entry["samples"] for entry in recorded)
    scored = f"{counted(len(recorded), 're-score')} of {counted(samples, 'sample')}"
    return f"{scored}; agreement, interval and kappa recomputed from their counts"


def _touched(card: OpenCard) -> dict[str, frozenset[str]]:
    """Suite → ids of the items that the training texts already held, where the record's report names them."""
    try:
        overlap = dig(card.value("data", "decontamination"), "overlap")
    except Withheld:
        return {}
    if not isinstance(overlap, Mapping):
        return {}
    return {
        str(suite): frozenset(
            str(hit["id"] if isinstance(hit, Mapping) else hit) for hit in dig(report, "touched") or ()
        )
        for suite, report in overlap.items()
    }


def _line(comparison: Mapping[str, Any]) -> str:
    sides = [f"{side_text(comparison[when])} {when}" for when in ("before", "after") if comparison[when]]
    text = f"{comparison['suite']}: {', '.join(sides)} of {counted(comparison['problems'], 'problem')}"
    if change := comparison["change"]:
        difference, low, high = change_points(change, comparison["margin"])
        text += f", {difference} points [{low}, {high}]"
    if slices := comparison["slices"]:
        text += f", {counted(len(slices), 'slice')}"
    if comparison["clean"]:
        text += f", and without {counted(comparison['clean']['touched'], 'touched item')}"
    because = f" {comparison['undecided_because']}" if comparison["undecided_because"] else ""
    return f"{text}: {comparison['verdict']}; recomputed from the items.{because}"


def difference(computed: Any, recorded: Any, where: str, *, by: str = "the file") -> str | None:
    """The first path at which the value computed `by` something and the recorded one differ, in words."""
    if isinstance(computed, Mapping) and isinstance(recorded, Mapping) and set(computed) == set(recorded):
        pairs = ((computed[key], recorded[key], f"{where}.{key}") for key in computed)
        return next((f for left, right, at in pairs if (f := difference(left, right, at, by=by))), None)
    if isinstance(computed, list | tuple) and isinstance(recorded, list) and len(computed) == len(recorded):
        pairs = ((computed[at], recorded[at], f"{where}[{at}]") for at in range(len(computed)))
        return next((f for left, right, at in pairs if (f := difference(left, right, at, by=by))), None)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (computed, recorded))
    same = math.isclose(computed, recorded, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE) if numbers else computed == recorded
    return None if same else f"{where} is {_brief(computed)} by {by}, and the record says {_brief(recorded)}"


def _brief(value: Any) -> str:
    if isinstance(value, str | int | float | None):
        return str(value)
    try:
        text = canonical(value).decode()
    except CanonicalError:
        text = type(value).__name__
    return text if len(text) <= 100 else f"{text[:100]}…"


def completeness(card: OpenCard) -> tuple[str, ...]:
    """How many fields of the record are filled. The schema's check has seen that every field is there."""
    stated = withheld = 0
    missing: dict[str, list[str]] = {}
    for section, fields in card.document["sections"].items():
        for name, entry in fields.items():
            if "withheld" in entry:
                withheld += 1
            elif entry["source"] == "not stated":
                missing.setdefault(section, []).append(name)
            else:
                stated += 1
    total = stated + sum(map(len, missing.values()))
    lines = [f"{stated} of {counted(total, 'field')} shown here are stated, measured or do not apply"]
    lines += [f"not stated in {section}: {named(names, 30)}" for section, names in missing.items()]
    if withheld:
        lines.append(f"not counted: {counted(withheld, 'field')} withheld from this audience")
    return tuple(lines)
