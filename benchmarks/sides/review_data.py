"""What review_load.py reads: a run with very many samples, its index of words, a full queue, a re-score of all of it,
a sample of 10,000 tokens and a group of long answers in Markdown. Django must be set up."""

import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from cohort_web import CohortWeb, stock_maker
from many_samples import fill

OTHERS = 4
"""Runs next to the large one, each with a fiftieth of its samples."""
QUEUE = 2_000
TOKENS = 10_000
STEPS_TOGETHER = 500
"""The samples of the queue come from so many of the first steps."""
MARKDOWN = """## Step {n}

We know that $\\frac{{a_{n}}}{{b}} = \\sqrt{{x^{n} + {n}}}$, so **both** terms cancel:

1. Take $x_{n} = {n}$ and `y = x + {n}`.
2. Then \\[\\sum_{{i=0}}^{{{n}}} i^2 = \\frac{{{n} \\cdot ({n} + 1)}}{{2}}\\]
3. - so *each* is right
   - and none is lost

```python
def f_{n}(x):
    return x ** {n}
```
"""


@dataclass(frozen=True)
class Data:
    """Ids."""

    samples: int
    """How many the large run has."""
    run: int
    queue: int
    rescore: int
    close: int
    """The run with the tokens and the Markdown."""
    tokens: int
    """Group whose second sample has token arrays."""
    markdown: int
    """Group of 16 long answers."""


def prepared(web: CohortWeb, samples: int) -> Data:
    """Of the web server's database, which is filled where its home does not say that it is. Raises ValueError where it
    was filled with another number of samples, or not to its end."""
    web.migrate()
    from cohort.runs.models import Run

    file = web.home / "review-data.json"
    if file.exists():
        data = Data(**json.loads(file.read_text()))
        if data.samples != samples:
            raise ValueError(f"The kept database has {data.samples:,} samples; give --samples {data.samples}.")
        return data
    if Run.objects.exists():
        raise ValueError(f"The database of {web.home} was not filled to its end; remove its folder.")
    data = _made(samples)
    file.write_text(json.dumps(asdict(data)))
    return data


