"""The kind judge against a real server that goes wrong in every way: each is told apart, and none is paid 0. Where a
judge may be, and to whom its key may go: the worker's operator decides, and nothing is sent before."""

import datetime
import socket
import ssl
import threading
import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from grpo_core.config.reward import RewardLimits
from grpo_core.errors import ConfigError, Interrupted
from grpo_core.rewards.judge.endpoint import parse_endpoint, url_fault
from tests.processes import DEADLINE
from tests.tables import cases

from .judge_server import KEY, Server, drip, http, let_pass, reply_of, says, scored, values
from .scoring import rubric_of


@pytest.fixture
def graded(judging):
    """The score of one completion, the server, and the facts afterwards."""

    def grade(answer, **limits):
        judge, server = judging(answer, limits=RewardLimits(**{"retries": 1, "workers": 1, **limits}))
        (score,) = scored(judge, "4")
        return score, server, judge.facts()

    return grade


@pytest.mark.parametrize(("reply", "kind", "fault", "tries"), cases("judge/faults", "reply", "kind", "fault", "tries"))
def test_each_fault_is_told_apart(judging, reply, kind, fault, tries):
    def answer(seen):
        if fault == "timed out":  # at once where it hangs
            let_pass(judge._client, 600.0)
        return reply_of(reply)

    judge, server = judging(answer, timeout_seconds=600.0)
    (score,) = scored(judge, "4")
    assert (score.value, score.passed, score.error_class) == (None, None, kind), score.error
    assert (score.tries, len(server.seen), judge.facts()["calls"]) == (tries, tries, tries)
    assert fault in (score.error or ""), score.error
    assert len(score.error or "") < 600
    assert judge.facts()["refusals"] == (kind == "refused")


def test_a_redirect_is_not_followed(graded):
    with Server(lambda _: says("Score: 10")) as inner:
        location = f"Location: http://{inner.address}/v1/chat/completions"
        score, outer, _ = graded(lambda _: http("302 Found", b"", location))
        assert (len(outer.seen), inner.seen, score.error_class) == (1, [], "infra")
        assert inner.address in (score.error or "")


def test_a_server_that_is_not_there(judge_at):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen: nobody else can while this is open
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        (score,) = scored(judge_at(f"http://{address}/v1", allowed=True), "4")
    assert (score.error_class, score.tries) == ("infra", 2)
    assert f"{address} cannot be reached" in score.error
    (score,) = scored(judge_at("https://no-such-judge.invalid/v1", limits=RewardLimits(retries=0)), "4")
    assert (score.error_class, "no-such-judge.invalid" in score.error) == ("infra", True)


def test_busy_or_broken_then_well(graded):
    replies = iter([http("429 Too Many Requests", b"{}", "Retry-After: 1"), says("Score: 7")])
    score, server, facts = graded(lambda _: next(replies))
    assert (score.value, score.tries, score.error) == (0.7, 2, None)
    assert server.seen[1].at - server.seen[0].at >= 1
    assert (facts["calls"], facts["retried"], facts["answers"], facts["failed"]) == (2, 1, 1, 0)
    replies = iter([http("502 Bad Gateway", b"<html>"), b"", says("Score: 3")])
    score, server, _ = graded(lambda _: next(replies), retries=2)
    assert (score.value, score.tries, len(server.seen)) == (0.3, 3, 3)


def test_one_that_hangs_is_ended_and_the_rest_goes_on(judging):
    def answer(seen):
        if seen.completion != "2":
            return says(f"Score: {seen.completion}")
        let_pass(judge._client, 10_000.0)
        return drip()

    judge, _ = judging(answer, limits=RewardLimits(retries=0, workers=1))
    assert values(judge, *"01234") == [0.0, 0.1, None, 0.3, 0.4]


def test_workers_ask_side_by_side_and_the_order_is_kept(judging):
    together = threading.Barrier(3, timeout=DEADLINE)

    def answer(seen):
        together.wait()
        time.sleep(0.05 * (9 - int(seen.completion)) % 0.15)  # the later ones are quicker
        return says(f"Score: {seen.completion}")

    judge, _ = judging(answer, limits=RewardLimits(workers=3, retries=0))
    assert values(judge, *"012345678") == [number / 10 for number in range(9)]
    assert judge.facts()["calls"] == 9


def test_a_stop_ends_what_is_under_way(judging):
    left = threading.Event()

    def dripping(_):
        try:
            yield from drip()
        finally:
            left.set()

    judge, server = judging(dripping)

    def check():
        if server.seen:
            raise Interrupted("stop")

    with pytest.raises(Interrupted):
        scored(judge, "4", "5", "6", check=check)
    assert left.wait(DEADLINE)
    server.answer = lambda _: says("Score: 4")
    assert values(judge, "5") == [0.4]


@pytest.mark.parametrize(("end", "value", "error_class"), [("\nScore: 8", 0.8, None), ("", None, "parse")])
def test_an_answer_longer_than_is_kept_is_read_from_its_end(graded, end, value, error_class):
    score, _, _ = graded(lambda _: says("Score: 1 " + "x" * 100_000 + end))
    assert (score.value, score.error_class) == (value, error_class)


# --------------------------------------------------------------------- where a judge may be, and to whom its key may go


def five(_):
    return says("Score: 5")


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
    endpoint = parse_endpoint("https://bücher.example/api/v1/")
    assert (endpoint.address, endpoint.path) == ("xn--bcher-kva.example:443", "/api/v1/chat/completions")
    assert parse_endpoint("http://[::1]:8000").address == "[::1]:8000"


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
        url = f"https://localhost:{server.address.partition(':')[2]}/v1"
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
    for hosts in ("", "judge.example", "127.0.0.1", f"not-{server.address}"):
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
