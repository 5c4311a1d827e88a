"""Where a judge may be, and to whom its key may go: the worker's operator decides, and nothing is sent before."""

import datetime
import socket
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from grpo_core.config_reward import RewardConfig, RewardLimits
from grpo_core.errors import ConfigError
from grpo_core.rewards import Rubric, judge_child
from grpo_core.rewards.base import Unscored
from grpo_core.rewards.judge_child import Trouble, address_fault, exchange
from grpo_core.rewards.judge_where import url_fault, where
from tests.tables import cases

from .judge_asked import PROBLEM, judge_at, judging, opened, values
from .judge_server import Server, says

KEY = "sk-test-0123456789abcdef"


def five(_):
    return says("Score: 5")


@pytest.mark.parametrize(("address", "private"), cases("judge/addresses", "address", "private"))
def test_tells_public_from_private_addresses(address, private):
    assert bool(address_fault(address)) is private


@pytest.mark.parametrize(("url", "fault"), cases("judge/urls", "url", "fault"))
def test_refuses_an_address_before_anything_is_sent(url, fault, monkeypatch):
    monkeypatch.setenv("GRPO_JUDGE_ALLOW", "other.example:443,127.0.0.1:1")
    if fault in ("private", "encryption"):  # right addresses, which the operator may allow
        with pytest.raises(ConfigError, match=f"{fault}.*GRPO_JUDGE_ALLOW"):
            judge_at(url, monkeypatch)
    else:
        assert fault in (url_fault(url) or "")
        assert "secret" not in (url_fault(url) or "")


def test_addresses_are_taken_apart():
    assert url_fault("https://bücher.example/api/v1/") is None
    found = where("https://bücher.example/api/v1/")
    assert (found.place, found.path) == ("xn--bcher-kva.example:443", "/api/v1/chat/completions")
    assert where("http://[::1]:8000").place == "[::1]:8000"


def test_the_address_that_is_asked_is_the_one_that_was_checked(monkeypatch):
    """A name that leads elsewhere at each look-up is looked up once."""
    with Server(five) as server:
        host, port = server.place.split(":")
        names = []

        def getaddrinfo(name, at, **_):
            names.append(name)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host if len(names) == 1 else "10.9.9.9", int(port)))]

        monkeypatch.setattr(judge_child.socket, "getaddrinfo", getaddrinfo)
        request = {"scheme": "http", "host": "judge.example", "port": int(port), "path": "/v1", "key": None}
        request |= {"body": "{}", "seconds": 100}
        assert exchange({**request, "private": True})["status"] == 200
        assert names == ["judge.example"]
        assert server.seen[0].headers["host"] == f"judge.example:{port}"
        names.clear()
        with pytest.raises(Trouble, match="of this machine"):
            exchange({**request, "private": False})
        assert len(server.seen) == 1


def certificate(folder, name):
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


@pytest.mark.parametrize(
    ("name", "trusted", "value"),
    [("localhost", True, 0.5), ("localhost", False, None), ("elsewhere", True, None), (None, True, None)],
    ids=["trusted", "unknown", "of another host", "plain HTTP"],
)
def test_https_is_verified(name, trusted, value, tmp_path, monkeypatch):
    tls = None
    if name is not None:
        cert, key = certificate(tmp_path, name)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(cert, key)
        if trusted:
            monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    with Server(five, tls=tls) as server:
        url = f"https://localhost:{server.place.partition(':')[2]}/v1"
        monkeypatch.setenv("GRPO_JUDGE_ALLOW", where(url).place)
        judge = judge_at(url, monkeypatch, limits=RewardLimits(retries=0))
        (score,) = judge.score([Unscored(PROBLEM, "4")], lambda: None)
        judge.close()
        assert score.value == value
        assert value is not None or ("TLS" in (score.error or "") and server.seen == []), score.error
        assert name is None or value is not None or "CERTIFICATE_VERIFY" in (score.error or "")


# ---------------------------------------------------------------------- the key


def test_the_key_goes_to_the_hosts_that_the_operator_named_alone(monkeypatch):
    monkeypatch.setenv("GRPO_JUDGE_KEY", KEY)
    with Server(five) as server:
        for hosts in ("", "judge.example", "127.0.0.1", f"not-{server.place}"):
            monkeypatch.setenv("GRPO_JUDGE_KEY_HOSTS", hosts)
            with pytest.raises(ConfigError, match="GRPO_JUDGE_KEY_HOSTS") as refused:
                opened(server, monkeypatch, key_env="GRPO_JUDGE_KEY")
            assert KEY not in str(refused.value)
        monkeypatch.setenv("GRPO_JUDGE_KEY_HOSTS", f"judge.example, {server.place}")
        judge = opened(server, monkeypatch, key_env="GRPO_JUDGE_KEY")
        assert server.seen == []
        assert values(judge, "4") == [0.5]
        judge.close()
        assert server.seen[0].headers["authorization"] == f"Bearer {KEY}"
        assert KEY not in server.seen[0].raw.decode()


def test_without_a_name_of_a_key_none_is_sent(monkeypatch):
    monkeypatch.setenv("GRPO_JUDGE_KEY", KEY)
    with judging(monkeypatch, five, key_env="") as (judge, server):
        assert values(judge, "4") == [0.5]
        assert "authorization" not in server.seen[0].headers


@pytest.mark.parametrize("value", ["", "short", "two words of it"])
def test_a_key_that_is_none(value, monkeypatch):
    monkeypatch.setenv("GRPO_JUDGE_KEY", value)
    monkeypatch.setenv("GRPO_JUDGE_KEY_HOSTS", "judge.example")
    with pytest.raises(ConfigError, match="GRPO_JUDGE_KEY") as refused:
        judge_at("https://judge.example/v1", monkeypatch, key_env="GRPO_JUDGE_KEY")
    assert not value or value not in str(refused.value)


@pytest.mark.parametrize(
    "name", ["sk-abcdef123456", "PATH", "COHORT_SECRET_KEY", "GRPO_JUDGE_KEY_HOSTS", "GRPO_JUDGE_KEYS"]
)
def test_only_the_judges_own_variables_can_be_named(name):
    """Whoever writes a reward must not reach into the worker's environment, nor put a key into a config unnoticed."""
    params = {"base_url": "https://judge.example/v1", "model": "judge", "key_env": name}
    config = RewardConfig.model_validate({"components": [{"name": "judge", "kind": "judge", "params": params}]})
    with pytest.raises(ConfigError) as refused:
        Rubric(config)
    assert "sk-abcdef123456" not in str(refused.value)
    assert [problem.path for problem in refused.value.problems] == ["reward.components.0.params.key_env"]
