"""The form's config as text to take along: YAML, and the commands that train it without the platform."""

import re
import shlex
from typing import Any

from django.http import HttpResponse, JsonResponse

from cohort.web.access import file_response
from cohort.web.launch.run_form import RunForm
from cohort.web.launch.schema import CHOICES, fields
from grpo_core.config.run import RunConfig

COPIES = ("yaml", "command")


def copied(form: RunForm, config: RunConfig, what: str, *, as_json: bool) -> HttpResponse:
    """One of `COPIES`: as JSON for the page's own script, else as a file."""
    text = config.to_yaml() if what == "yaml" else as_command(form, config)
    if as_json:
        return JsonResponse({"text": text})
    ending, kind = ("yaml", "application/yaml") if what == "yaml" else ("sh", "text/x-shellscript")
    return file_response(text, kind, f"{_stem(config)}.{ending}")


def refused(form: RunForm) -> JsonResponse:
    """Why there is nothing to copy: each faulty input by its label."""
    faults = [f"{_label(name)}: {fault}" for name, of_name in form.problems.items() for fault in of_name]
    return JsonResponse({"faults": [*faults, *form.general]}, status=422)


def as_command(form: RunForm, config: RunConfig) -> str:
    """A script for an empty folder: writes the config, says which files it reads, and trains."""
    rows: dict[str, Any] = {
        config.data.path: form.dataset,
        **({config.eval.path: form.eval_dataset} if config.eval.path else {}),
        **{suite.path: chosen.version for suite, chosen in zip(config.eval.suites, form.suites, strict=True)},
    }
    needed = [f"{path}: {row} of the catalog" for path, row in rows.items() if not path.startswith("builtin:")]
    model = "a folder of the models folder" if config.model.revision is None else "fetched from the Hub"
    if form.base_model is not None and form.base_model.checkpoint_id is not None:
        model = "the folder in the zip that the checkpoint's page gives"
    lines = [
        "# In an empty folder, with grpo installed. It reads next to the config:",
        *(f"#   {line}" for line in needed),
        f"#   {config.model.path}: the base model, {model}",
        "cat > config.yaml <<'END_OF_CONFIG'",
        config.to_yaml().rstrip("\n"),
        "END_OF_CONFIG",
        f"grpo train config.yaml --out {shlex.quote(f'runs/{_stem(config)}')}",
    ]
    return "\n".join(lines) + "\n"


def _stem(config: RunConfig) -> str:
    return (re.sub(r"[^A-Za-z0-9._-]+", "-", config.name).strip("-.") or "run")[:60]


def _label(name: str) -> str:
    known = fields().get(name)
    return CHOICES.get(name) or (known.label if known else name)
