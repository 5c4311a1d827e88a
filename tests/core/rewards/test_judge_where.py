"""Where a judge may be, and to whom its key may go: the worker's operator decides, and nothing is sent before."""

import datetime
import socket
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from grpo_core.config_reward import RewardLimits
from grpo_core.data.problem import Problem
from grpo_core.errors import ConfigError
from grpo_core.rewards import judge_child
from grpo_core.rewards.base import Context, Unscored
from grpo_core.rewards.judge import Judge, JudgeParams
from grpo_core.rewards.judge_child import Trouble, address_fault, exchange
from grpo_core.rewards.judge_where import url_fault, where

from .judge_server import Server, says

KEY = "sk-test-0123456789abcdef"


def opened(url: str, **params: object) -> Judge:
    return Judge(
        JudgeParams(**{"base_url": url, "model": "judge", "key_env": None, **params}),
        Context(limits=RewardLimits(retries=0)),
    )


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "10.1.2.3",
        "100.64.0.1",
        "100.100.100.200",
        "127.0.0.1",
        "127.9.9.9",
        "168.63.129.16",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.192",
        "192.168.1.1",
        "198.18.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1%eth0",
        "fd00:ec2::254",
        "fc00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "2001:0:7f00:1::",
        "2001:db8::1",
    ],
)
def test_addresses_that_are_none_of_the_public_internet(address: str) -> None:
    assert address_fault(address)


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "100.63.255.255", "172.15.0.1", "172.32.0.1", "::ffff:8.8.8.8", "64:ff9b::808:808", "2606:4700::1111"],
)
def test_addresses_of_the_public_internet(address: str) -> None:
    assert address_fault(address) is None


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/v1",
        "https://169.254.169.254/latest",
        "https://[::1]:8000/v1",
        "https://[::ffff:10.0.0.1]/v1",
        "https://localhost/v1",
        "https://2130706433/v1",
        "https://127.1/v1",
        "https://0x7f.1/v1",
        "https://localhost./v1",
    ],
)
def test_a_private_address_is_refused_before_anything_is_sent(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_JUDGE_ALLOW", "other.example:443,127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"the judge's address is private: .* GRPO_JUDGE_ALLOW=.*:\d+ on the worker"):
        opened(url)


def test_plain_http_is_for_judges_that_the_operator_named() -> None:
    with pytest.raises(ConfigError, match=r"without encryption.*GRPO_JUDGE_ALLOW=judge.example:80 on the worker"):
        opened("http://judge.example/v1")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("judge.example/v1", "is no web address"),
        ("ftp://judge.example", "is no web address"),
        ("file:///etc/passwd", "is no web address"),
        ("https://", "is no web address"),
        ("https://judge.example:0", "is no web address"),
        ("https://judge.example:99999/v1", "is no address"),
        ("https://[::1/v1", "is no address"),
        ("https://me:secret@judge.example/v1", "may hold no name or password"),
        ("https://judge.example/v1?key=1", r"may hold no \? or #"),
        ("https://judge.example/v1#x", r"may hold no \? or #"),
        ("https://judge.example/v 1", "path holds characters"),
        ("https://judge.example/v1/chat/completions", "it is added"),
    ],
)
def test_addresses_that_are_written_wrongly(url: str, told: str) -> None:
    import re

    assert re.search(told, url_fault(url) or "")
    assert "secret" not in (url_fault(url) or "")


def test_addresses_are_taken_apart() -> None:
    assert url_fault("https://bücher.example/api/v1/") is None
    found = where("https://bücher.example/api/v1/")
    assert (found.place, found.path) == ("xn--bcher-kva.example:443", "/api/v1/chat/completions")
    assert where("http://[::1]:8000").place == "[::1]:8000"


