"""The form as the templates lay it out: every input with its text, help, hint and errors; the folded groups.

A setting that nothing uses under the other choices (grpo_core.config.relevance) is hidden: still in the page and
sent with it, but not shown, unless it is at fault or holds something that a person gave.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from cohort.base.formatting import natural, num
from cohort.catalog.models import DatasetContent, PromptDataset, VerifierVersion
from cohort.evidence.plain_text import counted
from cohort.launch.configs import CONTENTS
from cohort.runs.models import Priority
from cohort.web.catalog.selectors import OFFERED
from cohort.web.fields import FieldSpec
from cohort.web.launch.layout import FIRST, FROM_VARIANT, GROUPS
from cohort.web.launch.run_form import RunForm
from cohort.web.launch.schema import (
    CHOICES,
    SUBJECTS,
    fields,
    group_of,
    lookup,
    preset_source,
)
from cohort.web.launch.variants import ALL, DEFAULT, offered
from grpo_core.config.presets import FAMILIES, PRESETS, Preset
from grpo_core.config.relevance import idle
from grpo_core.config.run import RunConfig
from grpo_core.protocol.queues import LABEL_RULE

_CHECKPOINTS = "Checkpoints of runs"
_DIFFERENCES_SHOWN = 4


Options = dict[str, list[tuple[str, str]]]
"""(value, label) of the choices under each heading; those under the empty one are ungrouped."""


@dataclass(frozen=True)
class FieldShown:
    name: str
    id: str
    label: str
    kind: str
    text: str
    errors: tuple[str, ...]
    help: str = ""
    hint: str = ""
    """The preset's value and the allowed values."""
    differs: str = ""
    """The preset's value when this one is another; else empty."""
    options: Options = field(default_factory=dict)
    ticked: tuple[str, ...] = ()
    """Of options of which several may be chosen."""
    needs: str = ""
    """Choices with which the setting has an effect; empty when it has one."""
    kept: bool = False
    """Whether it is shown although it has no effect now."""
    suggestions: tuple[str, ...] = ()
    """Texts offered as one types; others may be typed."""

    @classmethod
    def from_form(cls, form: RunForm, name: str, label: str, kind: str, **more: Any) -> "FieldShown":
        ident, errors = "f-" + name.replace(".", "-").replace("_", "-"), tuple(form.problems.get(name, ()))
        return cls(name=name, id=ident, label=label, kind=kind, text=form.texts[name], errors=errors, **more)

    @property
    def state(self) -> str:
        """A class for the page: idle settings are hidden, unused ones are shown as such."""
        return ("unused" if self.kept else "idle") if self.needs else ""


@dataclass(frozen=True)
class GroupShown:
    id: str
    title: str
    values: str
    """The headline values, on the folded line."""
    fields: tuple[FieldShown, ...]
    differences: str = ""

    @property
    def faults(self) -> int:
        return sum(len(field.errors) for field in self.fields)

    @property
    def away(self) -> str:
        """Choices that bring back the hidden settings; empty when none is hidden."""
        return " · ".join(dict.fromkeys(field.needs for field in self.fields if field.state == "idle"))

    @property
    def empty(self) -> bool:
        """Whether no setting of the group is shown."""
        return all(field.state == "idle" for field in self.fields)


def fields_shown(form: RunForm) -> dict[str, FieldShown]:
    """Every config field of the form, by path."""
    settings, known = form.settings, fields(form.kind)
    preset = PRESETS.get(form.texts["preset"])
    preset_values = dict(preset.leaves()) if preset else {}

    def value(path: str) -> object:
        return lookup(settings, path, known[path].default if path in known else RunConfig.default_at(path))

    by_path = {}
    for path, spec in known.items():
        text = form.texts[path]
        preset_text = "" if preset_values.get(path) is None else spec.to_text(preset_values[path])
        needs = (idle(path, value) or "").replace("_", " ")
        given = _other(spec, text, spec.to_text(spec.default)) and _other(spec, text, preset_text)
        of_preset = f"{preset_source(preset)} {_written(spec.kind, preset_text)}" if preset and preset_text else ""
        by_path[path] = FieldShown.from_form(
            form,
            path,
            spec.label,
            spec.kind,
            help=spec.help + _lines_note(spec),
            hint=" · ".join(filter(None, (of_preset, spec.limits))),
            differs=preset_text if preset_text != "" and _other(spec, text, preset_text) else "",
            options=_options(spec, text),
            ticked=_ticked(spec, text),
            needs=needs,
            kept=path in form.problems or given or path in FIRST[form.kind],
        )
    return by_path


