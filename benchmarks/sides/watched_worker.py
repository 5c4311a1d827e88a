"""What a worker does beside a trainer that runs: ships its spool and beats, with the worker's own parts, until told to
stop. python watched_worker.py URL ATTEMPT TOKEN OUT

Prints one JSON line when a line comes in: the newest record that the platform holds, and the CPU seconds used.
"""

import json
import resource
import select
import sys
import time
from pathlib import Path

from grpo_core.files.run_folder import RunDir
from grpo_core.files.spool import spool_bytes
from grpo_core.protocol.messages import Beat, ClaimReply
from worker.platform_client.client import Platform, PlatformError
from worker.platform_client.uploads import Shipper


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


started = cpu()  # a worker has been there long before the run
url, attempt, token, out = sys.argv[1:]
claimed = ClaimReply(
    attempt_id=int(attempt),
    fence=1,
    token=token,
    run_id=int(attempt),
    run_name="bench",
    config={},
    files=[],
    heartbeat_seconds=10,
    lease_seconds=60,
)
spool = RunDir(Path(out)).spool_folder
with Platform(url, "none") as platform:
    link = platform.attempt(claimed)
    shipper = Shipper(link, spool)
    beat_at, asked = 0.0, False
    while True:
        asked = asked or bool(select.select([sys.stdin], [], [], 0.5)[0])
        try:
            if time.monotonic() > beat_at:
                beat_at = time.monotonic() + 2.5
                link.beat(Beat(fence=1, shipped_seq=shipper.acked_seq, spooled_bytes=spool_bytes(spool)))
            while spool.is_dir() and shipper.ship(lambda: None):
                pass
        except PlatformError:
            time.sleep(0.5)
        if asked:
            break
print(json.dumps({"acked_seq": shipper.acked_seq, "cpu": cpu() - started}))
