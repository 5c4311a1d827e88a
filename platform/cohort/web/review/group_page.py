"""What a group's page shows of its samples: in which order, equal ones as one card, each score in words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode

from cohort.base.formatting import natural, signed
from cohort.review.filters import MASK_WORDS
from cohort.review.models import Group, Sample
from cohort.review.services import right
from cohort.runs.imported_reward import ImportedReward
from cohort.web.review.arithmetic import Derivation, number
from cohort.web.review.texts import (
    LONGEST_COMPARED,
    Piece,
    ReasoningTags,
    completion_parts,
    difference,
    shown_characters,
)
from grpo_core.config.reward import RewardComponent, RewardConfig, reward_kinds

_LAST = float("-inf")
MOST_STEPS = 50
"""Of a completion that are listed."""
SORTS: dict[str, tuple[str, Callable[[Sample, float | None], float]]] = {
    "order": ("as sampled", lambda sample, advantage: 0),
    "reward": ("reward", lambda sample, advantage: _LAST if sample.reward is None else sample.reward),
    "advantage": ("advantage", lambda sample, advantage: _LAST if advantage is None else advantage),
    "length": ("length", lambda sample, advantage: _LAST if sample.tokens is None else sample.tokens),
}
"""Value of `sort` → (its word, what comes first by being larger)."""


@dataclass(frozen=True)
class GroupView:
    """What the address of a group's page chooses. A value that does not exist counts as not given."""

    variant: str = ""
    """Empty: the run's own."""
    sort: str = "order"
    fold: str = ""
    """off: equal completions each have their card."""
    view: str = ""
    """rendered: as Markdown with formulas."""
    sample: int | None = None
    """The marked one, from 1."""
    first: int | None = None
    second: int | None = None
    """Those whose completions are compared, from 1."""

    @classmethod
    def parse(cls, data: Mapping[str, str], *, variants: Sequence[str]) -> Self:
        """`variants`: values that `variant` may have; the first is the run's own."""
        own, variant = variants[0], data.get("variant", "")
        return cls(
            variant=variant if variant in variants and variant != own else "",
            sort=data["sort"] if data.get("sort") in SORTS else "order",
            fold="off" if data.get("fold") == "off" else "",
            view="rendered" if data.get("view") == "rendered" else "",
            sample=natural(data.get("sample")),
            first=natural(data.get("first")),
            second=natural(data.get("second")),
        )

    def link(self, **changes: Any) -> str:
        """The query of the page with these changes."""
        plain, chosen = asdict(type(self)()), asdict(replace(self, **changes))
        return "?" + urlencode({name: value for name, value in chosen.items() if value != plain[name]}, safe="/")

    @property
    def elsewhere(self) -> str:
        """The query for another group: what is not about single samples. Empty where nothing was chosen."""
        return self.link(sample=None, first=None, second=None).removesuffix("?")

    @property
    def sorts(self) -> list[dict[str, Any]]:
        return [
            {"word": word, "link": self.link(sort=value), "current": value == self.sort}
            for value, (word, _) in SORTS.items()
        ]

    @property
    def views(self) -> list[dict[str, Any]]:
        return [
            {"word": word, "link": self.link(view=value), "current": value == self.view}
            for value, word in (("", "raw"), ("rendered", "rendered"))
        ]

    @property
    def other_fold(self) -> str:
        return self.link(fold="" if self.fold else "off")

    @property
    def not_compared(self) -> str:
        return self.link(first=None, second=None)

    @property
    def kept(self) -> list[tuple[str, str]]:
        """(name, value) of what a form that chooses two samples hands on."""
        return parse_qsl(self.elsewhere.removeprefix("?"))


def sample_cards(
    group: Group,
    samples: Sequence[Sample],
    advantages: Sequence[float | None],
    annotations: Mapping[int, Mapping[str, Any]],
    *,
    reward: RewardConfig | ImportedReward,
    view: GroupView,
    tags: ReasoningTags,
) -> list[dict[str, Any]]:
    """One card for each sample, or for all whose text and scores are the same; `annotations` by the sample's id."""
    _, larger_first = SORTS[view.sort]
    pairs = sorted(zip(samples, advantages, strict=True), key=lambda pair: -larger_first(*pair))
    most = shown_characters(len(samples))
    texts: dict[str, list[Sample]] = {}
    cards: dict[object, dict[str, Any]] = {}
    for sample, advantage in pairs:
        link = view.link(sample=sample.index + 1)
        of_sample = {
            "sample": sample,
            "number": sample.index + 1,
            "link": link,
            "advantage": advantage,
            "right": right(sample, reward.success_of),
            "reward": None if sample.reward is None else number(sample.reward),
            "selected": sample.index + 1 == view.sample,
            **annotations[sample.pk],
        }
        twins = texts.setdefault(sample.completion, [])
        key = sample.pk if view.fold or sample.redacted_at else (sample.completion, *_scored_as(sample))
        if key in cards:
            cards[key]["twins"].append(of_sample)
        else:
            cards[key] = of_sample | {
                "twins": [],
                "parts": completion_parts(
                    sample.completion, tags, prompt=group.prompt, most=most, markdown=view.view == "rendered"
                ),
                "shaped": None if sample.shaped_reward is None else number(sample.shaped_reward),
                "masked": MASK_WORDS.get(sample.mask_cause, sample.mask_cause),
                "scores": component_scores(sample, reward, group.answer),
                "same_text": twins[0].index + 1 if twins and not view.fold and not sample.redacted_at else None,
            }
        twins.append(sample)
    return list(cards.values())


