"""Every call of the worker API with what no worker of ours sends: messages of the protocol's own schema and others.
None has a 5xx for its answer, and of what is stored every page can be read and every record be sealed into cards that
`cohort verify` accepts.

`COHORT_TEST_FUZZ` makes about so many calls instead of the few hundred of each test run, and
`COHORT_TEST_SEED` others; both are printed with `pytest -s`.
"""

import copy
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import zstandard
from django.test import Client
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from cohort.accounts.models import Project, User
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.evidence.verify.check import verify_card
from cohort.lab.models import LabJob
from cohort.lab.services import job_request
from cohort.nodes.services import node_create
from cohort.records.models import Record
from cohort.records.services import record_seal
from cohort.runs.models import Attempt, Run
from grpo_core.records.bounds import DEEPEST, MOST
from tests.factories import sealed_run
from tests.factories.stock import R1_EXACT
from tests.factories.worker import NODE
from tests.web.records.conftest import quick_pdf
from tests.web.records.records import platform_keys, saved
from tests.web.worker_calls import Caller

__all__ = ["quick_pdf"]  # a fixture

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_pdf")]

SEED = int(os.environ.get("COHORT_TEST_SEED", "20261126"))
CALLS = int(os.environ.get("COHORT_TEST_FUZZ", "300"))
PER_RUN = 150
PAGES = ("", "live/", "series.json", "groups/", "evaluations/", "events/", "attempts/", "logs/", "config/")
LAST_PAGES = ("record/", "metrics.csv", "config.yaml", "statements/", "events/?all=1")
ODD: tuple[Any, ...] = (
    *(None, True, False, "", "x", "\x00", "a\ud800b", "<b>", "é" * 300, "x" * 70_000, "٣", "../../etc/passwd", "a//b"),
    *(0, 1, -1, 2, 7, 2**31 - 1, 2**31, MOST, MOST + 1, 2**63 - 1, 2**63, 10**30, -(2**63) - 1),
    *(0.0, -0.0, 0.5, 1e-300, 1e150, -1e150, 1e151, 1.7e308, math.inf, -math.inf, math.nan),
    *("2000-01-01T00:00:00Z", "2099-12-31T23:59:59.999999Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00"),
    *([], {}, [[]], {"": ""}, {"a\x00": 1}, ["\udfff"], [1e400], {"x" * 300: 1}),
)
"""Of a wrong type, at a limit, and beyond it."""


def nested(depth: int) -> Any:
    content: Any = 1
    for _ in range(depth):
        content = {"a": content}
    return content


DEEP = (DEEPEST - 1, DEEPEST, DEEPEST + 1, 41, 900)


def positions(content: Any) -> list[tuple[Any, Any]]:
    """Each (container, key) in JSON content."""
    listed: list[tuple[Any, Any]] = []
    if isinstance(content, dict | list):
        for key, value in list(content.items() if isinstance(content, dict) else enumerate(content)):
            listed += [(content, key), *positions(value)]
    return listed


def mutated(chance: Random, content: dict[str, Any]) -> dict[str, Any]:
    """The content with one to three values changed, removed, doubled or added."""
    content = copy.deepcopy(content)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        spots = positions(content)
        if not spots:
            break
        holder, key = spots[chance.randint(0, len(spots) - 1)]
        match chance.choice(("odd", "odd", "odd", "odd", "near", "deep", "gone", "more", "twice")):
            case "odd":
                holder[key] = copy.deepcopy(chance.choice(ODD))
            case "near" if isinstance(holder[key], int | float):
                holder[key] += chance.choice((-1, 1, 2, 0.5))
            case "near" if isinstance(holder[key], str):
                holder[key] += chance.choice(("x", "\x00", "\ud83d", " ", "\u202e"))
            case "deep":
                holder[key] = nested(chance.choice(DEEP))
            case "gone":
                del holder[key]
            case "more" if isinstance(holder, dict):
                holder[chance.choice(("more", "", "\x00", "a.b", "x" * 201))] = copy.deepcopy(chance.choice(ODD))
            case _ if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[key]))
    return content


