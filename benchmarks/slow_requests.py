"""What other people and a worker notice while slow clients attack the web server. Prints one table.

    .venv/bin/python benchmarks/slow_requests.py [--seconds 180] [--sockets 16,64,200] [--url http://127.0.0.1:8400]

Every socket opens a connection, sends a part of a request and then a byte every two seconds, a third of them each: the
body of a sign-in, the body of a batch of records, and headers; one that the server closes is opened again. Meanwhile
one client calls /healthz, /login/ and a worker's heartbeat in turn, each over a new connection, twice a second, and
waits 30 s at most. Without --url the server is started as `cohort up` starts it, over a fresh database, and its memory
is measured; with it, the heartbeat is one that the server refuses, because it knows no such token.
"""

import argparse
import http.client
import json
import select
import socket
import statistics
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "platform"), str(HERE / "sides")]

from cohort_web import CohortWeb, free_port  # noqa: E402
from embedded import database  # noqa: E402

PATIENCE = 30.0
BEAT = "/api/worker/v1/attempts/1/heartbeat"
_BODY = "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 100000\r\n\r\nx"
PARTS = (
    f"POST /login/ HTTP/1.1\r\nHost: localhost\r\n{_BODY}",
    f"POST /api/worker/v1/attempts/1/records HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\n{_BODY}",
    "GET /login/ HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=180)
    options.add_argument("--sockets", default="16,64,200")
    options.add_argument("--url", help="attack this server; it must be one of your own")
    chosen = options.parse_args()
    counts = [0, *(int(count) for count in chosen.sockets.split(","))]
    if chosen.url:
        address = urlsplit(chosen.url)
        return report((address.hostname or "", address.port or 80), "x", counts, chosen.seconds, None)
    with database() as (folder, postgres), closing(CohortWeb(folder / "home", postgres.url, free_port())) as web:
        web.prepare(points=0, writers=1)
        web.start()
        return report(("127.0.0.1", web.port), web.tokens[1], counts, chosen.seconds, web)


def report(address: tuple[str, int], token: str, counts: list[int], seconds: float, web: CohortWeb | None) -> int:
    print(f"{'sockets':>7} {'call':>10} {'calls':>6} {'p50 ms':>8} {'p95 ms':>8} {'max ms':>8} {'failed':>7} {'MB':>5}")
    for count in counts:
        over = threading.Event()
        attack = threading.Thread(target=slow_clients, args=(address, count, over))
        attack.start()
        time.sleep(3)
        took, failed = watch(address, token, min(seconds, 20) if count == 0 else seconds)
        memory = f"{resident(web.pid) / 1e6:5.0f}" if web else "    -"
        over.set()
        attack.join()
        for name, times in took.items():
            ordered = sorted(times)
            ms = [statistics.median(ordered), ordered[int(0.95 * (len(ordered) - 1))], ordered[-1]]
            figures = " ".join(f"{1000 * value:8.0f}" for value in ms)
            print(f"{count:7} {name:>10} {len(times):6} {figures} {failed[name]:7} {memory}", flush=True)
    return 0


def resident(pid: int) -> int:
    """Bytes in memory of the web server's processes."""
    main = psutil.Process(pid)
    return sum(process.memory_info().rss for process in (main, *main.children()))


def slow_clients(address: tuple[str, int], count: int, over: threading.Event) -> None:
    clients: dict[socket.socket, int] = {}
    missing = list(range(count))
    while not over.wait(2):
        for client in select.select(list(clients), [], [], 0)[0]:  # closed, or answered and then closed
            missing.append(clients.pop(client))
            client.close()
        for client in list(clients):
            try:
                client.send(b"x")
            except OSError:
                missing.append(clients.pop(client))
                client.close()
        for number in [missing.pop() for _ in range(len(missing))]:
            with suppress(OSError):
                client = socket.create_connection(address, timeout=5)
                client.sendall(PARTS[number % len(PARTS)].encode())
                client.setblocking(False)
                clients[client] = number
                continue
            missing.append(number)
    for client in clients:
        client.close()


def watch(address: tuple[str, int], token: str, seconds: float) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Seconds that each call took, and how many were not answered as they should be."""
    headers = {"Host": "localhost", "Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    beat = json.dumps({"fence": 1})
    took: dict[str, list[float]] = {"/healthz": [], "/login/": [], "heartbeat": []}
    failed = dict.fromkeys(took, 0)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        for name in took:
            began = time.monotonic()
            link = http.client.HTTPConnection(*address, timeout=PATIENCE)
            try:
                if name == "heartbeat":
                    link.request("POST", BEAT, beat, headers)
                else:
                    link.request("GET", name, headers={"Host": "localhost"})
                status = link.getresponse().status
                failed[name] += status != 200 and (name, status) != ("heartbeat", 401)
            except (OSError, http.client.HTTPException):
                failed[name] += 1
            finally:
                link.close()
            took[name].append(time.monotonic() - began)
        time.sleep(0.5)
    return took, failed


if __name__ == "__main__":
    sys.exit(main())
