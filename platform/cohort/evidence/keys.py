"""Ed25519 keys with names, as signed notes use them (c2sp.org/signed-note), and statements that a key was replaced."""

import base64
import binascii
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from grpo_core.errors import GrpoError


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def decode(text: str, length: int | None = None) -> bytes:
    """Raises ValueError for any other spelling, and when the data have not `length` bytes."""
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise ValueError(f"{text[:60]!a} is not base64") from None
    if encode(data) != text:
        raise ValueError(f"{text[:60]!a} is not base64 as it is written here: padded, without spare bits")
    if length is not None and len(data) != length:
        raise ValueError(f"{text[:60]!a} has {len(data)} bytes, not {length}")
    return data


_ED25519 = b"\x01"
_MODEL_KEY = b"cohort model signing key v1"
_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Of the group of P-256 (SP 800-186, 3.2.1.3)."""
_NAME = re.compile(r"[^\s+\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,200}")
_VKEY = re.compile(r"(?P<name>[^+]+)\+(?P<id>[0-9a-f]{8})\+(?P<key>[A-Za-z0-9+/=]+)")
_NAME_LINE = "Key-Name: "


class KeyFault(GrpoError):
    """A key, or the file of one, that cannot be used. The message says what to do."""

    code: ClassVar[str] = "key_error"
    exit_status: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class PublicKey:
    name: str
    public: bytes
    """32 bytes (RFC 8032)."""

    @property
    def key_id(self) -> str:
        """8 hex digits: the first bytes of SHA-256(name ‖ newline ‖ 0x01 ‖ public key)."""
        return hashlib.sha256(self.name.encode() + b"\n" + _ED25519 + self.public).digest()[:4].hex()

    @property
    def vkey(self) -> str:
        """`name+hex8+base64(0x01 ‖ public key)`, as people share it."""
        return f"{self.name}+{self.key_id}+{encode(_ED25519 + self.public)}"

    def verify(self, signature: bytes, message: bytes) -> bool:
        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(signature, message)
        except InvalidSignature:
            return False
        return True


class SigningKey:
    """A private key with its name. Never printed, logged or stored in a database."""

    def __init__(self, name: str, private: Ed25519PrivateKey) -> None:
        self._private = private
        public = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.public_key = PublicKey(checked_name(name), public)

    @property
    def name(self) -> str:
        return self.public_key.name

    @property
    def key_id(self) -> str:
        return self.public_key.key_id

    @property
    def vkey(self) -> str:
        return self.public_key.vkey

    def sign(self, message: bytes) -> bytes:
        """64 bytes."""
        return self._private.sign(message)

    def model_private(self) -> ec.EllipticCurvePrivateKey:
        """The P-256 key that signs models (`model_signing`), the same each time: a scalar from 48 bytes of
        HKDF-SHA256 (RFC 5869) over this key's seed, reduced modulo the curve's order less 1, plus 1 (FIPS 186-5,
        A.2.1: 128 bits more than the order has, so that the bias is negligible)."""
        seed = self._private.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        drawn = HKDF(SHA256(), length=48, salt=None, info=_MODEL_KEY).derive(seed)
        return ec.derive_private_key(int.from_bytes(drawn) % (_P256_ORDER - 1) + 1, ec.SECP256R1())

    def write(self, path: Path) -> None:
        """PKCS#8 PEM with the name in a line above, readable by the owner only. Raises KeyFault when `path` exists."""
        pem = self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(f"{_NAME_LINE}{self.name}\n".encode() + pem)
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            raise KeyFault(f"{path} exists; a signing key is never written over") from None
        except OSError as error:
            raise KeyFault(f"cannot write the signing key {path}: {error.strerror}") from None


def generate(name: str) -> SigningKey:
    """A new key. Raises KeyFault for an invalid name."""
    return SigningKey(name, Ed25519PrivateKey.generate())


def load(path: Path, name: str | None = None) -> SigningKey:
    """The key in a PEM file (PKCS#8, Ed25519, without a password). `name` is needed when the file has no line
    `Key-Name: …`, and must agree when it has. Raises KeyFault."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise KeyFault(f"cannot read the signing key {path}: {error.strerror}") from None
    head, mark, rest = content.partition(b"-----BEGIN ")
    try:
        private = load_pem_private_key(mark + rest, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        private = None
    if not isinstance(private, Ed25519PrivateKey):
        raise KeyFault(
            f"{path} holds no Ed25519 key in PEM (PKCS#8, no password): `openssl genpkey -algorithm ed25519`"
        )
    names = [line.removeprefix(_NAME_LINE) for line in head.decode(errors="replace").splitlines()
            if line.startswith(_NAME_LINE)]  # fmt: skip
    if name is None and len(names) != 1:
        raise KeyFault(f"{path} does not name its key: put the line `{_NAME_LINE}example.org/log` above the PEM")
    if name is not None and names and names != [name]:
        raise KeyFault(f"{path} holds the key named {names[0]!a}, not {name!a}")
    return SigningKey(names[0] if name is None else name, private)


def checked_name(name: str) -> str:
    """Raises KeyFault for a name that a signed note cannot carry."""
    if not _NAME.fullmatch(name):
        raise KeyFault(f"{name[:200]!a} cannot name a key: 1 to 200 characters, without spaces, plus and control signs")
    return name


def parse_vkey(text: str) -> PublicKey:
    """Raises KeyFault for anything but the one spelling of a vkey."""
    match = _VKEY.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        packed = decode(match["key"], 33)
    except ValueError:
        raise KeyFault(f"{text[:60]!a} is not a public key as `name+hash+base64`") from None
    key = PublicKey(checked_name(match["name"]), packed[1:])
    if packed[:1] != _ED25519:
        raise KeyFault(f"the key {key.name!a} is not an Ed25519 key")
    if key.key_id != match["id"]:
        raise KeyFault(f"the key {key.name!a} has the hash {key.key_id}, and {match['id']} is written")
    return key
