"""One writer over HTTP: posts prepared batches one after the other over one kept connection, and says how long it took.

    python post_batches.py FOLDER [--again]

FOLDER holds target.json ({host, port, path, headers, ack_at_once}) and one file per batch, posted in the order of their
names. An ordinary client leaves it to the kernel when a server's bytes are acknowledged; with `ack_at_once` this one
does not, which hides what a server loses that sends an answer in two parts and waits for the first to be acknowledged.
Prints `ready`, waits for a line, then prints one JSON line: when it began and ended, and the seconds of each batch.
`--again` posts every batch a second time right after the first, and tells those seconds apart. Standard library only:
the same writer serves both servers.
"""

import http.client
import json
import socket
import sys
import time
from pathlib import Path


def main() -> int:
    folder, again = Path(sys.argv[1]), "--again" in sys.argv
    target = json.loads((folder / "target.json").read_text())
    batches = [path.read_bytes() for path in sorted(folder.glob("batch-*"))]
    link = http.client.HTTPConnection(target["host"], target["port"], timeout=120)
    link.connect()
    took: dict[str, list[float]] = {"new": [], "again": []}
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.time()
    for batch in batches:
        for kind in ("new", "again") if again else ("new",):
            start = time.perf_counter()
            link.request("POST", target["path"], batch, target["headers"])
            if target["ack_at_once"]:
                link.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            answer = link.getresponse()
            said = answer.read()
            took[kind].append(time.perf_counter() - start)
            if answer.status != 200:
                print(f"{answer.status}: {said[:500]!r}", file=sys.stderr)
                return 1
    print(json.dumps({"began": began, "ended": time.time(), **took}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
