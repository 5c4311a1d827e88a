"""The form's config as text to take along: YAML, the commands that train it without the platform, and the API call that
launches its run. Of a sweep, each is of the form's own values, without the sweep's lines.
"""

import json
import re
import secrets
import shlex
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import reverse

from cohort.catalog.run_inputs import input_path
from cohort.launch.requests import request_from
from cohort.web.access import file_response
from cohort.web.launch.run_form import RunForm
from cohort.web.launch.schema import CHOICES, every_field
from grpo_core.config.kinds import AnyConfig

COPIES = ("yaml", "command", "api")


def copied(request: HttpRequest, form: RunForm, config: AnyConfig, what: str, *, as_json: bool) -> HttpResponse:
    """One of `COPIES`: as JSON for the page's own script, else as a file."""
    match what:
        case "yaml":
            text = config.to_yaml()
        case "command":
            text = as_command(form, config)
        case _:
            text = as_api_call(form, config, server=request.build_absolute_uri("/").rstrip("/"))
    if as_json:
        return JsonResponse({"text": text})
    ending, kind = ("yaml", "application/yaml") if what == "yaml" else ("sh", "text/x-shellscript")
    return file_response(text, kind, f"{_stem(config)}.{ending}")


def refused(form: RunForm) -> JsonResponse:
    """Why there is nothing to copy: each faulty input by its label."""
    faults = [f"{_label(name)}: {fault}" for name, of_name in form.problems.items() for fault in of_name]
    return JsonResponse({"faults": [*faults, *form.general]}, status=422)


def as_command(form: RunForm, config: AnyConfig) -> str:
    """A script for an empty folder: writes the config, says which files it reads, and trains."""
    rows: dict[str, Any] = {
        config.data.path: form.dataset,
        **{input_path(dataset): dataset for _, dataset in form.further_data.named},
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


def as_api_call(form: RunForm, config: AnyConfig, *, server: str) -> str:
    """A script that launches the form's run with curl. `server`: the platform's address, without a slash at the end."""
    rows, placing = {**form.measured_rows, "further": form.further_data}, form.placing
    request = request_from(
        config,
        **rows,
        priority=placing["priority"],
        node_label=placing["node_label"],
        cloned_from=placing["cloned_from"].pk if placing["cloned_from"] else None,
        hypotheses=placing["hypotheses"],
        probe_override=form.texts["probe_override"].strip(),
        overlap_seen=form.texts["overlap_seen"],
        launch=True,
    )
    runs = f"{server}{reverse('api:run_create', args=[form.project.slug])}"
    lines = [
        f"# Launches this run. Make a token with the scope launch at {server}{reverse('api_token_list')}",
        "# and export it as COHORT_API_TOKEN.",
        "# Sent twice with the same Idempotency-Key it makes one run; take another key for another run.",
        f"curl --fail-with-body --silent --show-error {shlex.quote(runs)} \\",
        '  --header "Authorization: Bearer $COHORT_API_TOKEN" \\',
        "  --header 'Content-Type: application/json' \\",
        f"  --header 'Idempotency-Key: {secrets.token_hex(16)}' \\",
        "  --data-binary @- <<'END_OF_REQUEST'",
        json.dumps(request.model_dump(), indent=2),  # in ASCII: pasted into any terminal it stays what it is
        "END_OF_REQUEST",
    ]
    return "\n".join(lines) + "\n"


def _stem(config: AnyConfig) -> str:
    return (re.sub(r"[^A-Za-z0-9._-]+", "-", config.name).strip("-.") or "run")[:60]


def _label(name: str) -> str:
    known = every_field().get(name)
    return CHOICES.get(name) or (known.label if known else name)
