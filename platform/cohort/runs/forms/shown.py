"""The form as the templates lay it out: every input with its text, help, hint and errors; the folded groups."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cohort.figures import natural
from cohort.runs.forms.problems import CHOICES
from cohort.runs.forms.run_form import RunForm
from cohort.runs.forms.schema import GROUPS, FieldSpec, fields, group_of
from cohort.runs.forms.values import preset_name, preset_source
from cohort.templatetags.cohort import num
from grpo_core.presets import PRESETS


@dataclass(frozen=True)
class Option:
    value: str
    label: str
    chosen: bool


@dataclass(frozen=True)
class FieldShown:
    name: str
    id: str
    label: str
    kind: str
    text: str
    help: str
    hint: str
    """What the preset says and what is allowed."""
    differs: str
    """The preset's (or default) value when this one is another; else empty."""
    options: tuple[Option, ...]
    errors: tuple[str, ...]


@dataclass(frozen=True)
class GroupShown:
    id: str
    title: str
    values: str
    """The headline values, on the folded line."""
    differences: str
    fields: tuple[FieldShown, ...]
    open: bool

    @property
    def faults(self) -> int:
        return sum(len(field.errors) for field in self.fields)


def field_shown(form: RunForm, path: str) -> FieldShown:
    spec = fields()[path]
    text = form.texts[path]
    paper = form.preset_text(path)
    preset = PRESETS.get(form.texts["preset"])
    source = preset_name(preset) if preset else ""
    differs = paper if paper != "" and _other(spec, text, paper) else ""
    hints = [f"{source} {paper}" if paper != "" else "", spec.limits]
    return FieldShown(
        name=path,
        id=spec.id,
        label=spec.label,
        kind=spec.kind,
        text=text,
        help=spec.help,
        hint=" · ".join(filter(None, hints)),
        differs=differs,
        options=tuple(Option(value, label, value == text) for value, label in _options(form, spec)),
        errors=tuple(form.problems.get(path, ())),
    )


def groups_shown(form: RunForm) -> Iterator[GroupShown]:
    for group in GROUPS:
        held = tuple(field_shown(form, path) for path in fields() if group_of(path) == group.id)
        headline = [phrase.format(_grouped(form.texts[path])) for path, phrase in group.headline]
        differing = [
            f"{field.label.lower()} {field.text or 'empty'} instead of {field.differs}"
            for field in held
            if field.differs
        ]
        yield GroupShown(
            id=group.id,
            title=group.title,
            values=" · ".join(headline),
            differences=_in_short(differing),
            fields=held,
            open=any(field.errors for field in held),
        )


def all_shown(form: RunForm) -> Iterator[FieldShown]:
    return (field_shown(form, path) for path in fields())


def choices_shown(form: RunForm) -> Iterator[FieldShown]:
    """The choices of the first screen: name, preset, rows of the catalog, normalization."""
    presets = [("", "none: Cohort's defaults"), *((p.name, f"{preset_source(p)}: {p.title}") for p in PRESETS.values())]
    rows = form.choices
    yield _choice(form, "name", "text", "What people call the run.", ())
    yield _choice(form, "preset", "choice", preset_note(form), presets)
    yield _choice(form, "base_model", "choice", _about_model(form), [(str(m.pk), m.name) for m in rows.base_models])
    datasets = [(str(d.pk), f"{d.name} · {d.problems:,} problems") for d in rows.datasets]
    yield _choice(form, "dataset", "choice", _about_dataset(form), datasets)
    held_out = [("", "none: hold out from training"), *datasets]
    yield _choice(form, "eval_dataset", "choice", "Never trained on; answered before and after training.", held_out)
    rewards = [(str(v.pk), f"{v.verifier.name} · version {v.number}") for v in rows.verifier_versions]
    yield _choice(form, "verifier_version", "choice", _about_reward(form), rewards)
    yield _choice(form, "variant", "choice", _about_variant(form), list(form.variants.items()))