def _made(samples: int) -> Data:
    from django.db import connection

    maker = stock_maker()
    reward = {
        "components": [{"name": "format", "kind": "r1_format", "weight": 0.2}, {"name": "answer", "kind": "exact"}]
    }
    runs = [maker.run(f"sampled {number}", state="training") for number in range(OTHERS + 1)]
    large = runs[-1]
    for number, run in enumerate(runs):
        run.config["reward"] |= reward
        run.save()
        fill(run, maker.attempt(run), count=samples if run is large else samples // 50, seed=number)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM (ANALYZE)")
    close, tokens, markdown = _read_closely(maker)
    queue, rescore = _judged(large), _rescored(maker, large)
    _words()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM (ANALYZE)")
        for name in ("review_sample", "sample_by_step", "review_samplewords", "sample_by_word"):
            cursor.execute("SELECT pg_size_pretty(pg_table_size(%s))", [name])
            print(f"{name}: {cursor.fetchone()[0]}", file=sys.stderr, flush=True)
    return Data(samples, large.pk, queue, rescore, close, tokens, markdown)


def _read_closely(maker: Any) -> tuple[int, int, int]:
    """Ids of the run and of its two groups."""
    from tests.factories.runs import add_group, add_samples
    from tests.factories.token_rows import columns
    from tests.factories.tokens import stored_sample

    run = maker.run("read closely", state="training")
    pieces = [f" w{at % 997}" for at in range(TOKENS)]
    sample = stored_sample(maker, run, columns(pieces), problem_id="tokens")
    group = add_group(run.attempts.get(), [], step=2, problem_id="markdown")
    texts = ["".join(MARKDOWN.format(n=16 * part + number) for part in range(6)) for number in range(16)]
    rows = ({"completion": text, "tokens": 900, "finish_reason": "eos", "reward": 0.5} for text in texts)
    add_samples(group, ({**row, "components": {}, "advantage": 0.0} for row in rows))
    return run.pk, sample.group_id, group.pk


def _judged(run: Any) -> int:
    """A few hundred samples without a queue; and a queue that two people have judged but for its last hundred."""
    from cohort.accounts.models import User
    from cohort.review.filters import SampleFilter
    from cohort.review.models import Annotation, ReviewItem, Sample
    from cohort.review.queues import queue_create

    rita, alice = User.objects.get(username="rita"), User.objects.get(username="alice")
    alone = Sample.objects.filter(run=run, step__lte=100, index=0)[:500].values_list("pk", flat=True)
    Annotation.objects.bulk_create(Annotation(sample_id=pk, by=rita, verdict="wrong") for pk in alone)
    looked_for = SampleFilter(step_max=STEPS_TOGETHER)
    queue = queue_create(
        run=run, actor=rita, name="judged twice", samples=looked_for, size=QUEUE, order="random", blind=False,
        reviewers=2,
    )  # fmt: skip
    items = ReviewItem.objects.filter(queue=queue).order_by("number")
    Annotation.objects.bulk_create(
        Annotation(
            sample_id=item.sample_id, by=by, queue=queue, seconds=5.0 + item.number % 7,
            verdict="right" if (item.number + differs) % 3 else "wrong",
        )
        for item in items[: QUEUE - 100]
        for by, differs in ((rita, 0), (alice, item.number % 10 == 0))
    )  # fmt: skip
    return int(queue.pk)


def _words() -> None:
    """Row by row the index of words takes as long as all else: it is made at the end."""
    from django.db import connection

    from cohort.review.models import SampleWords
    from cohort.review.word_index import words_index

    with connection.schema_editor() as editor:
        editor.remove_index(SampleWords, SampleWords._meta.indexes[0])
    began, total = time.perf_counter(), 0
    while count := words_index():
        total += count
        print(f"  words of {total:,} samples", file=sys.stderr, flush=True)
    with connection.schema_editor() as editor:
        editor.execute("SET LOCAL maintenance_work_mem = '1GB'")
        editor.add_index(SampleWords, SampleWords._meta.indexes[0])
    print(f"  words: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)


_RESCORED = """
    INSERT INTO review_rescoredsample (rescore_id, sample_id, value, passed, error_class, phantom, change, differs)
    SELECT %s, id, CASE WHEN made < 0.99 THEN made END, CASE WHEN made < 0.99 THEN made < 0.5 END, '', false,
        CASE WHEN made < 0.4 THEN 1 WHEN made < 0.5 THEN 2 WHEN made < 0.99 THEN 0 ELSE 3 END, made < 0.5
    FROM (SELECT id, random() AS made FROM review_sample WHERE run_id = %s) AS sample
"""


def _rescored(maker: Any, run: Any) -> int:
    """Half of the samples are called otherwise, four in ten rewarded less, one in ten more, one in a hundred has no
    score."""
    from django.db import connection, transaction

    from cohort.lab.models import JobKind, JobState, LabJob
    from cohort.review.models import Group, Rescore

    with transaction.atomic():
        job = LabJob.objects.create(
            project=run.project, kind=JobKind.RESCORE, version=maker.verifier_version, spec={}, spec_digest="0" * 64,
            created_by=maker.actor, state=JobState.DONE,
        )  # fmt: skip
        newest = Group.objects.filter(run=run).order_by("-pk").values_list("pk", flat=True)[0]
        rescore = Rescore.objects.create(
            run=run, version=maker.verifier_version, job=job, by=maker.actor, newest_group=newest, samples=1
        )
        with connection.cursor() as cursor:
            cursor.execute(_RESCORED, [rescore.pk, run.pk])
            Rescore.objects.filter(pk=rescore.pk).update(samples=cursor.rowcount, done=cursor.rowcount)
    return int(rescore.pk)
