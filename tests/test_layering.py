"""The boundaries between the parts, by reading every import and by looking into fresh interpreters."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.processes import clean_environment

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"torch", "transformers", "vllm", "deepspeed", "safetensors", "numpy"}

# Package → what none of its files may import, wherever the import stands in the file.
FORBIDDEN = {
    "grpo_core": {"django", "celery", "kombu", "psycopg", "ninja", "cohort", "worker"},
    "worker": {"django", "psycopg", "ninja", "torch", "transformers", "cohort", "migrations"},
    "platform/cohort": {"torch", "transformers", "vllm", "deepspeed", "worker"},
    "migrations": {"torch", "transformers", "worker"},
}
# grpo_core's folders and the modules beside them, lowest first: each imports only from those before it.
ORDER = [
    *("errors", "text", "stats", "specs", "advantages", "losses", "config", "compute", "records", "protocol"),
    *("runtime", "files", "data", "sandbox"),
    *("algo", "distributed", "model", "rollout", "training"),
    *("rewards", "monitors", "evaluate", "probe", "replay", "pipeline", "trainer", "estimate", "lab", "cli"),
]
PLATFORM_ORDER = [
    *("base", "evidence", "audit", "accounts", "catalog", "nodes", "runs"),
    *("evaluations", "lab", "contamination", "review", "launch", "pipelines", "ingest", "records", "alerts"),
    *("worker_api", "background", "server", "api", "web", "urls", "cli"),
]
"""The platform's folders; `settings` stands beside them and is imported by Django."""
WORKER_ORDER = [
    *("environment", "devices", "platform_client", "processes", "node", "folders", "exit_cause"),
    *("supervisor", "celery_app", "tasks"),
]
TORCH = {"algo", "distributed", "model", "rollout", "training", "trainer", "estimate"}
"""Folders that load torch; importing any other loads none."""


class _RunTime(ast.NodeTransformer):
    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)


def _imports(file: Path, *, types: bool = True) -> set[str]:
    """Dotted names of what the file imports, wherever the import stands: a.b of `from a import b`. Without `types`,
    what it imports for annotations alone is left out."""
    names: set[str] = set()
    tree: ast.AST = ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
    for node in ast.walk(tree if types else _RunTime().visit(tree)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def _foreign(package: str, wrong: Callable[[str], bool]) -> dict[str, list[str]]:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    rows = {str(file.relative_to(ROOT)): sorted(filter(wrong, _imports(file))) for file in files}
    return {file: names for file, names in rows.items() if names}


@pytest.mark.parametrize("package", FORBIDDEN)
def test_no_file_imports_what_its_part_must_not_know(package: str) -> None:
    assert _foreign(package, lambda name: name.split(".")[0] in FORBIDDEN[package]) == {}


def test_two_modules_call_over_http() -> None:
    """The second is the one call of a check, in verify.pyz, which has the standard library alone."""
    clients = ("httpx", "httpcore", "http.client", "urllib.request", "urllib3", "requests", "aiohttp")
    found = {part: _foreign(part, lambda name: name.startswith(clients)) for part in FORBIDDEN}
    assert [file for files in found.values() for file in files] == [
        "grpo_core/runtime/http.py",
        "platform/cohort/evidence/verify/online.py",
    ]


def test_the_platform_imports_only_what_loads_no_torch() -> None:
    assert not _foreign("platform/cohort", lambda name: name.startswith("grpo_core.") and name.split(".")[1] in TORCH)


@pytest.mark.parametrize(
    ("package", "order"),
    [("grpo_core", ORDER), ("platform/cohort", PLATFORM_ORDER), ("worker", WORKER_ORDER)],
    ids=["trainer", "platform", "worker"],
)
def test_folders_import_downwards(package: str, order: list[str]) -> None:
    """Wherever the import stands in the file."""
    root = ROOT / package
    folders = (path.parent for path in root.glob("*/__init__.py"))
    assert {path.stem for path in (*root.glob("*.py"), *folders)} - {"__init__", "settings"} == set(order)
    rank = {f"{root.name}.{part}": number for number, part in enumerate(order)}
    for part in order:
        path = root / part
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]:
            imported = {name: rank.get(".".join(name.split(".")[:2]), -1) for name in _imports(file)}
            above = {name for name, number in imported.items() if number > rank[f"{root.name}.{part}"]}
            assert not above, f"{file.relative_to(ROOT)} imports {above}"


@pytest.mark.parametrize("package", ["grpo_core", "worker", "platform/cohort"])
def test_no_imports_in_a_circle(package: str) -> None:
    """Of modules, wherever the import stands; names one circle."""
    names = {
        file: ".".join(file.relative_to((ROOT / package).parent).with_suffix("").parts).removesuffix(".__init__")
        for file in (ROOT / package).rglob("*.py")
    }
    modules = set(names.values())

    def imported(file: Path) -> Iterator[str]:
        for name in _imports(file, types=False):
            while name and name not in modules:  # a name in a module, or in a package's own file
                name = name.rpartition(".")[0]
            yield name

    sorter = TopologicalSorter({name: set(imported(file)) - {name, ""} for file, name in names.items()})
    sorter.prepare()


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


def test_other_folders_load_no_torch() -> None:
    """And no module inside them."""
    code = f"""
import importlib, pkgutil
for name in {[part for part in ORDER if part not in TORCH]}:
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
    if not module.name.endswith("__main__") and module.name != "cohort.server.wsgi":
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
        f"{absent}\nimport worker.celery_app, worker.tasks, worker.supervisor.__main__\n"
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
