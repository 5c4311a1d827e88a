"""One POST, run as a program of its own so that it can be ended as a whole: looking up a name, connecting, TLS, headers
and body each wait by themselves, and a server that sends a byte at a time ends none of these waits.

Takes the address and the most seconds, and the body on standard input. Prints one line of JSON: `status`, `type` and
`body` of the answer, or `unreachable` with the reason. Needs Python alone.
"""

import http.client
import json
import signal
import sys
import urllib.error
import urllib.request
from contextlib import suppress

MOST_BYTES = 64 * 1024
"""More of an answer is not read."""


def answer(url: str, body: bytes) -> dict[str, str | int]:
    headers = {"Content-Type": "text/plain; charset=utf-8", "User-Agent": "cohort"}
    said = b""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=body, headers=headers, method="POST")) as reply:
            status, kind, said = reply.status, reply.headers.get_content_type(), reply.read(MOST_BYTES)
    except urllib.error.HTTPError as error:
        status, kind = error.code, error.headers.get_content_type()
        with suppress(OSError, http.client.HTTPException):  # its number says enough
            said = error.read(MOST_BYTES)
    except (OSError, ValueError, http.client.HTTPException) as error:
        return {"unreachable": str(getattr(error, "reason", error) or type(error).__name__)}
    return {"status": status, "type": kind, "body": said.decode("utf-8", errors="replace")}


if __name__ == "__main__":
    signal.setitimer(signal.ITIMER_REAL, float(sys.argv[2]))  # also when who started it was killed: SIGALRM ends it
    print(json.dumps(answer(sys.argv[1], sys.stdin.buffer.read())))
