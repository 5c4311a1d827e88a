"""Signatures of webhooks by the Standard Webhooks specification (www.standardwebhooks.com): symmetric, version v1."""

import hashlib
import hmac
from base64 import b64decode, b64encode

_PREFIX = "whsec_"


def format_secret(key: bytes) -> str:
    return _PREFIX + b64encode(key).decode()


def signed_headers(*, secret: str, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The three headers; `timestamp` in seconds since 1970. The signature is HMAC-SHA256 over id.timestamp.body."""
    key = b64decode(secret.removeprefix(_PREFIX))
    signed = b".".join([message_id.encode(), str(timestamp).encode(), body])
    signature = b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{signature}",
    }