def as_json(content: Any) -> bytes:
    return json.dumps(content).encode()


class Worker:
    """One attempt and one job of a node, and what the platform has taken of the attempt's records."""

    def __init__(self, run: Run, node: Caller, job: LabJob, chance: Random) -> None:
        self.run, self.node, self.job, self.chance = run, node, job, chance
        self.script = [json.loads(record.model_dump_json()) for record in script(run)]
        self.taken: list[dict[str, Any]] = []
        self.answers: dict[int, int] = {}
        self.last: Any = None
        info = NODE.model_dump(mode="json")
        claimed = self.call(node, "claim", {"run_id": run.pk, "claim_id": "a", "node": info}, odd=False)
        given = self.call(node, "jobs/claim", {"job_id": job.pk, "claim_id": "b", "node": info}, odd=False)
        assert (claimed.status_code, given.status_code) == (201, 201), (claimed.content, given.content)
        self.attempt, self.lab = claimed.json(), given.json()
        self.mine, self.jobs = Caller(self.attempt["token"]), Caller(self.lab["token"])
        for caller in (self.node, self.mine, self.jobs):
            caller.client.raise_request_exception = False

    def call(self, caller: Caller, path: str, body: Any, *, odd: bool = True, **headers: str) -> Any:
        """Never a 5xx, and an answer in words for what is refused."""
        sent = body if isinstance(body, bytes) else as_json(mutated(self.chance, body) if odd else body)
        kind = "application/zstd" if isinstance(body, bytes) else "application/json"
        self.last = caller, path, sent[:3000], headers
        answer = caller.client.post(f"/api/worker/v1/{path}", sent, content_type=kind, headers=headers)
        self.answers[answer.status_code] = self.answers.get(answer.status_code, 0) + 1
        assert answer.status_code < 500, (path, sent[:3000], headers, answer.content[:2000])
        if answer.status_code >= 400:
            assert answer.json()["message"], answer.content
        return answer

    @property
    def at(self) -> str:
        return f"attempts/{self.attempt['attempt_id']}"

    # ------------------------------------------------------------------ one call of each kind

    def step(self) -> None:
        kinds = ("records",) * 12 + ("node", "lost", "claim", "beat", "upload", "finish", "file")
        kinds += ("job_claim", "job_beat", "job_finish", "job_file")
        getattr(self, f"odd_{self.chance.choice(kinds)}")()

    def odd_node(self) -> None:
        self.call(self.node, "node", NODE.model_dump(mode="json"))

    def odd_lost(self) -> None:
        """At another fence, so that the attempt does not end of it."""
        changed = mutated(self.chance, {"attempts": [{"attempt_id": self.attempt["attempt_id"], "fence": 2}]})
        if '"fence": 1' not in json.dumps(changed) and '"fence": true' not in json.dumps(changed):
            self.call(self.node, "node/lost", changed, odd=False)

    def odd_claim(self) -> None:
        self.call(self.node, "claim", {"run_id": self.run.pk, "claim_id": "c", "node": NODE.model_dump(mode="json")})

    def odd_job_claim(self) -> None:
        body = {"job_id": self.job.pk, "claim_id": "c", "node": NODE.model_dump(mode="json")}
        self.call(self.node, "jobs/claim", body)

    def odd_beat(self) -> None:
        progress = {"phase": "training", "done": 1, "total": 9}
        gone = [{"fence": 1, "path": "checkpoints/step-000001"}]
        body = {"fence": 1, "shipped_seq": 1, "spooled_bytes": 1, "free_bytes": 5, "progress": progress}
        self.call(self.mine, f"{self.at}/heartbeat", {**body, "removed": gone})

    def odd_job_beat(self) -> None:
        body = {"fence": 1, "progress": {"phase": "sampling", "done": 1, "total": 9}}
        self.call(self.jobs, f"jobs/{self.lab['job_id']}/heartbeat", body)

    def odd_finish(self) -> None:
        """The same."""
        body = {"fence": 2, "end": "failed", "code": "x", "message": "m", "log_tail": "l", "last_seq": 1}
        changed = mutated(self.chance, body)
        if changed.get("fence") not in (1, 1.0, True, "1"):
            self.call(self.mine, f"{self.at}/finish", changed, odd=False)

    def odd_job_finish(self) -> None:
        result = {"what": "try", "rubric_digest": self.job.spec_digest, "rows": [{"id": "a", "reward": 1.0}]}
        body = {"fence": 1, "end": "done", "result": result, "code": "ok", "message": "", "log_tail": "", "seconds": 1}
        self.call(self.jobs, f"jobs/{self.lab['job_id']}/finish", body)

    def odd_upload(self) -> None:
        pick = self.chance.choice(("0" * 63 + "1", "f" * 64, "x", "A" * 64, "9" * 64))
        header = ("0", "1", "2", "-1", "", "x", "²", "9" * 18, "9" * 30, "1e3")
        headers = {"X-Cohort-Fence": self.chance.choice(header), "X-Cohort-Offset": self.chance.choice(header)}
        self.call(self.mine, f"{self.at}/uploads/{pick}", self.chance.choice((b"", b"x" * 96)), **headers)

    def odd_file(self) -> None:
        for path in (f"{self.at}/files", f"jobs/{self.lab['job_id']}/files"):
            caller = self.mine if path.startswith("attempts") else self.jobs
            caller.client.raise_request_exception = False
            assert caller.get(f"{path}/{self.chance.choice(('x', '0' * 64, '%00', 'é'))}").status_code < 500

    odd_job_file = odd_file

    def odd_records(self) -> None:
        how = self.chance.choice(("odd", "odd", "odd", "odd", "right", "right", "order", "bytes"))
        seq, body = len(self.taken) + 1, self.next()
        if body is None:
            return
        line = {"seq": seq, "at": "2026-11-21T12:00:00Z", "record": body}
        fence, lines = "1", [line]
        if how == "odd":
            lines = [mutated(self.chance, line)]
        elif how == "order":
            lines = [{**line, "seq": seq + self.chance.choice((-1, 1, 2))} for _ in range(2)]
            fence = self.chance.choice(("1", "2", "", "x", "9" * 30))
        sent = b"".join(as_json(each) + b"\n" for each in lines)
        packed = zstandard.ZstdCompressor().compress(sent)
        if how == "bytes":
            cut = self.chance.randint(0, len(packed))
            packed = self.chance.choice((packed[:cut], sent, packed + b"\x00", packed[cut:], b""))
        answer = self.call(self.mine, f"{self.at}/records", packed, **{"X-Cohort-Fence": fence})
        if answer.status_code == 200:
            held = answer.json()["acked_seq"]
            self.taken += [each["record"] for each in lines if len(self.taken) < each["seq"] <= held]
            assert len(self.taken) == held

    def next(self) -> dict[str, Any] | None:
        """The next record of the script, made to follow on what was taken."""
        if any(body["kind"] == "outcome" for body in self.taken):
            return None
        body = copy.deepcopy(self.script[0] if len(self.script) > 1 else self.script[-1])
        if self.taken and len(self.script) > 1 and self.chance.randint(0, 2) == 0:
            self.script.pop(0)
            return self.next()
        step = max((int(each["step"]) for each in self.taken if each["kind"] == "step"), default=0)
        match body["kind"]:
            case "step":
                body["step"] = step + 1
            case "group" | "commitments" | "checkpoint":
                body["step"] = step
            case "eval_item":
                body["problem_id"] = f"p-{len(self.taken)}"
            case "eval_result":
                of = [each for each in self.taken if each["kind"] == "eval_item"]
                of = [each for each in of if (each["phase"], each["suite"]) == (body["phase"], body["suite"])]
                body["problems"], body["correct"] = max(len(of), 1), sum(float(each["score"]) for each in of)
                body["truncated"] = sum(each["truncated"] in (True, 1, "true", "x") for each in of)
                body["errors"] = sum(bool(each.get("error")) for each in of)
        return body


