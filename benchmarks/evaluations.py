"""What the page of a run's evaluations costs: 8 suites of 1,000 items before and after, two of them with scores between
0 and 1, whose intervals are bootstraps, in the embedded database. Prints the seconds of the first view, which computes,
and of later ones, each in the web application without a server.

    .venv/bin/python benchmarks/evaluations.py [--suites 8] [--items 1000] [--graded 2]
"""

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "platform"), str(HERE / "sides")]

from embedded import database, platform_environment  # noqa: E402


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--suites", type=int, default=8)
    options.add_argument("--items", type=int, default=1000, help="of each suite")
    options.add_argument("--graded", type=int, default=2, help="suites with scores between 0 and 1")
    chosen = options.parse_args()
    with database() as (folder, postgres):
        home = folder / "home"
        home.mkdir()
        environment = platform_environment(home, postgres.url)
        made = [sys.executable, str(HERE / "sides/seal_run.py"), "make", str(home)]
        small = ["--steps", "3", "--groups", "2", "--size", "2"]
        subprocess.run([*made, *small], env=environment, check=True, stdout=subprocess.DEVNULL)
        size = [f"--{name}={value}" for name, value in vars(chosen).items()]
        static = [sys.executable, str(HERE.parent / "platform/manage.py"), "collectstatic", "--noinput", "-v0"]
        subprocess.run(static, env=environment, check=True)
        subprocess.run([sys.executable, str(HERE / "sides/evaluations_page.py"), *size], env=environment, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