def preset_note(form: RunForm) -> str:
    """Beneath the preset: how the form differs from it, in words."""
    preset = PRESETS.get(form.texts["preset"])
    if preset is None:
        return "Every field starts at Cohort's own default."
    differing = [f"{f.label} ({f.text or 'empty'} instead of {f.differs})" for f in all_shown(form) if f.differs]
    if variant_differs(form):
        differing.insert(0, "normalization")
    if not differing:
        return f"As {preset_name(preset)} has it. {preset.notes}"
    rest = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
    return f"Differs from {preset_name(preset)} in {', '.join(differing[:3])}{rest}."


def variant_differs(form: RunForm) -> bool:
    preset = PRESETS.get(form.texts["preset"])
    wanted = dict(preset.leaves()) if preset else {}
    scale, _, ddof = form.texts["variant"].partition("/")
    return wanted.get("algorithm.scale", scale) != scale or str(wanted.get("algorithm.std_ddof", ddof)) != ddof


def _choice(form: RunForm, name: str, kind: str, help: str, options: Sequence[tuple[str, str]]) -> FieldShown:
    text = form.texts[name]
    offered = list(options)
    if kind == "choice" and text not in [value for value, _ in offered]:
        offered.insert(0, (text, "choose" if text == "" else f"{text} (not in this project)"))
    return FieldShown(
        name=name,
        id="f-" + name.replace("_", "-"),
        label=CHOICES[name],
        kind=kind,
        text=text,
        help=help,
        hint="",
        differs="",
        options=tuple(Option(value, label, value == text) for value, label in offered),
        errors=tuple(form.problems.get(name, ())),
    )


def _about_model(form: RunForm) -> str:
    model = form.base_model
    if model is None:
        return "Where the policy starts."
    size = f"{num(model.parameters)} parameters" if model.parameters else "size not known until a worker has read it"
    return " · ".join(
        filter(
            None,
            (
                model.architecture,
                size,
                f"weights {model.weights_digest[:8]}…"
                if model.weights_digest
                else f"revision {model.revision[:8]}"
                if model.revision
                else "",
            ),
        )
    )


def _about_dataset(form: RunForm) -> str:
    dataset = form.dataset
    if dataset is None:
        return "Problems to train on."
    longest = dataset.prompt_chars.get("max")
    return f"{dataset.format}, sha256 {dataset.sha256[:8]}…" + (
        f", longest prompt {longest:,} characters" if longest else ""
    )


def _about_reward(form: RunForm) -> str:
    version = form.verifier_version
    if version is None:
        return "What completions are scored by."
    parts = [f"{c['name']} ({c['kind']}, weight {c.get('weight', 1):g})" for c in version.spec["components"]]
    return " + ".join(parts)


def _about_variant(form: RunForm) -> str:
    scale = form.texts["variant"].split("/")[0]
    return {
        "group_std": "GRPO: each reward minus its group's mean, divided by the group's spread.",
        "batch_std": "Lite-PPO: divided by the spread of the whole step, steadier when groups agree.",
        "none": "Dr. GRPO drops the division: with it, very easy and very hard problems weigh too much.",
    }.get(scale, "")


def _options(form: RunForm, spec: FieldSpec) -> list[tuple[str, str]]:
    if spec.path == "eval.success_component":
        version = form.verifier_version
        names = [component["name"] for component in version.spec["components"]] if version else []
        current = form.texts[spec.path]
        return [("", "the heaviest one"), *((name, name) for name in names)] + (
            [(current, current)] if current and current not in names else []
        )
    if spec.kind != "choice":
        return []
    known = [(choice, choice.replace("_", " ")) for choice in spec.choices]
    current = form.texts[spec.path]
    return known if current in spec.choices else [*known, (current, current or "choose")]


def _other(spec: FieldSpec, text: str, paper: str) -> bool:
    if spec.kind in ("integer", "number"):
        try:
            return float(text.replace("\N{MINUS SIGN}", "-")) != float(paper)
        except ValueError:
            return True
    return text.strip() != paper


def _grouped(text: str) -> str:
    """A whole number with thousands separators; a word of the config with spaces."""
    whole = natural(text)
    return text.replace("_", " ") if whole is None else f"{whole:,}"


def _in_short(differing: list[str]) -> str:
    if len(differing) > 2:
        return f"{differing[0]}, and {len(differing) - 1} more differ from the preset"
    return ", ".join(differing)