def script(run: Run) -> Iterator[Any]:
    """Records of a short run, some of which are left out."""
    scores = [1.0, 0.0, 1.0]
    whole = sealed_run.whole(run)
    rest = [record for record in whole if record.kind not in ("eval_item", "eval_result")]
    yield from rest[:3]
    yield from sealed_run.evaluation("before", scores, sealed_run.PROTOCOL)
    yield from rest[3:-3]
    yield sealed_run.checkpoint(3)
    yield from sealed_run.step(4, 0.5)
    yield from sealed_run.step(5, 0.5)
    yield rest[-3]
    yield from sealed_run.evaluation("after", scores, sealed_run.PROTOCOL)
    yield from rest[-2:]


# ---------------------------------------------------------------------- what must hold


def require_pages(client: Client, run: Run, pages: tuple[str, ...]) -> None:
    groups = [f"groups/{pk}/" for pk in run.groups.values_list("pk", flat=True)[:20]]
    base = f"/p/{run.project.slug}/"
    nodes = [f"{base}nodes/", *(f"{base}nodes/{pk}/" for pk in run.attempts.values_list("node_id", flat=True))]
    for address in (*(f"{base}runs/{run.pk}/{page}" for page in (*pages, *groups)), *nodes, f"{base}runs/"):
        answer = client.get(address)
        content = b"".join(answer) if answer.streaming else answer.content
        assert answer.status_code in (200, 286), (address, content[:2000])