def _lines_note(spec: FieldSpec) -> str:
    return " One a line." if spec.kind == "lines" else ""


def groups_shown(form: RunForm, shown: dict[str, FieldShown]) -> Iterator[GroupShown]:
    for group in GROUPS[form.kind]:
        held = tuple(field for path, field in shown.items() if group_of(path, form.kind) == group.id)
        used = [(shown[path], phrase) for path, phrase in group.headline if path in shown and not shown[path].needs]
        headline = [phrase.format(_written(field.kind, field.text)) for field, phrase in used if field.text != ""]
        differing = [_difference(field) for field in held if field.differs]
        differences = ", ".join(differing)
        if len(differing) > 2:
            differences = f"{differing[0]}, and {len(differing) - 1} more differ from the preset"
        yield GroupShown(group.id, group.title, " · ".join(headline), held, differences)


def placing_shown(form: RunForm) -> GroupShown:
    """The folded group of what is no part of the config: when the run's turn comes, and where it may run."""
    priorities = [("", str(level.value), level.label.lower()) for level in sorted(Priority, reverse=True)]
    about = "Runs of this project with a higher one go first. Against other projects it changes nothing."
    priority = _choice(form, "priority", "choice", about, priorities)
    labels = sorted({label for node in form.choices.nodes for label in node.labels})
    known = f"Here now: {', '.join(labels)}." if labels else "No node that is here has one."
    about = f"Only a node with this label takes the run; empty: any. {known} A label takes {LABEL_RULE}."
    label = _choice(form, "node_label", "text", about, ())
    chosen = next((name for _, value, name in priorities if value == priority.text), priority.text)
    values = f"priority {chosen} · {f'nodes with the label {label.text}' if label.text else 'any node'}"
    return GroupShown("placing", "Queue", values, (priority, replace(label, suggestions=tuple(labels))))


def registration_shown(form: RunForm) -> GroupShown:
    """The folded group of what is registered in the audit log at the launch and is no part of the config."""
    about = (
        "What you expect, one hypothesis a line. Registered in the audit log with suites, margins and reward when the "
        "run is launched, before its first step, and shown to anyone in the record's card. Each run of a sweep "
        "registers them with its own config. Empty: none."
    )
    field = _choice(form, "hypotheses", "lines", about, ())
    count = len([line for line in field.text.splitlines() if line.strip()])
    values = counted(count, "hypothesis", "hypotheses") if count else "suites, margins and reward; no hypothesis"
    return GroupShown("registration", "Registered before the first step", values, (field,))


def choices_shown(form: RunForm, shown: dict[str, FieldShown]) -> Iterator[FieldShown]:
    """The choices of the first screen that the kind has: name, preset, rows of the catalog, normalization."""
    yield from (field for field in _every_choice(form, shown) if form.has(field.name))


