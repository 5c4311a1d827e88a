"""Where a judge may be, and which key may be sent to it: the worker's operator decides, by three variables.

GRPO_JUDGE_ALLOW names the judges in private networks (host:port, commas); all others are on the public internet, by
https. A key lies in the variable that a reward names, and goes to no host that the variable of the same name with
_HOSTS leaves out: the author of a reward chooses the address, and must not be able to obtain the key that way.
"""

import ipaddress
import os
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from grpo_core.errors import ConfigError

ALLOW = "GRPO_JUDGE_ALLOW"
KEY_NAME = re.compile(r"GRPO_JUDGE_KEY(?:_[A-Z0-9]+)*")
_KEY = re.compile(r"[A-Za-z0-9._~+/=-]{8,4096}")
_PORTS = {"http": 80, "https": 443}
_PATH = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:@%/-]*")


@dataclass(frozen=True)
class Endpoint:
    """A judge's address, taken apart."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.address}{self.path}"


def url_fault(base_url: str) -> str | None:
    """What is wrong with how an address is written; None when nothing is. Looks up nothing."""
    try:
        parts = urlsplit(base_url)
        host, port = parts.hostname, parts.port
        name = (host or "").encode("idna").decode() if ":" not in (host or "") else str(ipaddress.IPv6Address(host))
    except ValueError:
        return f"{base_url[:100]!r} is no address; write it as https://judge.example/v1"
    if parts.scheme not in _PORTS or not name or port == 0:
        return f"{base_url[:100]!r} is no web address; write it as https://judge.example/v1"
    if "@" in parts.netloc:
        return "an address may hold no name or password: it is kept in the record. The key belongs in the variable"
    if parts.query or parts.fragment or "?" in base_url or "#" in base_url:
        return "an address may hold no ? or #; give the part before it"
    if not _PATH.fullmatch(parts.path):
        return "the address's path holds characters that an address may not; write them as %XX"
    if parts.path.rstrip("/").endswith("/chat/completions"):
        return "leave /chat/completions away; it is added"
    return None


def parse_endpoint(base_url: str) -> Endpoint:
    """Of an address without a fault."""
    parts = urlsplit(base_url)
    assert parts.hostname
    host = parts.hostname
    host = str(ipaddress.IPv6Address(host)) if ":" in host else host.encode("idna").decode().lower().rstrip(".")
    return Endpoint(
        parts.scheme, host, parts.port or _PORTS[parts.scheme], parts.path.rstrip("/") + "/chat/completions"
    )


def is_allowed(judge: Endpoint) -> bool:
    """Whether the operator named it, so that it may be in a private network and without encryption."""
    return judge.address in _named(ALLOW)


def check_encrypted(judge: Endpoint) -> None:
    """Raises ConfigError for plain http to a judge that the operator did not allow."""
    if judge.scheme == "http" and not is_allowed(judge):
        raise ConfigError(
            f"the judge at http://{judge.address} would be asked without encryption. Give its https address; or, for a "
            f"judge in the worker's own network, its operator sets {ALLOW}={judge.address} on the worker"
        )


def private_message(judge: Endpoint, what: str) -> str:
    return (
        f"the judge's address is private: {what}. Give one on the public internet; or, for a judge in the worker's own "
        f"network, its operator sets {ALLOW}={judge.address} on the worker"
    )


def read_key(name: str | None, judge: Endpoint) -> str | None:
    """The key in the variable `name`, None without a name. Raises ConfigError, without the key in its message, when
    there is none, and when it may not be sent to this judge."""
    if name is None:
        return None
    key = os.environ.get(name, "").strip()
    if not key:
        raise ConfigError(
            f"the variable {name} is not set on this worker, and the judge's key is to be in it. Set it with "
            f"{name}_HOSTS={judge.host}; for a judge that wants no key, set key_env to empty (null)"
        )
    if not _KEY.fullmatch(key):
        raise ConfigError(
            f"what the variable {name} holds on this worker is no key: that has 8 characters or more, all of "
            "A–Z a–z 0–9 . _ ~ + / = -"
        )
    hosts = _named(f"{name}_HOSTS")
    if judge.address not in hosts and not (judge.port == 443 and judge.host in hosts):
        host = judge.host if judge.port == 443 else judge.address
        raise ConfigError(
            f"the key in {name} may not be sent to {host}: the variable {name}_HOSTS on this worker does not name it. "
            f"Its operator sets {name}_HOSTS={host} (several with commas) when it is that server's key"
        )
    return key


def _named(variable: str) -> set[str]:
    return {name.strip().lower() for name in os.environ.get(variable, "").split(",") if name.strip()}
