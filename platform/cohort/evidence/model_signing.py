"""OpenSSF Model Signing v1.0: a folder of files signed as a bundle that the command `model_signing` verifies too.

A bundle (Sigstore v0.3) holds a DSSE envelope around an in-toto statement, predicate
`https://model_signing/signature/v1.0`: the name, digest and algorithm of every file, sorted by name, under one subject
whose digest is the SHA-256 over those digests. The specification takes ECDSA keys alone, and the log's keys are
Ed25519: the platform's model signing key is derived from the log's, so that there is one secret to keep and to
replace, and the log's key signs a note that names it.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, SHA512, HashAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from cohort.evidence import dsse
from cohort.evidence.canonical import CanonicalError, canonical, parse
from cohort.evidence.keys import PublicKey, SigningKey, encode
from cohort.evidence.note import NoteError, open_note, sign_note

MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
PREDICATE_TYPE = "https://model_signing/signature/v1.0"
KEY, WEIGHTS_BUNDLE, CARD_BUNDLE = "model-signing.pub", "model.sig", "card.sig"
"""Files: the public key as the log's key vouches for it; the bundles of the final weights and of a card."""
_FIRST = "cohort model signing key v1"
_NOTE = re.compile(_FIRST + r"\n(?P<pem>-----BEGIN PUBLIC KEY-----\n(?:[A-Za-z0-9+/=]+\n)+-----END PUBLIC KEY-----\n)")
_HASHES: dict[str, type[HashAlgorithm]] = {"secp256r1": SHA256, "secp384r1": SHA384, "secp521r1": SHA512}
"""Curve → the hash that its keys sign with, as the specification lists them."""
_HEX = re.compile(r"[0-9a-f]{64}")


class BundleError(ValueError):
    """Bytes that are no bundle of a model's files, or one that the key did not sign."""


@dataclass(frozen=True)
class Manifest:
    """Files as a bundle lists them."""

    name: str
    """Of the folder, as the signer called it."""
    files: dict[str, str]
    """Path → SHA-256 in hex."""
    ignored: tuple[str, ...]
    """Paths that the bundle says nothing about, whatever they hold."""


@dataclass(frozen=True)
class ModelKey:
    """A public key that model bundles are checked with."""

    public: ec.EllipticCurvePublicKey

    @property
    def pem(self) -> str:
        return self.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    @property
    def hint(self) -> str:
        """SHA-256 of the PEM in hex, by which a bundle names its key."""
        return hashlib.sha256(self.pem.encode()).hexdigest()

    def verify(self, signature: bytes, message: bytes) -> bool:
        try:
            self.public.verify(signature, message, ec.ECDSA(_HASHES[self.public.curve.name]()))
        except InvalidSignature:
            return False
        return True


def load_public(pem: str) -> ModelKey:
    """Raises BundleError for anything but a public key on one of the specification's curves."""
    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise BundleError("is no public key in PEM") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in _HASHES:
        raise BundleError(f"is no ECDSA key on one of {', '.join(_HASHES)}")
    return ModelKey(key)


def public_of(key: SigningKey) -> ModelKey:
    """The public part of the model signing key that goes with the log's key."""
    return ModelKey(key.model_private().public_key())


# ---------------------------------------------------------------------- the key, and who vouches for it


def key_note(key: SigningKey) -> str:
    """The public key as a note that the log's key signs, which is a PEM file too: `model_signing verify key
    --public-key` reads it as it is. The same each time."""
    return sign_note(f"{_FIRST}\n{public_of(key).pem}", [key])


def open_key(note: str, keys: Sequence[PublicKey]) -> ModelKey:
    """The model signing key that one of the log's `keys` vouches for. Raises BundleError."""
    try:
        opened = open_note(note, keys)
    except NoteError as error:
        raise BundleError(str(error)) from None
    match = _NOTE.fullmatch(opened.text)
    if match is None or opened.unknown:
        raise BundleError("is no note of a log's key that names a model signing key")
    key = load_public(match["pem"])
    if key.pem != match["pem"]:
        raise BundleError("names its key in another spelling than the one that bundles hash")
    return key


# ---------------------------------------------------------------------- bundles


def statement(files: Mapping[str, str], *, name: str, ignored: Iterable[str]) -> bytes:
    """The statement's bytes. `files`: path relative to the folder → SHA-256 in hex; not empty."""
    if not files:
        raise ValueError("there are no files to sign")
    ordered = sorted(files.items())
    predicate = {
        "resources": [{"algorithm": "sha256", "digest": digest, "name": path} for path, digest in ordered],
        "serialization": {
            "allow_symlinks": False,
            "hash_type": "sha256",
            "ignore_paths": sorted(ignored),
            "method": "files",
        },
    }
    return dsse.statement({name: digest_of(digest for _, digest in ordered)}, PREDICATE_TYPE, predicate)


