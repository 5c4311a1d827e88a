"""Where a judge may be, and to whom its key may go: the worker's operator decides, and nothing is sent before."""

import datetime
import socket
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from grpo_core.config_reward import RewardLimits
from grpo_core.errors import ConfigError
from grpo_core.rewards import judge_child
from grpo_core.rewards.judge_child import Trouble, address_fault, exchange
from grpo_core.rewards.judge_where import url_fault, where
from tests.tables import cases

from .judge_server import KEY, Server, says, scored, values
from .scoring import rubric_of


def five(_):
    return says("Score: 5")


@pytest.mark.parametrize(("address", "private"), cases("judge/addresses", "address", "private"))
def test_tells_public_from_private_addresses(address, private):
    assert bool(address_fault(address)) is private


@pytest.mark.parametrize(("url", "fault"), cases("judge/urls", "url", "fault"))
def test_refuses_an_address_before_anything_is_sent(judge_at, url, fault, monkeypatch):
    monkeypatch.setenv("GRPO_JUDGE_ALLOW", "other.example:443,127.0.0.1:1")
    if fault in ("private", "encryption"):  # right addresses, which the operator may allow
        with pytest.raises(ConfigError, match=f"{fault}.*GRPO_JUDGE_ALLOW"):
            judge_at(url)
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
def test_https_is_verified(judge_at, name, trusted, value, tmp_path, monkeypatch):
    tls = None
    if name is not None:
        cert, key = certificate(tmp_path, name)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(cert, key)
        if trusted:
            monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    with Server(five, tls=tls) as server:
        url = f"https://localhost:{server.place.partition(':')[2]}/v1"
        (score,) = scored(judge_at(url, allowed=True, limits=RewardLimits(retries=0)), "4")
        assert score.value == value
        assert value is not None or ("TLS" in (score.error or "") and server.seen == []), score.error
        assert name is None or value is not None or "CERTIFICATE_VERIFY" in (score.error or "")


# ---------------------------------------------------------------------- the key


def test_the_key_goes_to_the_hosts_that_the_operator_named_alone(judge_at, judging, monkeypatch):
    judge, server = judging(five, key=KEY)
    assert server.seen == []
    assert values(judge, "4") == [0.5]
    (seen,) = server.seen
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in seen.raw.decode()
    for hosts in ("", "judge.example", "127.0.0.1", f"not-{server.place}"):
        monkeypatch.setenv("GRPO_JUDGE_KEY_HOSTS", hosts)
        with pytest.raises(ConfigError, match="GRPO_JUDGE_KEY_HOSTS") as refused:
            judge_at(server.url, key_env="GRPO_JUDGE_KEY")
        assert KEY not in str(refused.value)
    assert values(judge_at(server.url, key_env=""), "4") == [0.5]
    assert "authorization" not in server.seen[1].headers


@pytest.mark.parametrize("value", ["", "short", "two words of it"])
def test_a_key_that_is_none(judge_at, value, monkeypatch):
    monkeypatch.setenv("GRPO_JUDGE_KEY", value)
    monkeypatch.setenv("GRPO_JUDGE_KEY_HOSTS", "judge.example")
    with pytest.raises(ConfigError, match="GRPO_JUDGE_KEY") as refused:
        judge_at("https://judge.example/v1", key_env="GRPO_JUDGE_KEY")
    assert not value or value not in str(refused.value)


def test_a_key_that_stands_in_the_place_of_its_variable_is_not_repeated():
    params = {"base_url": "https://judge.example/v1", "model": "judge", "key_env": "sk-abcdef123456"}
    with pytest.raises(ConfigError, match="key_env") as refused:
        rubric_of({"kind": "judge", "params": params})
    assert "sk-abcdef123456" not in str(refused.value)
