"""Ingests steps of samples by the code of one tree, over a database of its own: `review_load.py --ingest-against` has
two of them, in turn. Called as `ingest_samples.py TREE STEPS GROUPS`; a line on stdin is one round, its answer the
seconds that the batches took.
"""

import os
import sys
import time
from pathlib import Path

TREE, STEPS, GROUPS = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
sys.path[:0] = [str(TREE), str(TREE / "platform"), str(Path(__file__).resolve().parent)]

from cohort_web import CohortWeb, stock_maker  # noqa: E402
from embedded import database  # noqa: E402
from many_samples import step_records, texts  # noqa: E402


def main() -> None:
    with database() as (folder, postgres):
        CohortWeb(folder / "home", postgres.url, 0).migrate()
        from cohort.ingest.batch import batch_ingest
        from cohort.nodes.services import node_create
        from cohort.runs.attempts import attempt_claim
        from tests.factories.worker import NODE, envelopes, manifest, packed, phase

        run = stock_maker().launched("filled", preset="demo", optim={"steps": 10**6}, eval={"holdout": 4})
        attempt, _ = attempt_claim(run_id=run.pk, node=node_create(name="bench")[0], info=NODE)
        send = {"attempt_id": attempt.pk, "digest": attempt.token_digest, "fence": attempt.fence}
        lines = envelopes([manifest(), phase("training", 10**6)])
        batch_ingest(**send, body=packed(lines))
        seq, step, made = len(lines), 0, texts(1)
        print("ready", flush=True)
        for _ in sys.stdin:
            bodies = []
            for _ in range(STEPS):
                step += 1
                lines = envelopes(step_records(step, groups=GROUPS, texts=made), first=seq + 1)
                seq += len(lines)
                bodies.append(packed(lines))
            began = time.perf_counter()
            for body in bodies:
                batch_ingest(**send, body=body)
            print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    os.environ.pop("DJANGO_SETTINGS_MODULE", None)
    main()