def bundle(payload: bytes, key: SigningKey) -> bytes:
    """Canonical JSON of the bundle around `payload`, signed with the model signing key of the log's key."""
    private = key.model_private()
    signature = private.sign(dsse.encoded(payload, dsse.PAYLOAD_TYPE), ec.ECDSA(SHA256()))
    envelope = {
        "payload": encode(payload),
        "payloadType": dsse.PAYLOAD_TYPE,
        "signatures": [{"keyid": "", "sig": encode(signature)}],
    }
    material = {"publicKey": {"hint": public_of(key).hint}, "tlogEntries": []}
    return canonical({"mediaType": MEDIA_TYPE, "verificationMaterial": material, "dsseEnvelope": envelope})


def opened(content: bytes, key: ModelKey) -> Manifest:
    """The files that `content`, a bundle, lists, when `key` signed it. Raises BundleError naming what is wrong."""
    payload, payload_type, hint, signature = _parsed(content)
    if hint != key.hint:
        raise BundleError(f"names the key {hint!a}, and the platform's model signing key is {key.hint}")
    if not key.verify(signature, dsse.encoded(payload, payload_type)):
        raise BundleError("its signature does not fit its list of files, or is by another key")
    if payload_type != dsse.PAYLOAD_TYPE:
        raise BundleError(f"holds {payload_type!a}, and no in-toto statement")
    return _manifest(payload)


def _parsed(content: bytes) -> tuple[bytes, str, str, bytes]:
    """(payload, its type, key hint, signature), unchecked. Raises BundleError."""
    try:
        value = parse(content)
    except CanonicalError as error:
        raise BundleError(f"is no bundle: {error}") from None
    if isinstance(value, dict) and value.get("mediaType") != MEDIA_TYPE:
        raise BundleError(f"is of the media type {value.get('mediaType')!a}, and a bundle is {MEDIA_TYPE}")
    match value:
        case {
            "verificationMaterial": {"publicKey": {"hint": str(hint), **more}, "tlogEntries": [], **others},
            "dsseEnvelope": {
                "payload": str(payload),
                "payloadType": str(kind),
                "signatures": [{"keyid": "", "sig": str(signature), **also}],
                **further,
            },
        } if not more and not others and not also and not further and len(value) == 3:
            return _decoded(payload), kind, hint, _decoded(signature)
    raise BundleError("is no bundle of a key's hint and an envelope with one signature")


def _manifest(payload: bytes) -> Manifest:
    """Raises BundleError for a statement that is not as the specification has it."""
    try:
        value = parse(payload)
    except CanonicalError as error:
        raise BundleError(f"its statement {error}") from None
    match value:
        case {
            "_type": dsse.STATEMENT,
            "predicateType": "https://model_signing/signature/v1.0",
            "subject": [{"name": str(name), "digest": {"sha256": str(whole), **others}, **more}],
            "predicate": {"resources": [*resources], "serialization": {"ignore_paths": [*ignored], **serialization}},
        } if not others and not more and all(isinstance(path, str) for path in ignored):
            pass
        case _:
            raise BundleError(f"its statement is not one about a folder's files ({PREDICATE_TYPE})")
    if serialization != {"allow_symlinks": False, "hash_type": "sha256", "method": "files"}:
        raise BundleError("its files are not hashed one by one with SHA-256, without symbolic links")
    files = _resources(resources)
    if digest_of(files.values()) != whole:
        raise BundleError("its subject is not the digest over the files that it lists")
    return Manifest(name, files, tuple(ignored))


def _resources(listed: Sequence[Any]) -> dict[str, str]:
    files: dict[str, str] = {}
    for resource in listed:
        match resource:
            case {"name": str(name), "algorithm": "sha256", "digest": str(digest), **more} if not more:
                if name in files or not _HEX.fullmatch(digest):
                    raise BundleError(f"lists {name!a} twice, or with what is no SHA-256")
                files[name] = digest
            case _:
                raise BundleError("lists what is no name with its SHA-256")
    if not files or list(files) != sorted(files):
        raise BundleError("its files are not listed in the order of their names")
    return files


def digest_of(digests: Iterable[str]) -> str:
    """SHA-256 over digests in hex, in the order of their files' names: a folder's in one."""
    return hashlib.sha256(b"".join(bytes.fromhex(digest) for digest in digests)).hexdigest()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise BundleError(f"{text[:60]!a} is not base64") from None


def differences(signed: Mapping[str, str], actual: Mapping[str, str]) -> list[str]:
    """What of `actual` (path → SHA-256) is not as `signed` lists it, in words; empty when both are the same."""
    words = [f"{name!a} is signed and not there" for name in sorted(set(signed) - set(actual))]
    words += [f"{name!a} is there and not signed" for name in sorted(set(actual) - set(signed))]
    words += [
        f"{name}: its sha256 is {actual[name]}, signed is {signed[name]}"
        for name in sorted(set(signed) & set(actual))
        if signed[name] != actual[name]
    ]
    return words
