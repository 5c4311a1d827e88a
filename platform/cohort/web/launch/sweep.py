"""A sweep in the run form: lists of values for some fields become runs, each checked before anything is queued.

One field a line, `optim.lr: 1e-6, 3e-6` or `optim.lr: 1e-6..1e-5 log 3`; a field is called by its path, its label or
its sign (G, β).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import prod

from cohort.launch.sweeps import MAX_RUNS
from cohort.web.launch.choices import ROWS
from cohort.web.launch.run_form import RunForm
from cohort.web.launch.schema import SUBJECTS, fields
from grpo_core.config.kinds import AnyConfig
from grpo_core.config.stage import Kind

HOW = {"product": "every combination", "zip": "first with first, second with second"}
_RANGE = re.compile(r"(\S+?)\s*\.\.\s*(\S+)\s+(?:(log)\s+)?(\d{1,3})")
_KINDS = ("integer", "number", "choice", "switch", "text")
_SIGNS = {"g": "sampling.group_size", "beta": "algorithm.kl.coef", "lr": "optim.lr", "normalization": "variant"}


@dataclass(frozen=True)
class SweepRun:
    name: str
    values: tuple[str, ...]
    """In the order of the sweep's fields."""
    faults: tuple[str, ...]
    config: AnyConfig | None


@dataclass(frozen=True)
class SweepPlan:
    fields: dict[str, list[str]]
    runs: tuple[SweepRun, ...] = ()
    faults: tuple[str, ...] = ()

    @property
    def labels(self) -> list[str]:
        return [sign(name) for name in self.fields]

    @property
    def faulty(self) -> list[SweepRun]:
        return [run for run in self.runs if run.faults]

    @property
    def configs(self) -> list[AnyConfig]:
        return [run.config for run in self.runs if run.config is not None]

    @property
    def ready(self) -> bool:
        return not self.faults and not self.faulty


def sign(name: str) -> str:
    """A short name: G, β, lr."""
    return SUBJECTS.get(name) or name.rsplit(".", 1)[-1].replace("_", " ")


def sweep_plan(form: RunForm) -> SweepPlan | None:
    """Of a form that has been checked; None where it is no sweep."""
    text = form.texts["sweep"].strip()
    if not text:
        return None
    values: dict[str, list[str]] = {}
    faults: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                name, listed = _line(line, form.kind)
                if name in values:
                    raise ValueError(f"{name} has a line already")
                values[name] = listed
            except ValueError as error:
                faults.append(f"line {number}: {error}")
    zipped = form.texts["sweep_how"] == "zip"
    if form.texts["sweep_how"] not in HOW:
        faults.append(f"combine is one of {', '.join(HOW)}")
    lengths = {len(listed) for listed in values.values()}
    if zipped and len(lengths) > 1:
        counts = ", ".join(map(str, sorted(lengths)))
        faults.append(f"the lists are of different lengths ({counts}); give as many values of each")
    count = max(lengths, default=0) if zipped else prod(map(len, values.values()))
    if count > MAX_RUNS:
        faults.append(f"these are {count:,} runs; a sweep has {MAX_RUNS} at most")
    if faults:
        return SweepPlan(values, faults=tuple(faults))
    combined = zip(*values.values(), strict=True) if zipped else product(*values.values())
    return SweepPlan(values, tuple(_run(form, dict(zip(values, chosen, strict=True))) for chosen in combined))


def _run(form: RunForm, chosen: dict[str, str]) -> SweepRun:
    named = " · ".join([form.texts["name"].strip(), *(f"{sign(name)} {text}" for name, text in chosen.items())])
    each = replace(form, texts={**form.texts, **chosen, "name": named}, problems={}, general=[], config=None)
    for row in (*ROWS, "more", "heldout", "replay"):  # the same ones, read once
        each.__dict__[row] = getattr(form, row)
    config = each.check()
    faults = [fault for name, of_name in each.problems.items() if name not in form.problems for fault in of_name]
    return SweepRun(named, tuple(chosen.values()), (*faults, *each.general), config)


def _line(line: str, kind: Kind) -> tuple[str, list[str]]:
    called, colon, listed = line.partition(":")
    if not colon:
        raise ValueError("write a field, a colon and its values, as in `G: 4, 8, 16`")
    name = _names(kind).get(called.strip().casefold())
    if name is None:
        raise ValueError(f"{called.strip()} is no field of the form that can be swept; give its path, as optim.lr")
    values = [value for part in listed.split(",") for value in _values(part.strip())]
    if name in fields(kind) and fields(kind)[name].kind == "switch":
        values = [{"on": "true", "off": "false"}.get(value, value) for value in values]
    if len(set(values)) < len(values):
        raise ValueError(f"{called.strip()} has a value twice")
    return name, values


def _values(part: str) -> Iterator[str]:
    if not part:
        raise ValueError("a value is missing between commas or after the colon")
    if ".." not in part:
        yield part
        return
    match = _RANGE.fullmatch(part)
    if match is None:
        raise ValueError(f"{part}: a range is written as `1e-6..1e-5 log 3`, or without log for even steps")
    try:
        low, high, count = float(match[1]), float(match[2]), int(match[4])
    except ValueError:
        raise ValueError(f"{part}: both ends of a range are numbers") from None
    if not 2 <= count <= MAX_RUNS:
        raise ValueError(f"{part}: a range has 2 to {MAX_RUNS} values")
    if match[3] and not (low > 0 and high > 0):
        raise ValueError(f"{part}: a log range is between numbers above 0")
    for step in range(count):
        share = step / (count - 1)
        yield f"{low * (high / low) ** share if match[3] else low + (high - low) * share:.6g}"


@cache
def _names(kind: Kind) -> dict[str, str]:
    """What a line may call each field, in small letters."""
    by_path = {path: spec for path, spec in fields(kind).items() if spec.kind in _KINDS}
    labels = [spec.label.casefold() for spec in by_path.values()]
    short = {**{subject.casefold(): path for path, subject in SUBJECTS.items()}, **_SIGNS, "variant": "variant"}
    known = {*by_path, *(("variant",) if kind == "grpo" else ())}
    return {
        **{spec.label.casefold(): path for path, spec in by_path.items() if labels.count(spec.label.casefold()) == 1},
        **{called: path for called, path in short.items() if path in known},
        **{path: path for path in by_path},
    }