def _every_choice(form: RunForm, shown: dict[str, FieldShown]) -> Iterator[FieldShown]:
    presets = [("", "", "none: Cohort's defaults")]
    for family, heading in FAMILIES.items():
        presets += [
            (heading, preset.name, f"{preset_source(preset)}: {preset.title}")
            for preset in PRESETS.values()
            if preset.family == family
        ]
    rows = form.choices
    yield _choice(form, "name", "text", "What people call the run.", ())
    if form.kind == "grpo":
        yield _choice(form, "preset", "choice", preset_note(form, shown), presets)
    models = sorted(
        (
            ("" if m.checkpoint_id is None else _CHECKPOINTS, str(m.pk), m.name)
            for m in rows.base_models.rows_with(form.base_model)
        ),
        key=lambda option: option[0],
    )
    yield _choice(form, "base_model", "choice", _about_model(form), models)
    own = form.choices.datasets
    yield _choice(form, "dataset", "choice", _about_dataset(form), _datasets(own.rows_with(form.dataset)))
    others = [option for option in _datasets(own.rows) if option[1] != form.texts["dataset"]]
    if others:
        more = _choice(form, "more", "checks", "Read with the dataset as one.", others)
        yield replace(more, ticked=_chosen(form.more))
    held_out = [("", "", "none: split off from training"), *_datasets(own.rows_with(form.heldout))]
    yield _choice(form, "heldout", "choice", "Never trained on; measured before, while and after training.", held_out)
    earlier = [("", "", "none"), *_datasets(own.rows_with(form.replay))]
    about = "What an earlier reward model was trained on: a share of every batch is drawn from it."
    yield _choice(form, "replay", "choice", about, earlier)
    none = "none: hold out from training" if form.kind == "grpo" else "none"
    held_out = [("", "", none), *_datasets(form.choices.problems.rows_with(form.eval_dataset))]
    about = "Never trained on; answered before, while and after training."
    heldout = _choice(form, "eval_dataset", "choice", about, held_out)
    yield heldout if form.kind == "grpo" else replace(heldout, label="Held-out problems")
    versions = rows.verifier_versions.rows_with(form.verifier_version)
    rewards = _rewards(versions)
    yield _choice(form, "verifier_version", "choice", _about_reward(form), rewards)
    versions = rows.verifier_versions.rows_with(form.eval_verifier_version)
    judges = [("", "", "the reward source" if form.has("verifier_version") else "none"), *_rewards(versions)]
    about = "Judges held-out problems in place of the reward: a policy that exploits the reward does not win by it."
    if not form.has("verifier_version"):
        about = "Judges the held-out problems; a run of this kind has no reward of its own."
    yield _choice(form, "eval_verifier_version", "choice", about, judges)
    variants = [(heading, variant.value, variant.label) for heading, variant in offered(form.texts["variant"])]
    variant = ALL.get(form.texts["variant"])
    if form.kind == "grpo":
        yield _choice(form, "variant", "choice", variant.help if variant else "", variants)
    if rows.more:
        about = (
            f"Of more than {OFFERED} base models, datasets or rewards the newest with this in their name are offered."
        )
        yield _choice(form, "find", "text", about, ())


def _datasets(rows: Sequence[PromptDataset]) -> list[tuple[str, str, str]]:
    return [("", str(row.pk), f"{row.name} · {row.problems:,} {row.content}") for row in rows]


def _chosen(rows: Sequence[PromptDataset]) -> tuple[str, ...]:
    return tuple(str(row.pk) for row in rows)


def _rewards(versions: Sequence[VerifierVersion]) -> list[tuple[str, str, str]]:
    return [("", str(v.pk), f"{v.verifier.name} · version {v.number}") for v in versions]


def preset_note(form: RunForm, shown: dict[str, FieldShown]) -> str:
    """Beneath the preset: how the form differs from it, in words."""
    preset = PRESETS.get(form.texts["preset"])
    if preset is None:
        return "Every field starts at Cohort's own default."
    differing = [*_variant_difference(form, preset), *(_difference(field) for field in shown.values() if field.differs)]
    if not differing:
        return f"As {preset.called} has it. {preset.notes}"
    more = len(differing) - _DIFFERENCES_SHOWN
    rest = f" and {more} more" if more > 0 else ""
    return f"Differs from {preset.called} in: {', '.join(differing[:_DIFFERENCES_SHOWN])}{rest}."


def _variant_difference(form: RunForm, preset: Preset) -> list[str]:
    """The normalization's difference from the preset, only in what the preset sets of it."""
    preset_values = dict(preset.leaves())
    own_parts = form.texts["variant"].split("/")
    preset_parts = [str(preset_values.get(path, part)) for path, part in zip(FROM_VARIANT, own_parts, strict=False)]
    if preset_parts == own_parts or form.texts["variant"] not in ALL:
        return []
    whole = [str(preset_values.get(path, part)) for path, part in zip(FROM_VARIANT, DEFAULT.split("/"), strict=True)]
    value = next(value for value in ("/".join(preset_parts), "/".join(whole)) if value in ALL)
    return [f"normalization {ALL[form.texts['variant']].label} instead of {ALL[value].label}"]


