"""Jobs of the reward lab that are done: asked for and finished through the services, with what the real probe and the
real sums find; only the answers of a base model are written by hand, so that every number a page must show is known.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from cohort.accounts.models import Project, User
from cohort.base.artifacts import read_chunks
from cohort.catalog.models import BaseModel, EvalSuiteVersion, PromptDataset, VerifierVersion
from cohort.catalog.services import verifier_version_create
from cohort.lab.chat import conversation_begin
from cohort.lab.jobs import job_beat, job_claim, job_config, job_finish
from cohort.lab.models import Conversation, LabJob, VerifierProbe
from cohort.lab.services import evaluation_request, job_request
from cohort.lab.turns import pending_turns
from cohort.nodes.models import Node
from cohort.nodes.services import node_create, node_present
from grpo_core.config.reward import RewardConfig
from grpo_core.lab.chat import ChatEnded
from grpo_core.lab.evaluation import ModelEvaluation
from grpo_core.lab.job import Job
from grpo_core.lab.result import LabSample, result_of
from grpo_core.lab.run import run_job
from grpo_core.model.tiny import TinyShape, save_tiny
from grpo_core.probe.cases.problems import problems_builtin
from grpo_core.probe.run import probe_rubric
from grpo_core.protocol.messages import ChatAnswer, JobBeat, JobFinish, NodeInfo
from grpo_core.records.types import ComponentScore, EvalItem, EvalResult
from grpo_core.rewards import Rubric, Runner
from grpo_core.runtime.progress import Progress
from tests.core.chat import tokenizer
from tests.factories.runs import HOSTILE
from tests.factories.sandbox_reports import WORKS, node_info
from tests.factories.worker import NODE
from tests.tables import FOLDER

FORMAT_ONLY = {"components": [{"name": "format", "kind": "r1_format"}]}
"""Pays whatever stands between the tags."""


def there(name: str = "node-e", info: NodeInfo = NODE) -> Node:
    """A node of this name that is heard of."""
    node = Node.objects.filter(name=name).first() or node_create(name=name)[0]
    node_present(node=node, info=info)
    return node


def lab_node(name: str = "lab-node") -> Node:
    return there(name, node_info(WORKS))


def claimed(job: LabJob, node: Node | None = None) -> LabJob:
    """The job in the hands of a node; of several that wait, the oldest is taken."""
    claimed, _ = job_claim(job_id=job.pk, node=node or lab_node(), info=node_info(WORKS))
    assert claimed.pk == job.pk, "another job waited"
    return claimed


def _ended(job: LabJob, node: Node | None = None, **finish: Any) -> LabJob:
    taken = claimed(job, node)
    job_finish(job=taken, finish=JobFinish(fence=taken.fence, **finish))
    job.refresh_from_db()
    return job


def finished(job: LabJob, result: dict[str, Any], *, seconds: float = 4.5) -> LabJob:
    return _ended(job, end="done", result=result, seconds=seconds)


def failed(job: LabJob, message: str, log_tail: str = "", node: Node | None = None, *, code: str = "model") -> LabJob:
    return _ended(job, node, end="failed", code=code, message=message, log_tail=log_tail, seconds=1.0)


def measured(job: LabJob, node: Node, **other: Any) -> LabJob:
    """An estimate, done with what a node may have measured."""
    result = yaml.safe_load((FOLDER / "lab" / "estimate.yaml").read_text(encoding="utf-8"))
    return _ended(job, node, end="done", result={"config_digest": job.config_digest, **result, **other}, seconds=5.0)


def chat_model(folder: Path, name: str = "tiny") -> Path:
    """The folder, where a worker does a job, with a base model whose tokenizer is one of ChatML."""
    save_tiny(folder / name, seed=0, shape=TinyShape(hidden=32, layers=1, heads=2, feed_forward=64, context=2048))
    tokenizer("chatml").save_pretrained(folder / name)
    return folder


def done(job: LabJob, folder: Path, node: Node | None = None, **other: Any) -> LabJob:
    """The job done for real, as `grpo lab` does it: its files and its model are in `folder`."""
    for file in job.inputs:
        (folder / file["path"]).parent.mkdir(exist_ok=True)
        (folder / file["path"]).write_bytes(b"".join(read_chunks(file["artifact"])))
    meant = Job.model_validate(job_config(job))
    result = run_job(meant, base=folder, progress=Progress(quiet=True))
    return _ended(job, node, end="done", result={**result, **other}, seconds=5.0)


def probed(version: VerifierVersion, actor: User, dataset: PromptDataset | None = None) -> VerifierProbe:
    """By the real probe, on three of its own problems; `dataset` is what it is said to be of."""
    project = version.verifier.project
    job = job_request(
        project=project, actor=actor, kind="probe", version=version, dataset=dataset, options={"problems": 3}
    )
    rubric = Rubric(RewardConfig.model_validate(version.spec))
    with Runner(rubric) as runner:
        report = probe_rubric(rubric, problems_builtin(rubric), runner=runner, limit=3, source="builtin")
    finished(job, report.to_json())
    return VerifierProbe.objects.get(job=job)


def format_only(project: Project, actor: User) -> VerifierVersion:
    return verifier_version_create(project=project, actor=actor, name="form alone", spec=FORMAT_ONLY)


def sampled(
    version: VerifierVersion, actor: User, dataset: PromptDataset, base_model: BaseModel, *, groups: Sequence[str]
) -> LabJob:
    """Of `version` = r1 + exact. Each group is a word of its samples: r right, w wrong with the form, x without it, e
    an error of the component answer."""
    job = job_request(
        project=version.verifier.project,
        actor=actor,
        kind="sample",
        version=version,
        dataset=dataset,
        base_model=base_model,
        options={"problems": len(groups), "group_size": len(groups[0])},
    )
    samples = [_sample(letter, group, index) for group, word in enumerate(groups) for index, letter in enumerate(word)]
    result = result_of(
        kind="sample",
        rubric_digest=job.spec_digest,
        reward=RewardConfig.model_validate(job.spec),
        samples=samples,
        seconds=12.5,
        group_size=len(groups[0]),
        cost={"answer": {"calls": 4, "note": HOSTILE}},
    )
    return finished(job, result.model_dump(mode="json", by_alias=True))


def _sample(letter: str, group: int, index: int) -> LabSample:
    form, right, erred = letter in "rwe", letter == "r", letter == "e"
    answer = ComponentScore(
        value=None if erred else float(right),
        passed=None if erred else right,
        detail="17" if right else "18",
        seconds=0.002,
        error=f"ValueError: {HOSTILE}" if erred else None,
        error_class="verifier" if erred else None,
        traceback=f"verifier.py, line 3, in verify\n    {HOSTILE}" if erred else "",
        printed="looked at 18\n" if erred else "",
    )
    return LabSample(
        problem_id=f"add-{group}",
        prompt=f"what is {group} + 7? {HOSTILE if group == 0 else ''}",
        answer=str(group + 7),
        completion=f"<think>{HOSTILE}</think><answer>{index}</answer>",
        prompted=f"Q: what is {group} + 7? A:",
        tokens=20 + index,
        finish="eos",
        reward=None if erred else 0.2 * form + float(right),
        components={"format": ComponentScore(value=float(form), passed=form, seconds=0.00001), "answer": answer},
        group=group,
        origin="sampled",
    )


# ---------------------------------------------------------------------- jobs about a model


def evaluated(
    base_model: BaseModel,
    actor: User,
    version: EvalSuiteVersion,
    scores: Sequence[float | None],
    *,
    completion: str = "as it may",
    **protocol: Any,
) -> LabJob:
    """An evaluation on the suite whose items scored so, in order; None: the scorer failed. Every second answer of a
    score below 1 is truncated."""
    job = evaluation_request(base_model=base_model, actor=actor, versions=[version])
    items = [
        EvalItem(
            phase="before",
            suite=version.suite.name,
            problem_id=shown["id"],
            prompt=shown["prompt"],
            answer=str(shown["target"]),
            completion=f"{completion} {index}",
            score=score or 0.0,
            truncated=score != 1 and index % 2 == 1,
            error=None if score is not None else f"ValueError: {HOSTILE}",
            tokens=7,
            detail=f"read {index}",
            slice=shown.get("slice") or "",
        )
        for index, (shown, score) in enumerate(zip(version.preview, scores, strict=True))
    ]
    result = EvalResult(
        phase="before",
        suite=version.suite.name,
        problems=len(items),
        correct=sum(item.score for item in items),
        truncated=sum(item.truncated for item in items),
        errors=sum(item.error is not None for item in items),
        mean_tokens=7.0,
        seconds=1.5,
        protocol={"file_sha256": version.sha256, "items_digest": version.sha256, "temperature": 0.0, **protocol},
    )
    whole = ModelEvaluation(model=base_model.path, device="cpu", results=[result], items=items, seconds=2.0)
    return finished(job, whole.model_dump(mode="json"))


def answers_given(conversation: Conversation, **texts: str) -> None:
    """The waiting message is answered by each side with its text, as a worker's beats bring it; then its job ends."""
    job = claimed(conversation.jobs.order_by("-pk")[0])
    (turn,) = pending_turns(conversation)
    given = {"tokens": 5, "prompt_tokens": 9, "finish": "eos", "template": "chat", "seconds": 0.5}
    answers = [
        ChatAnswer.model_validate({"turn": turn.turn, "side": side, "text": text, **given})
        for side, text in texts.items()
    ]
    job_beat(job=job, beat=JobBeat(fence=job.fence, answers=answers))
    ended = ChatEnded(model=conversation.base_model.path, device="cpu", answers=len(answers), seconds=1.0)
    job_finish(job=job, finish=JobFinish(fence=job.fence, end="done", result=ended.model_dump(mode="json")))


def talked(actor: User, text: str, answers: dict[str, str], **models: BaseModel) -> Conversation:
    """A chat of one message, answered so by each side; `models`: base_model, and reference where there is one."""
    conversation = conversation_begin(actor=actor, text=text, **{"reference": None, **models})  # type: ignore[arg-type]
    answers_given(conversation, **answers)
    return conversation
