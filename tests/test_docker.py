"""The Docker files name only what exists: paths, extras, commands, variables, secrets. They are read, not built."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from cohort.environment import Environment as PlatformEnvironment
from cohort.runs.dispatch import SEAL_QUEUE
from grpo_core.broker import LAB_QUEUE, PLATFORM_QUEUE
from tests.processes import clean_environment
from worker.environment import Environment as WorkerEnvironment

ROOT = Path(__file__).resolve().parent.parent
DOCKER = ROOT / "docker"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
FILES = {"web": DOCKER / "web.Dockerfile", "worker": DOCKER / "worker.Dockerfile"}
KNOWN = {
    "web": {f"COHORT_{name.upper()}" for name in PlatformEnvironment.model_fields},
    "worker": {f"COHORT_{name.upper()}" for name in WorkerEnvironment.model_fields},
}
IMAGE = {"cohort-web": "web", "cohort-worker": "worker"}


def instructions(which: str) -> list[tuple[str, str]]:
    """(instruction, arguments) of a Dockerfile, lines joined and comments left out."""
    lines = [line for line in FILES[which].read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def arguments(which: str, instruction: str) -> list[str]:
    return [rest for word, rest in instructions(which) if word == instruction]


def services() -> Iterator[tuple[str, dict[str, Any]]]:
    yield from COMPOSE["services"].items()


def copied_into(which: str) -> set[str]:
    """Paths of the checkout that the image takes."""
    lines = [line.split() for line in arguments(which, "COPY") if not line.startswith("--from=")]
    return {source for *sources, _ in lines for source in sources}


@pytest.mark.parametrize("which", FILES)
def test_every_copied_path_exists_and_all_packages_are_copied(which: str) -> None:
    copied = copied_into(which)
    assert copied
    assert [source for source in sorted(copied) if not (ROOT / source).exists()] == []
    # What hatchling needs for the wheel: the packages, the templates, and the files that the metadata name.
    hatch = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    wanted = {path.split("/")[0] for path in hatch["packages"]} | set(hatch["force-include"])
    assert wanted | {"pyproject.toml", PROJECT["readme"], *PROJECT["license-files"]} <= copied


@pytest.mark.parametrize("which", FILES)
def test_only_what_is_copied_is_sent_to_the_builder(which: str) -> None:
    lines = (DOCKER / f"{which}.Dockerfile.dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == copied_into(which)
    assert [rule for rule in rules[1:] if not rule.startswith("!")] == ["**/__pycache__"]


@pytest.mark.parametrize("which", FILES)
def test_nothing_is_installed_in_a_version_that_is_not_pinned(which: str) -> None:
    installs = [part for line in arguments(which, "RUN") for part in line.split("&&") if "pip install" in part]
    assert installs
    assert [part for part in installs if "--constraint constraints.txt" not in part] == []
    # A build environment of pip's own takes the newest hatchling, so ours is installed before and used.
    assert "hatchling" in installs[0]
    assert "--no-build-isolation" in installs[-1]


def test_every_foreign_image_is_named_by_its_full_version() -> None:
    foreign = [service["image"] for _, service in services() if "build" not in service]
    foreign += [line.split()[0] for which in FILES for line in arguments(which, "FROM")]
    assert len(foreign) == 6
    assert [image for image in foreign if not re.fullmatch(r"\w+:\d+\.\d+(\.\d+)?-[a-z-]+", image)] == []


def test_a_database_that_is_being_made_does_not_pass_for_ready() -> None:
    """The image's first server listens on the socket alone, then ends: asked by TCP it is not there yet."""
    assert COMPOSE["services"]["database"]["healthcheck"]["test"][:3] == ["CMD", "pg_isready", "--host"]
    assert COMPOSE["services"]["migrate"]["restart"] == "on-failure"


@pytest.mark.parametrize(("which", "extras"), [("web", {"platform"}), ("worker", {"worker", "train"})])
def test_the_images_install_extras_that_exist(which: str, extras: set[str]) -> None:
    named = re.findall(r'"\.\[([a-z,]+)\]"', FILES[which].read_text())
    assert [set(group.split(",")) for group in named] == [extras]
    assert extras <= set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize(("which", "programs"), [("web", {"git", "openssh-client"}), ("worker", {"bubblewrap"})])