def require_seal(run: Run, folder: Path) -> None:
    record: Record = record_seal(run=run)
    for card in record.cards.all():
        report = verify_card(saved(card, folder), platform_keys())
        faults = [check for check in report.checks if check.status == "failed"]
        assert report.accepted, (card.audience, faults)


def test_no_call_of_a_worker_breaks_the_platform(
    viewer: Client,
    alice: User,
    ours: Project,
    base_model: BaseModel,
    dataset: PromptDataset,
    heldout: PromptDataset,
    verifier_version: VerifierVersion,
    tmp_path: Path,
) -> None:
    made = [0]
    answers: dict[int, int] = {}
    viewer.raise_request_exception = False

    @seed(SEED)
    @settings(
        max_examples=max(1, CALLS // PER_RUN),
        phases=[Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=True))
    def life(chance: Random) -> None:
        made[0] += 1
        rows = {"project": ours, "actor": alice, "base_model": base_model, "dataset": dataset, "heldout": heldout}
        run = sealed_run.launch(**rows, verifier_version=verifier_version, name=f"fuzz {made[0]}")
        job = job_request(project=ours, actor=alice, dataset=dataset, kind="try", spec=R1_EXACT, options={"rows": 1})
        node = Caller(node_create(name=f"fuzz-{made[0]}")[1])
        worker = Worker(run, node, job, chance)
        for number in range(PER_RUN):
            worker.step()
            if number % 50 == 25:
                require_pages(viewer, run, PAGES)
        for status, count in worker.answers.items():
            answers[status] = answers.get(status, 0) + count
        run.refresh_from_db()
        attempt = Attempt.objects.get(run=run)
        last = worker.next()
        if last is not None:
            line = {"seq": len(worker.taken) + 1, "at": "2026-11-21T12:00:00Z", "record": worker.script[-1]}
            sent = zstandard.ZstdCompressor().compress(as_json(line) + b"\n")
            answer = worker.call(worker.mine, f"{worker.at}/records", sent, **{"X-Cohort-Fence": "1"})
            assert answer.status_code == 200, answer.content
        attempt.refresh_from_db()
        body = {"fence": 1, "end": "finished", "code": "ok", "message": "done", "last_seq": attempt.acked_seq}
        assert worker.call(worker.mine, f"{worker.at}/finish", body, odd=False).status_code == 204
        run.refresh_from_db()
        require_seal(run, tmp_path)
        LabJob.objects.filter(pk=job.pk, state="running").update(state="failed")
        require_pages(viewer, run, (*PAGES, *LAST_PAGES))

    life()
    print(f"seed {SEED}: {sum(answers.values())} calls in {made[0]} runs, answers {dict(sorted(answers.items()))}")
    assert answers.get(200, 0) > 0.05 * sum(answers.values()), "much of it is taken"
