"""The boundaries between the parts, by reading every import and by looking into fresh interpreters."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import clean_environment

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"torch", "transformers", "vllm", "deepspeed", "safetensors", "numpy"}

# Package → what none of its files may import, wherever the import stands in the file.
FORBIDDEN = {
    "grpo_core": {"django", "celery", "kombu", "httpx", "psycopg", "ninja", "cohort", "worker"},
    "worker": {"django", "psycopg", "ninja", "torch", "transformers", "cohort", "migrations"},
    "platform/cohort": {"torch", "transformers", "vllm", "deepspeed", "worker"},
    "migrations": {"torch", "transformers", "worker"},
}
# The half of grpo_core that the platform may import.
TORCH_FREE = [
    *("algo.overlong", "broker", "checkpoint_files", "clock", "commitments", "config", "config_algorithm"),
    *("config_base", "config_eval", "config_faults", "config_meaning", "config_mixes", "config_reward", "data"),
    *("disk", "energy", "errors", "estimate.told", "evaluate.attacks", "evaluate.item", "evaluate.scorers"),
    *("evaluate.starter", "evaluate.suites", "evaluate.told", "faults", "lab.job", "lab.result", "launch"),
    *("launch_hosts", "launch_part", "leaves", "monitors", "nvml", "presets", "probe", "records", "rewards"),
    *("rollout.vllm.server", "rollout.vllm.settings", "rollout.vllm.wire", "rollout.waves", "run_dir", "sandbox"),
    *("spool", "stats", "text", "watchdog", "weight_bytes", "wire", "yaml_text"),
]


def _is_torch_free(name: str) -> bool:
    """Whether a module of grpo_core, by its dotted name, is one of TORCH_FREE or inside one."""
    return any(f"{name}.".startswith(f"{free}.") for free in TORCH_FREE)


def _imports(file: Path) -> set[str]:
    """Dotted names of what the file imports, wherever the import stands; of two packages, which have public modules,
    the names that are taken from them too."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), filename=str(file))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif (
            isinstance(node, ast.ImportFrom) and node.level == 0 and node.module in ("grpo_core", "grpo_core.evaluate")
        ):
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module)
    return names


def _foreign(package: str, wrong: Callable[[str], bool]) -> dict[str, list[str]]:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    rows = {str(file.relative_to(ROOT)): sorted(filter(wrong, _imports(file))) for file in files}
    return {file: names for file, names in rows.items() if names}


@pytest.mark.parametrize("package", FORBIDDEN)
def test_no_file_imports_what_its_part_must_not_know(package: str) -> None:
    assert _foreign(package, lambda name: name.split(".")[0] in FORBIDDEN[package]) == {}


def test_the_platform_imports_only_the_torch_free_half() -> None:
    ours = "grpo_core."
    assert not _foreign("platform/cohort", lambda n: n.startswith(ours) and not _is_torch_free(n.removeprefix(ours)))


def _loaded_after(code: str, **environment: str) -> set[str]:
    """Top-level names in sys.modules of a fresh interpreter after `code`."""
    probe = f"{code}\nimport json, sys\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    kept = clean_environment()
    kept["PYTHONPATH"] = f"{ROOT}{os.pathsep}{ROOT / 'platform'}"  # this checkout, wherever the packages are installed
    done = subprocess.run(
        [sys.executable, "-c", probe], env=kept | environment, cwd="/", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_the_torch_free_half_loads_no_torch() -> None:
    """And no module inside a package of it."""
    code = f"""
import importlib, pkgutil
for name in {TORCH_FREE}:
    module = importlib.import_module(f"grpo_core.{{name}}")
    for inner in pkgutil.walk_packages(getattr(module, "__path__", []), module.__name__ + "."):
        if inner.name != "grpo_core.sandbox.launcher":  # the first program of a box, which runs there and nowhere else
            importlib.import_module(inner.name)
"""
    assert sorted(_loaded_after(code) & (HEAVY | FORBIDDEN["grpo_core"])) == []


def test_the_whole_platform_loads_no_torch_and_no_worker(tmp_path: Path) -> None:
    """Every page, task and API handler is imported: the URL table and Celery's tasks pull them in."""
    everything = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "cohort.settings"
import django; django.setup()
import importlib, pkgutil, cohort
for module in pkgutil.walk_packages(cohort.__path__, "cohort."):
    if not module.name.endswith("__main__") and module.name != "cohort.wsgi":
        importlib.import_module(module.name)
from django.urls import get_resolver
get_resolver().url_patterns
"""
    loaded = _loaded_after(
        everything, COHORT_MODE="test", COHORT_HOME=str(tmp_path), COHORT_DATABASE_URL="postgresql:///none"
    )
    assert "django" in loaded
    assert sorted(loaded & (HEAVY | {"worker"})) == []


def test_the_worker_works_where_django_database_and_torch_are_not(tmp_path: Path) -> None:
    """kombu imports a bit of Django wherever Django is installed, so here imports of it fail as on a GPU host."""
    absent = f"import sys\nsys.modules.update(dict.fromkeys({sorted(HEAVY | FORBIDDEN['worker'])!r}))"
    loaded = _loaded_after(
        f"{absent}\nimport worker.celery_app, worker.tasks, worker.jobs, worker.supervise_job\n"
        "for name in [name for name, module in sys.modules.items() if module is None]: del sys.modules[name]",
        COHORT_HOME=str(tmp_path),
    )
    assert "celery" in loaded
    assert sorted(loaded & (HEAVY | FORBIDDEN["worker"])) == []


@pytest.mark.parametrize("command", ["cohort", "grpo"])
def test_help_loads_nothing_heavy(command: str) -> None:
    """-X importtime lists every module that was imported, on stderr."""
    words = [sys.executable, "-X", "importtime", str(Path(sys.executable).parent / command), "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.startswith("usage: " + command)
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "argparse" in imported
    absent = HEAVY | {"django", "celery", "worker"} | ({"pydantic", "yaml"} if command == "grpo" else set())
    assert sorted(imported & absent) == []