def test_the_programs_that_are_started_are_in_the_image_and_nothing_else(which: str, programs: set[str]) -> None:
    """In the image that runs, not the one that builds; with no package that is only recommended, and no lists."""
    words = [word for word, _ in instructions(which)]
    last = len(words) - 1 - words[::-1].index("FROM")
    (line,) = [rest for word, rest in instructions(which)[last:] if word == "RUN" and "apt-get" in rest]
    update, install, lists = (shlex.split(part) for part in line.split("&&"))
    assert update == ["apt-get", "update"]
    assert install[:4] == ["apt-get", "install", "--yes", "--no-install-recommends"]
    assert set(install[4:]) == programs
    assert lists == ["rm", "-rf", "/var/lib/apt/lists/*"]


def test_who_pushes_the_log_is_told_where_to() -> None:
    """The service whose queue that is, and the one whose clock asks for it."""
    for name in ("seal-worker", "platform-worker"):
        environment = COMPOSE["services"][name]["environment"]
        assert {f"COHORT_LOG_{what}" for what in ("GIT", "WITNESS", "WITNESS_KEY")} <= set(environment)


def test_torch_is_pinned_where_the_worker_image_looks_for_it() -> None:
    assert "$(grep '^torch==' constraints.txt)" in FILES["worker"].read_text()
    assert len(re.findall(r"^torch==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)) == 1


@pytest.mark.parametrize("which", FILES)
def test_the_python_of_the_images_is_supported(which: str) -> None:
    versions = re.findall(r"python:(\d+\.\d+)\.\d+-", FILES[which].read_text())
    assert versions
    supported = [word.rsplit(" ", 1)[-1] for word in PROJECT["classifiers"] if "Python :: 3." in word]
    assert set(versions) <= set(supported)


def commands() -> Iterator[tuple[str, list[str]]]:
    """(image, words) of every command that an image or a service runs."""
    for which in FILES:
        for line in arguments(which, "CMD"):
            yield which, json.loads(line)
    for _, service in services():
        if service.get("image") in IMAGE and "command" in service:
            yield IMAGE[service["image"]], service["command"]
    example = (DOCKER / "env.example").read_text()
    for line in re.findall(r"exec(?: -T)? web (cohort [^>\n]*)", example):
        yield "web", shlex.split(line)


@pytest.mark.parametrize(
    ("which", "words"), list(commands()), ids=lambda value: value[0] if isinstance(value, list) else value
)
def test_every_command_exists(which: str, words: list[str]) -> None:
    program, *rest = words
    installed = {"web": {"gunicorn", "celery", "cohort"}, "worker": {"celery", "grpo"}}[which]
    assert program in installed
    if program == "gunicorn":
        assert rest == ["--config", "python:cohort.gunicorn", "cohort.wsgi:application"]
        assert find_spec("cohort.gunicorn")
        assert find_spec("cohort.wsgi")
    elif program == "celery":
        app = {"web": "cohort.celery", "worker": "worker.celery_app"}[which]
        assert rest[:3] == ["-A", app, "worker"]
        assert find_spec(app)
        from celery.bin.worker import worker as command

        context = command.make_context("worker", rest[3:], resilient_parsing=True)
        # A worker's app names its queues itself, by its labels and GPUs.
        assert (
            context.params["queues"] in {"web": [[PLATFORM_QUEUE], [SEAL_QUEUE]], "worker": [None, [LAB_QUEUE]]}[which]
        )
        known = {option for parameter in command.params for option in parameter.opts}
        assert [word for word in rest[3:] if word.startswith("--") and word not in known] == []
    else:
        from cohort import cli

        assert rest[0] in {"manage", "user", "node"}
        if rest[0] == "manage":
            from django.core.management import get_commands

            assert rest[1] in get_commands()
        else:
            cli._parser().parse_args(rest)


def test_each_queue_of_the_platform_has_a_service_of_its_own_and_one_of_them_a_clock() -> None:
    """Otherwise lost workers are found only once no record is being made, or records are not made at all."""
    words = [service["command"] for name, service in services() if "cohort.celery" in service.get("command", [])]
    queues = {line[line.index("--queues") + 1]: "--beat" in line for line in words}
    assert (len(words), queues) == (2, {PLATFORM_QUEUE: True, SEAL_QUEUE: False})


def test_the_web_server_listens_where_it_is_told(tmp_path: Path) -> None:
    settings = {
        "COHORT_MODE": "production",
        "COHORT_HOME": str(tmp_path),
        "COHORT_SECRET_KEY": "k" * 50,
        "COHORT_DATABASE_URL": "postgresql:///none",
        "COHORT_BROKER_URL": "amqp://broker",
        "COHORT_LISTEN": "0.0.0.0:8499",
        "COHORT_WEB_WORKERS": "3",
    }
    words = [sys.executable, "-m", "gunicorn", "--print-config", "--config", "python:cohort.gunicorn", "cohort.wsgi"]
    done = subprocess.run(
        words, env=clean_environment() | settings, cwd="/", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^bind +=.*0\.0\.0\.0:8499", done.stdout, re.MULTILINE)
    assert re.search(r"^workers +=.*3", done.stdout, re.MULTILINE)


def given(which: str) -> set[str]:
    """COHORT_ variables that the image itself sets."""
    return set(re.findall(r"\b(COHORT_[A-Z_]+)=", FILES[which].read_text()))


@pytest.mark.parametrize("which", FILES)
def test_every_variable_of_an_image_is_one_that_its_program_reads(which: str) -> None:
    assert given(which)
    assert sorted(given(which) - KNOWN[which]) == []


def test_every_variable_of_a_service_is_one_that_its_program_reads() -> None:
    checked = 0
    for name, service in services():
        if service.get("image") in IMAGE:
            wrong = set(service["environment"]) - KNOWN[IMAGE[service["image"]]]
            assert not wrong, f"{name}: {sorted(wrong)}"
            checked += 1
    assert checked == 6


def test_the_worker_is_given_no_database_and_no_key() -> None:
    for name in ("gpu-worker", "lab-worker"):
        worker = COMPOSE["services"][name]
        assert not [name for name in worker["environment"] if "DATABASE" in name or "SECRET" in name]
        assert not {"database_url", "database_password", "secret_key"} & set(worker["secrets"])


def test_runs_and_jobs_of_the_lab_are_taken_by_services_of_their_own() -> None:
    """Otherwise a probe waits for a run of days."""
    words = {name: COMPOSE["services"][name].get("command", []) for name in ("gpu-worker", "lab-worker")}
    queues = {name: line[line.index("--queues") + 1] if "--queues" in line else None for name, line in words.items()}
    assert queues == {"gpu-worker": None, "lab-worker": LAB_QUEUE}


def test_the_platform_would_start_with_what_compose_gives_it() -> None:
    """Production mode asks for these; each comes from a secret that the service is given."""
    for name in ("web", "platform-worker", "seal-worker", "migrate"):
        environment = COMPOSE["services"][name]["environment"]
        assert environment["COHORT_MODE"] == "production"
        for variable in ("SECRET_KEY", "DATABASE_URL", "BROKER_URL"):
            secret = environment[f"COHORT_{variable}_FILE"].removeprefix("/run/secrets/")
            assert secret in COMPOSE["services"][name]["secrets"]


def test_secrets_and_volumes_are_declared_and_used() -> None:
    secrets, volumes = set(), set()
    for _, service in services():
        for secret in service.get("secrets", []):
            secrets.add(secret if isinstance(secret, str) else secret["source"])
        volumes.update(word.split(":")[0] for word in service.get("volumes", []) if re.match(r"[a-z]", word))
    assert secrets == set(COMPOSE["secrets"])
    assert volumes == set(COMPOSE["volumes"])
    example = (DOCKER / "env.example").read_text()
    for secret in COMPOSE["secrets"].values():
        assert Path(secret["file"]).name in example, "env.example must say how to make it"


def test_services_depend_on_services_and_build_from_files_that_exist() -> None:
    names = set(COMPOSE["services"])
    for _, service in services():
        assert set(service.get("depends_on", {})) <= names
        if "build" in service:
            context = (DOCKER / service["build"]["context"]).resolve()
            assert context == ROOT
            assert (context / service["build"]["dockerfile"]).is_file()
        for dependency, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                theirs = COMPOSE["services"][dependency]
                which = IMAGE.get(theirs["image"])
                assert "healthcheck" in theirs or (which and arguments(which, "HEALTHCHECK"))


def test_env_example_names_every_variable_that_compose_reads_and_no_other() -> None:
    read = set(re.findall(r"\$\{([A-Z_]+)", (DOCKER / "compose.yaml").read_text()))
    named = set(re.findall(r"^([A-Z_]+)=", (DOCKER / "env.example").read_text(), re.MULTILINE))
    assert named == read


def test_the_port_is_the_same_everywhere() -> None:
    (listen,) = re.findall(r"COHORT_LISTEN=0\.0\.0\.0:(\d+)", FILES["web"].read_text())
    assert arguments("web", "EXPOSE") == [listen]
    assert f"127.0.0.1:{listen}/healthz" in FILES["web"].read_text()
    assert COMPOSE["services"]["web"]["ports"][0].endswith(f":{listen}")
    worker = COMPOSE["services"]["gpu-worker"]["environment"]["COHORT_URL"]
    assert worker == f"http://web:{listen}"
    assert "web" in COMPOSE["services"]["web"]["environment"]["COHORT_ALLOWED_HOSTS"].split(",")
