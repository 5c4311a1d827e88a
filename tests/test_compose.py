"""What docker/compose.yaml keeps apart: who reaches whom, what each part may write, take and do."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

DOCKER = Path(__file__).resolve().parents[1] / "docker"
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
NODES = ("gpu-worker", "lab-worker")
PLATFORM = ("migrate", "web", "ingest", "platform-worker", "seal-worker")


@pytest.mark.parametrize("name", SERVICES)
def test_a_part_writes_only_to_its_volumes_and_has_no_rights_and_bounds(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "network_mode", "pid", "ipc", "devices", "userns_mode"} & set(service)
    assert service["mem_limit"]
    assert service["pids_limit"] > 0
    assert service["networks"]
    assert not [volume for volume in service["volumes"] if "docker.sock" in volume]
    hosts = [volume for volume in service["volumes"] if volume.startswith((".", "/", "$"))]
    assert [volume for volume in hosts if not volume.endswith(":ro")] == []


def reached(name: str) -> set[str]:
    """Parts that it shares a network with."""
    own = set(SERVICES[name]["networks"])
    return {other for other, service in SERVICES.items() if other != name and own & set(service["networks"])}


def test_only_the_proxy_is_published() -> None:
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["proxy"]
    for name in ("app", "data", "messages"):
        assert COMPOSE["networks"][name] == {"internal": True}


@pytest.mark.parametrize("name", NODES)
def test_a_node_reaches_the_proxy_and_the_broker_and_nothing_else(name: str) -> None:
    assert reached(name) - set(NODES) == {"proxy", "broker"}
    assert set(SERVICES[name]["secrets"]) == {"node_token", "node_broker_url"}


def test_the_brokers_own_ports_are_not_for_nodes() -> None:
    given = SERVICES["broker"]["environment"]
    assert given["RABBITMQ_NODENAME"].endswith("@localhost")
    assert "inet_dist_use_interface {127,0,0,1}" in given["RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"]
    assert given["ERL_EPMD_ADDRESS"] == "127.0.0.1"


def test_the_database_is_reached_by_the_platform_alone() -> None:
    assert reached("database") == set(PLATFORM)
    assert "database" not in reached("proxy")


def test_each_part_connects_to_the_database_as_its_own_role() -> None:
    urls = {}
    for name in PLATFORM:
        (urls[name],) = [secret for secret in SERVICES[name]["secrets"] if secret.startswith("database_url")]
        assert SERVICES[name]["environment"]["COHORT_DATABASE_URL_FILE"] == f"/run/secrets/{urls[name]}"
    owner, ingest = urls.pop("migrate"), urls.pop("ingest")
    assert (owner, ingest, set(urls.values())) == ("database_url", "database_url_ingest", {"database_url_web"})
    script = DOCKER / "database-roles.sh"
    subprocess.run(["sh", "-n", str(script)], check=True)
    assert script.stat().st_mode & 0o111


def test_pages_and_workers_calls_have_a_web_server_each_and_the_pulse_goes_the_workers_way() -> None:
    served = {name: SERVICES[name]["environment"].get("COHORT_SERVES") for name in PLATFORM}
    assert {name: part for name, part in served.items() if part} == {"web": "pages", "ingest": "workers"}
    addresses = {SERVICES[name]["environment"]["COHORT_PULSE_URL"] for name in ("web", "ingest")}
    assert addresses == {SERVICES["gpu-worker"]["environment"]["COHORT_URL"]}
    assert SERVICES["web"]["environment"]["COHORT_ALLOWED_HOSTS"] == "proxy"


def test_an_image_of_others_is_named_by_what_env_example_pins() -> None:
    """Compose does not start without; the value has the digest."""
    example = (DOCKER / "env.example").read_text(encoding="utf-8")
    pinned = re.search(r"for image in (.*); do\n.*digest", example)
    assert pinned
    images = {f"{image.split(':')[0].upper()}_IMAGE" for image in pinned[1].split()}
    used = set(re.findall(r"\$\{(\w+_IMAGE):\?", (DOCKER / "compose.yaml").read_text(encoding="utf-8")))
    assert used == images
    named = [service["image"] for service in SERVICES.values() if not service["image"].startswith("cohort-")]
    assert [image for image in named if not re.match(r"\$\{\w+_IMAGE:\?", image)] == []
    for file in DOCKER.glob("*.Dockerfile"):
        bases = re.findall(r"^FROM (\S+)", file.read_text(encoding="utf-8"), re.MULTILINE)
        assert bases
        assert [base for base in bases if base not in ("$PYTHON_IMAGE", "$NGINX_IMAGE")] == [], file.name


def commented_commands() -> Iterator[str]:
    for line in (DOCKER / "env.example").read_text(encoding="utf-8").splitlines():
        if line.startswith("#   "):
            yield line[4:]


def test_the_commands_of_env_example_make_every_secret(tmp_path: Path) -> None:
    """As they are written there, up to where Docker is needed."""
    for name in ("fullchain.pem", "privkey.pem"):
        (tmp_path / name).write_text(name)
    (tmp_path / "docker").mkdir()
    text = "\n".join(commented_commands())
    script = text[: text.index("cd ../..")].replace("/path/to/", f"{tmp_path}/")
    subprocess.run(["sh", "-euc", script], cwd=tmp_path, check=True)
    made = tmp_path / "docker" / "secrets"
    wanted = {Path(secret["file"]).name for secret in COMPOSE["secrets"].values()}
    assert sorted(wanted - {file.name for file in made.iterdir()}) == []
    assert made.stat().st_mode & 0o077 == 0
    assert len((made / "secret_key").read_text()) >= 50
    assert re.fullmatch(
        r"postgresql://cohort_web:[0-9a-f]{48}@database/cohort", (made / "database_url_web").read_text()
    )
    assert re.fullmatch(r"amqp://node-gpu-1:[0-9a-f]{48}@broker:5672//", (made / "node_broker_url").read_text())


def test_every_variable_of_compose_is_in_env_example_or_has_a_default() -> None:
    text = (DOCKER / "compose.yaml").read_text(encoding="utf-8")
    must = set(re.findall(r"\$\{(\w+):\?", text)) - {"POSTGRES_IMAGE", "RABBITMQ_IMAGE", "NGINX_IMAGE", "PYTHON_IMAGE"}
    example = set(re.findall(r"^(\w+)=", (DOCKER / "env.example").read_text(encoding="utf-8"), re.MULTILINE))
    assert sorted(must - example) == []
    optional = set(re.findall(r"\$\{(\w+):-", text))
    assert sorted(example - must - optional) == []