def sample_squares(cards: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One for each sample in the order of the page, with its words."""
    words = {True: "right", False: "wrong", None: "masked or not judged"}
    squares = []
    for each in (of_sample for card in cards for of_sample in (card, *card["twins"])):
        figures = "not scored" if each["reward"] is None else f"reward {each['reward']}"
        advantage = "" if each["advantage"] is None else f", advantage {signed(each['advantage'])}"
        title = f"sample {each['number']}: {words[each['right']]}, {figures}{advantage}"
        squares.append({"number": each["number"], "right": each["right"], "title": title})
    return squares


def _scored_as(sample: Sample) -> tuple[object, ...]:
    """What a card shows of a sample besides its text, its advantage and its tokens."""
    scores = tuple(
        tuple(str(score.get(name)) for name in ("value", "detail", "error", "traceback", "printed"))
        for _, score in sorted(sample.components.items())
    )
    return sample.reward, sample.shaped_reward, sample.mask_cause, sample.finish_reason, scores


def component_scores(sample: Sample, reward: RewardConfig | ImportedReward, answer: str) -> list[dict[str, Any]]:
    """Each component's score, in the order of the run's reward. `reference`: what a wrong answer was compared with."""
    components = {component.name: component for component in reward.components}
    order = list(components)
    names = sorted(sample.components, key=lambda name: order.index(name) if name in order else len(order))
    rows = []
    for name in names:
        score = sample.components[name]
        component = components.get(name)
        compared = isinstance(component, RewardComponent) and _compares_answer(component.kind, component.params)
        rows.append(
            {
                "name": name,
                "passed": score.get("passed"),
                "value": "–" if (value := score.get("value")) is None else number(value),
                "detail": score.get("detail") or "",
                "reference": answer if compared and score.get("passed") is False else "",
                "error": score.get("error") or "",
                "traceback": score.get("traceback") or "",
                "printed": score.get("printed") or "",
                "seconds": score.get("seconds") or 0,
                "tries": score.get("tries") or 1,
            }
        )
    return rows


def _compares_answer(kind: str, params: Mapping[str, Any]) -> bool:
    spec = reward_kinds()[kind]
    return bool(spec.is_rule and spec.answers(spec.params.model_validate(params)))


@dataclass(frozen=True)
class SampleTable:
    """From each sample's components to its advantage, number by number."""

    headings: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]
    """(number of the sample, its cells)."""
    steps: tuple[tuple[int, tuple[tuple[float, float, float], ...], int], ...]
    """(number of the sample, the first of its steps, how many it has), where steps have rewards."""


def weights_of(reward: RewardConfig | ImportedReward) -> dict[str, float]:
    """Component → its factor in the reward."""
    return {component.name: component.weight for component in reward.components}


def sample_table(
    samples: Sequence[Sample],
    advantages: Sequence[float | None],
    weights: Mapping[str, float],
    worked: Derivation | None,
) -> SampleTable:
    shaped = any(sample.shaped_reward is not None for sample in samples)
    columns: dict[str, list[float | None]] = {}
    named = {name for sample in samples for name in sample.components}
    for name in [*(name for name in weights if name in named), *sorted(named - set(weights))]:
        factor = "" if (weight := weights.get(name, 1.0)) == 1 else f" × {number(weight)}"
        columns[f"{name}{factor}"] = [sample.components.get(name, {}).get("value") for sample in samples]
    columns["reward"] = [sample.reward for sample in samples]
    if shaped:
        columns["KL penalty"] = [
            None if sample.reward is None or sample.compared_reward is None else sample.compared_reward - sample.reward
            for sample in samples
        ]
        columns["r"] = [sample.compared_reward for sample in samples]
    columns |= {heading: list(values) for heading, values in worked.columns} if worked else {}
    columns["A"] = list(advantages)
    cells = zip(*columns.values(), strict=True)
    return SampleTable(
        tuple(columns),
        tuple(
            (sample.index + 1, tuple("–" if cell is None else number(cell) for cell in row))
            for sample, row in zip(samples, cells, strict=True)
        ),
        tuple(
            (sample.index + 1, steps[:MOST_STEPS], len(steps))
            for sample, steps in zip(samples, worked.steps if worked else (), strict=False)
        ),
    )


@dataclass(frozen=True)
class Comparison:
    """Two completions of a group, word by word."""

    first: int
    second: int
    pieces: list[Piece]
    cut: bool
    """Those beyond the first `most` of each were left out."""
    most: int = LONGEST_COMPARED

    @property
    def equal(self) -> bool:
        return all(piece.kind == "both" for piece in self.pieces) and not self.cut


def compared(samples: Sequence[Sample], view: GroupView) -> Comparison | None:
    """None unless two samples of the group are chosen whose texts were not deleted."""
    by_number = {sample.index + 1: sample for sample in samples if sample.redacted_at is None}
    if view.first not in by_number or view.second not in by_number:
        return None
    first, second = by_number[view.first], by_number[view.second]
    pieces, cut = difference(first.completion, second.completion)
    return Comparison(first.index + 1, second.index + 1, pieces, cut)