def test_the_address_that_is_asked_is_the_one_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that leads elsewhere at each look-up is looked up once."""
    with Server(lambda _: says("Score: 5")) as server:
        host, port = server.place.split(":")
        asked = []

        def getaddrinfo(name: str, at: int, **_: object) -> list[object]:
            asked.append(name)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host if len(asked) == 1 else "10.9.9.9", int(port)))]

        monkeypatch.setattr(judge_child.socket, "getaddrinfo", getaddrinfo)
        request = {
            "scheme": "http",
            "host": "judge.example",
            "port": int(port),
            "path": "/v1",
            "key": None,
            "body": "{}",
        }
        assert exchange({**request, "private": True, "seconds": 10})["status"] == 200
        assert asked == ["judge.example"]
        assert server.seen[0].headers["host"] == f"judge.example:{port}"
        asked.clear()
        with pytest.raises(Trouble, match="of this machine"):
            exchange({**request, "private": False, "seconds": 10})
        assert len(server.seen) == 1


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    cert, private = folder / f"{name}.pem", folder / f"{name}.key"
    cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert, private


def test_https_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = Unscored(Problem("p", "2+2?", "4"), "4")
    cert, key = certificate(tmp_path, "localhost")
    other, other_key = certificate(tmp_path, "elsewhere")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)

    def told(server: Server, **environment: str) -> object:
        url = f"https://localhost:{server.place.partition(':')[2]}/v1"
        monkeypatch.setenv("GRPO_JUDGE_ALLOW", where(url).place)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        judge = opened(url)
        (score,) = judge.score([sample], lambda: None)
        judge.close()
        return score.value if score.error is None else score.error

    with Server(lambda _: says("Score: 5"), tls=tls) as server:
        assert str(told(server)).startswith("no TLS that can be trusted: CERTIFICATE_VERIFY_FAILED")
        assert server.seen == []
        assert told(server, SSL_CERT_FILE=str(cert)) == 0.5
    wrong = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    wrong.load_cert_chain(other, other_key)
    with Server(lambda _: says("Score: 5"), tls=wrong) as server:
        assert str(told(server, SSL_CERT_FILE=str(other))).startswith("no TLS that can be trusted: CERTIFICATE_VERIFY")
        assert server.seen == []
    with Server(lambda _: says("Score: 5")) as server:  # speaks plain HTTP
        assert "TLS" in str(told(server))


# ---------------------------------------------------------------------- the key


def test_the_key_goes_to_the_hosts_that_the_operator_named_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_JUDGE_KEY", KEY)
    with Server(lambda _: says("Score: 5")) as server:
        monkeypatch.setenv("GRPO_JUDGE_ALLOW", server.place)
        for hosts in ("", "judge.example", "127.0.0.1", f"not-{server.place}"):
            monkeypatch.setenv("GRPO_JUDGE_KEY_HOSTS", hosts)
            with pytest.raises(ConfigError, match="GRPO_JUDGE_KEY_HOSTS on this worker does not name it") as refused:
                opened(server.url, key_env="GRPO_JUDGE_KEY")
            assert KEY not in str(refused.value)
        monkeypatch.setenv("GRPO_JUDGE_KEY_HOSTS", f"judge.example, {server.place}")
        judge = opened(server.url, key_env="GRPO_JUDGE_KEY")
        assert server.seen == []
        assert judge.score([Unscored(Problem("p", "q", "a"), "4")], lambda: None)[0].value == 0.5
        judge.close()
        assert server.seen[0].headers["authorization"] == f"Bearer {KEY}"
        assert KEY not in server.seen[0].raw.decode()


def test_without_a_name_of_a_key_none_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_JUDGE_KEY", KEY)
    with Server(lambda _: says("Score: 5")) as server:
        monkeypatch.setenv("GRPO_JUDGE_ALLOW", server.place)
        judge = opened(server.url, key_env="")
        judge.score([Unscored(Problem("p", "q", "a"), "4")], lambda: None)
        judge.close()
        assert "authorization" not in server.seen[0].headers


@pytest.mark.parametrize(
    ("value", "told"), [("", "is not set on this worker"), ("short", "is no key"), ("two words of it", "is no key")]
)
def test_a_key_that_is_none(value: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_JUDGE_KEY", value)
    monkeypatch.setenv("GRPO_JUDGE_KEY_HOSTS", "judge.example")
    with pytest.raises(ConfigError, match=told) as refused:
        opened("https://judge.example/v1", key_env="GRPO_JUDGE_KEY")
    assert not value or value not in str(refused.value)


@pytest.mark.parametrize(
    "name", ["sk-abcdef123456", "PATH", "COHORT_SECRET_KEY", "GRPO_JUDGE_KEY_HOSTS", "GRPO_JUDGE_KEYS"]
)
def test_only_the_judges_own_variables_can_be_named(name: str) -> None:
    """Whoever writes a reward must not reach into the worker's environment, nor put a key into a config unnoticed."""
    from grpo_core.config_reward import RewardConfig
    from grpo_core.rewards import Rubric

    params = {"base_url": "https://judge.example/v1", "model": "judge", "key_env": name}
    config = RewardConfig.model_validate({"components": [{"name": "judge", "kind": "judge", "params": params}]})
    with pytest.raises(ConfigError, match="must be the name of a variable") as refused:
        Rubric(config)
    assert "sk-abcdef123456" not in str(refused.value)
    assert [problem.path for problem in refused.value.problems] == ["reward.components.0.params.key_env"]