def _difference(field: FieldShown) -> str:
    """ "G 8 instead of 16"."""
    label = field.label if field.label[:2].isupper() else field.label[:1].lower() + field.label[1:]
    text = _written(field.kind, field.text) if field.text != "" else "empty"
    return f"{SUBJECTS.get(field.name) or label} {text} instead of {_written(field.kind, field.differs)}"


def _choice(form: RunForm, name: str, kind: str, help: str, options: Sequence[tuple[str, str, str]]) -> FieldShown:
    text = form.texts[name]
    choices = list(options)
    if kind == "choice" and text not in [value for _, value, _ in choices]:
        choices.insert(0, ("", text, "choose" if text == "" else f"{text} (not in this project)"))
    by_heading: Options = {}
    for heading, value, label in choices:
        by_heading.setdefault(heading, []).append((value, label))
    return FieldShown.from_form(form, name, CHOICES[name], kind, help=help, options=by_heading)


def _about_model(form: RunForm) -> str:
    model = form.base_model
    if model is None:
        return "Where the policy starts."
    size = f"{num(model.parameters)} parameters" if model.parameters else "size not known until a worker has read it"
    digest, revision = model.weights_digest, model.revision
    weights = f"weights {digest[:8]}…" if digest else f"revision {revision[:8]}" if revision else ""
    made = "a checkpoint of a run" if model.checkpoint_id is not None else ""
    return " · ".join(filter(None, (model.architecture, size, weights, made)))


def _about_dataset(form: RunForm) -> str:
    dataset = form.dataset
    if dataset is None:
        return f"{CONTENTS[form.kind].label} to {'answer' if form.kind == 'sample' else 'train on'}."
    longest = dataset.prompt_chars.get("max")
    what = "longest prompt" if dataset.content == DatasetContent.PROBLEMS else "longest"
    length = f", {what} {longest:,} characters" if longest else ""
    return f"{dataset.format}, sha256 {dataset.sha256[:8]}…{length}"


def _about_reward(form: RunForm) -> str:
    version = form.verifier_version
    if version is None:
        return "What completions are scored by."
    parts = [f"{c['name']} ({c['kind']}, weight {c.get('weight', 1):g})" for c in version.spec["components"]]
    return f"{' + '.join(parts)}. {_about_probe(form)}"


def _about_probe(form: RunForm) -> str:
    """ "Probe: rewards 0 of 1,240 wrong answers; refuses 12 of 640 right ones.", without an interval: the classes were
    chosen, not drawn."""
    gate = form.gate
    if gate is None or gate.probe is None:
        return "Not probed."
    wrong, right = gate.probe.report["false_positive"], gate.probe.report["false_negative"]
    return (
        f"Probe: rewards {wrong['mistakes']:,} of {wrong['n']:,} wrong answers; refuses {right['mistakes']:,} of "
        f"{right['n']:,} right ones."
    )


def _ticked(spec: FieldSpec, text: str) -> tuple[str, ...]:
    return tuple(spec.from_text(text) or ()) if spec.kind == "checks" else ()


def _options(spec: FieldSpec, text: str) -> Options:
    if spec.kind not in ("choice", "checks"):
        return {}
    known = {str(choice): str(choice).replace("_", " ") for choice in spec.choices}
    given = _ticked(spec, text) if spec.kind == "checks" else (text,)
    return {"": list({**known, **{value: known.get(value, value or "choose") for value in given}}.items())}


def _other(spec: FieldSpec, text: str, preset_text: str) -> bool:
    return (spec.kind == "yaml" and _not_yaml(spec, text)) or bool(spec.from_text(text) != spec.from_text(preset_text))


def _not_yaml(spec: FieldSpec, text: str) -> bool:
    try:
        spec.from_text(text)
    except yaml.YAMLError:
        return True
    return False


def _written(kind: str, text: str) -> str:
    """A whole number with thousands separators, a word of the config with spaces, a switch as on or off."""
    if kind == "switch":
        return {"true": "on", "false": "off"}.get(text, text)
    whole = natural(text)
    return text.replace("_", " ").replace("\n", ", ") if whole is None else f"{whole:,}"
