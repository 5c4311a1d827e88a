"""What sealing a long run costs, and checking its card: 1,000 steps of 100 completions, all kept, about 300 characters
each, in the embedded database. Prints one table, then a line per target.

    .venv/bin/python benchmarks/seal.py [--steps 1000] [--groups 10] [--size 10]

Sealing is `record_seal` in a process of its own, with the cards of all four audiences; its memory is what it grew by
while it sealed. The check is `cohort verify` on the card for the project itself, the largest, from start to end.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "platform"), str(HERE / "sides")]

from embedded import database, platform_environment  # noqa: E402

SEAL_SECONDS, SEAL_MB, VERIFY_SECONDS = 30, 500, 10


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=1000)
    options.add_argument("--groups", type=int, default=10)
    options.add_argument("--size", type=int, default=10)
    chosen = options.parse_args()
    with database() as (folder, postgres):
        home = folder / "home"
        home.mkdir()
        environment = platform_environment(home, postgres.url)
        side = [sys.executable, str(HERE / "sides/seal_run.py")]
        size = ["--steps", str(chosen.steps), "--groups", str(chosen.groups), "--size", str(chosen.size)]
        subprocess.run([*side, "make", str(home), *size], env=environment, check=True, stdout=subprocess.DEVNULL)
        done = subprocess.run(
            [*side, "seal", str(home)], env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
        sealed = json.loads(done.stdout.splitlines()[-1])
        verify = _verify(Path(sealed["card"]), environment)
    return report(sealed, verify)


def _verify(card: Path, environment: dict[str, str]) -> dict[str, float]:
    """Seconds and peak memory (MB) of the command. Raises RuntimeError when it refuses the card."""
    begun = time.perf_counter()
    words = [sys.executable, "-m", "cohort.cli.main", "verify", str(card)]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - begun
    if process.returncode != 0:
        raise RuntimeError(f"the card was refused:\n{said}")
    return {"seconds": seconds, "cpu": used.ru_utime + used.ru_stime, "peak": used.ru_maxrss / 1000}


def report(sealed: dict[str, float], verify: dict[str, float]) -> int:
    growth = sealed["peak"] - sealed["base"]
    print(f"{sealed['samples']:,} completions; the card for the project itself has {sealed['bytes'] / 1e6:.1f} MB")
    print(f"{'':14} {'seconds':>8} {'of CPU':>7} {'peak, MB':>9} {'grown by, MB':>13}")
    print(f"{'sealing':14} {sealed['seconds']:8.1f} {sealed['cpu']:7.1f} {sealed['peak']:9.0f} {growth:13.0f}")
    print(f"{'cohort verify':14} {verify['seconds']:8.1f} {verify['cpu']:7.1f} {verify['peak']:9.0f} {'':>13}")
    for name, found, most in (
        ("seal_seconds", sealed["seconds"], SEAL_SECONDS),
        ("seal_grown_mb", growth, SEAL_MB),
        ("verify_seconds", verify["seconds"], VERIFY_SECONDS),
    ):
        print(f"RESULT {name} {found:.1f} {most} {'ok' if found < most else 'miss'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
