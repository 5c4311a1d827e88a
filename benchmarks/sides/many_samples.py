"""A run with very many stored samples, for review_data.py; and records of such samples.

Rows go through COPY, not through ingest: what is measured is how they are read. Completions are about a kilobyte of
words with Zipf's frequencies; the rewards, lengths and flags are random.
"""

import itertools
import json
import random
import sys
from collections.abc import Iterator
from typing import Any

GROUP, WORDS = 8, 150
"""Samples of a group, words of a completion."""
NEEDLE = "unique needle phrase"


def vocabulary() -> list[str]:
    """Words from the most frequent on: the n-th is in a text about 1/n as often as the first."""
    chance = random.Random(0)
    return ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(3, 9))) for _ in range(50_000)]


def texts(seed: int) -> Iterator[str]:
    """Of about a kilobyte, one after the other. A fifth has `evenword` and another `oddword`, never one both; each
    thousandth has `rareword`, and one has NEEDLE."""
    chance, words = random.Random(seed), vocabulary()
    weights = list(itertools.accumulate(1 / (rank + 2.7) for rank in range(len(words))))
    for number in itertools.count():
        text = chance.choices(words, cum_weights=weights, k=WORDS)
        if number % 5 < 2:
            text[10] = ("evenword", "oddword")[number % 5]
        if number % 1000 == 7:
            text[20] = "rareword"
        if number == 500:
            text[30:33] = NEEDLE.split()
        yield f"<think>{' '.join(text)}</think><answer>{chance.randrange(1000)}</answer>"


def fill(run: Any, attempt: Any, *, count: int, seed: int) -> None:
    """Store `count` samples, in steps of 32 groups."""
    from django.db import connection, transaction

    from cohort.ingest.copy import Table, server_cursor
    from cohort.review.facets import ERROR, FINISH, FLAGS, MASKED, VERIFIER
    from cohort.review.models import Group, Sample

    chance, made = random.Random(seed), texts(seed)
    first = (Group.objects.order_by("-pk").values_list("pk", flat=True).first() or 0) + 1
    groups = range(first, first + count // GROUP)
    places = {pk: ((pk - first) // 32 + 1, (pk - first) % 32) for pk in groups}
    of_group = ("id", "attempt", "run", "seq", "step", "index", "problem_id", "prompt", "answer", "reward_mean")
    into_groups = Table(Group, *of_group, "reward_std", "signal", "discarded")
    of_sample = ("group", "run", "attempt", "step", "index", "completion", "tokens", "finish_reason", "reward")
    further = (
        "components",
        "advantage",
        "mask_cause",
        "salt",
        "tokens_sha256",
        "facets",
        "component_values",
        "clipped",
    )
    into_samples = Table(Sample, *of_sample, *further)

    def sample(pk: int, index: int) -> tuple[Any, ...]:
        right, form = chance.random() < 0.4, float(chance.random() < 0.8)
        finish = "length" if chance.random() < 0.05 else "eos"
        masked = "reward_error" if chance.random() < 0.01 else ""
        packed = FINISH.packed(finish) | MASKED.packed(masked)
        packed |= ERROR.packed("timeout") if masked else VERIFIER.packed("right" if right else "wrong")
        for facet, share in zip(FLAGS.values(), (0.02, 0.1, 0.03, 0.01), strict=True):
            packed |= facet.mask if chance.random() < share else 0
        scores = {
            "format": {"value": form, "passed": bool(form), "detail": "", "seconds": 0.0001, "error": None},
            "answer": {
                "value": float(right),
                "passed": right,
                "detail": "extracted 17",
                "seconds": 0.0002,
                "error": None,
            },
        }
        reward = None if masked else form * 0.2 + right
        columns = (next(made), 200 + chance.randrange(200), finish, reward, json.dumps(scores))
        rest = (chance.gauss(0, 1), masked, "0" * 32, "", packed, f"{{{form},{float(right)}}}", chance.random() ** 8)
        return (pk, run.pk, attempt.pk, places[pk][0], index, *columns, *rest)

    with transaction.atomic(), connection.wrap_database_errors:
        cursor = server_cursor()
        prompt = "What is the sum of both numbers? " * 4
        into_groups.write(
            cursor,
            (
                (pk, attempt.pk, run.pk, pk, *places[pk], f"p{pk % 5000}", prompt, "17", 0.5, 0.4, "mixed", "")
                for pk in groups
            ),
        )
        into_samples.write(cursor, (sample(pk, index) for pk in groups for index in range(GROUP)))
        cursor.execute("SELECT setval(pg_get_serial_sequence('review_group', 'id'), max(id)) FROM review_group")
    run.step, attempt.acked_seq = places[groups[-1]][0], groups[-1]
    run.save()
    attempt.save()
    print(f"  {count:,} samples of run {run.pk} stored", file=sys.stderr, flush=True)


def step_records(step: int, *, groups: int, texts: Iterator[str]) -> list[Any]:
    """What a trainer of the code at hand reports of one step: metrics, commitments, groups of eight samples."""
    from grpo_core.records import types as records
    from grpo_core.records.commitments import commit

    more = {"flags": ("near_duplicate",), "clipped": 0.03125} if "flags" in records.Sample.model_fields else {}
    scores = {
        "format": records.ComponentScore(value=1.0, passed=True, seconds=0.0001),
        "answer": records.ComponentScore(value=0.0, passed=False, detail="extracted 17", seconds=0.0002),
    }
    made = [
        records.Group(
            step=step, index=index, problem_id=f"p{index}", prompt="What is the sum of both numbers? " * 4, answer="17",
            reward_mean=0.5, reward_std=0.4, signal="mixed",
            samples=tuple(
                records.Sample(
                    index=number, completion=next(texts), tokens=250, finish_reason="eos", reward=0.2,
                    components=scores, advantage=-0.5, logprob_mean=-0.25, **more,
                )
                for number in range(GROUP)
            ),
        )
        for index in range(groups)
    ]  # fmt: skip
    salted, commitments = commit(made)
    metrics = records.StepMetrics(step=step, metrics={"reward": 0.5}, seconds={"total": 3.0})
    return [metrics, commitments, *salted]
