"""What a preset changed in the form, before and after, and its undoing; how a clone differs from its parent."""

import json
from dataclasses import dataclass

from cohort.launch.differences import parent_differences
from cohort.web.launch.layout import of_presets
from cohort.web.launch.run_form import RunForm
from cohort.web.launch.schema import CHOICES, every_field
from cohort.web.launch.variants import ALL
from grpo_core.config.preset_differences import Difference


@dataclass(frozen=True)
class Change:
    label: str
    before: str
    after: str


def choose_preset(form: RunForm) -> None:
    """Fill the form from the preset that its list shows; `undo` then holds what was there before. The preset before is
    the one that the last choice filled in, or that the form was opened with."""
    before = dict(form.texts)
    form.fill_preset(form.texts["preset"])
    changed = {name: text for name, text in before.items() if form.texts[name] != text}
    form.texts["undo"] = json.dumps({**changed, "preset": before["preset_before"]}) if changed else ""
    form.texts["preset_before"] = form.texts["preset"]


def undo_preset(form: RunForm) -> bool:
    """Put back what the last choice of a preset replaced; False when nothing can be read in `undo`."""
    replaced = _replaced(form)
    form.texts |= replaced
    form.texts |= {"undo": "", "preset_before": form.texts["preset"]}
    return bool(replaced)


def _replaced(form: RunForm) -> dict[str, str]:
    try:
        held = json.loads(form.texts["undo"] or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(held, dict):
        return {}
    return {
        name: text
        for name, text in held.items()
        if isinstance(text, str) and (name in ("name", "preset") or (name in form.texts and of_presets(name)))
    }


def preset_changes(form: RunForm) -> list[Change]:
    """What the last choice of a preset changed and still is otherwise, in the form's order."""
    return [
        Change(_label(name), _shown(name, text), _shown(name, form.texts[name]))
        for name, text in _replaced(form).items()
        if name not in ("name", "preset") and text != form.texts[name]
    ]


def clone_differences(form: RunForm) -> tuple[Difference, ...] | None:
    """From the run that it was cloned from; None for no clone, and while a setting is not valid."""
    parent = form.cloned_from
    if parent is None or form.config is None:
        return None
    return parent_differences(parent, form.config, form.rows)


def _label(name: str) -> str:
    return CHOICES[name] if name in CHOICES else every_field()[name].label


def _shown(name: str, text: str) -> str:
    if name == "variant":
        return ALL[text].label if text in ALL else text
    return {"true": "on", "false": "off", "": "empty"}.get(text, text.replace("_", " "))
