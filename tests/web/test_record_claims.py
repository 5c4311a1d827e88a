"""Sentences of the record that hold only under conditions: each is said when it is true, and only then."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cohort.accounts.models import User
from cohort.catalog.models import PromptDataset
from cohort.governance.card import write_card
from cohort.governance.facts import collect
from cohort.governance.schema import Record
from cohort.governance.services import record_seal
from cohort.governance.shown import shown
from cohort.governance.verify import verify_card
from cohort.runs.models import Run
from cohort.runs.services import run_create, run_submit
from tests import sealed_run

pytestmark = pytest.mark.django_db
Launch = Callable[..., Run]


def settings(**parts: dict[str, Any]) -> dict[str, Any]:
    return {name: {**sealed_run.SETTINGS.get(name, {}), **parts.get(name, {})} for name in
            ("optim", "sampling", *parts)} | {"preset": "demo"}  # fmt: skip


def record_of(run: Run) -> Record:
    return Record.model_validate(json.loads(record_seal(run=run).document)["record"])


def unstarted(run: Run) -> Record:
    """The record of a run whose trainer ended before it described its inputs."""
    return record_of(sealed_run.finish(sealed_run.claim(run), end="failed", code="model_error", message="no model"))


def test_who_launched_is_the_one_who_put_it_in_the_queue(
    launch: Launch, alice: User, oscar: User, dataset: PromptDataset, heldout: PromptDataset
) -> None:
    own = record_of(sealed_run.finished(launch()))
    assert "; launched by alice; started" in own.subject.run.text
    drafted = launch(name="other")
    draft = run_create(
        project=drafted.project, actor=alice, name="draft", base_model=drafted.base_model, dataset=dataset,
        eval_dataset=heldout, verifier_version=drafted.verifier_version, settings=sealed_run.SETTINGS,
    )  # fmt: skip
    run_submit(run=draft, actor=oscar)
    entry = record_of(sealed_run.finished(draft)).subject.run
    assert "; launched by oscar, defined by alice; started" in entry.text
    assert (entry.value["launched_by"], entry.value["created_by"]) == ("oscar", "alice")  # type: ignore[index, call-overload]


@pytest.mark.parametrize(
    ("coef", "told"), [(0.0, "the loss's mean."), (0.04, "the loss's mean and in the KL penalty.")]
)
def test_groups_without_signal_still_count(launch: Launch, coef: float, told: str) -> None:
    run = launch(settings=settings(algorithm={"kl": {"coef": coef}}))
    note = record_of(sealed_run.finished(run)).rejected.groups.note
    assert note == f"Their advantages are 0. What was scored of them still counts in {told}"


def test_regression_is_explained_as_the_verdict_decides_it(launch: Launch) -> None:
    text = record_of(sealed_run.finished(launch())).behaviour.protocol.text
    assert text.endswith(
        "regressed means that a fall is shown and one of 5 points is not excluded, each one-sided at 95 %"
    )


def test_same_problems_and_seeds_only_where_both_sides_were_alike(launch: Launch) -> None:
    alike, run, once = record_of(sealed_run.finished(launch())), launch(name="b"), launch(name="c")
    other = {**sealed_run.PROTOCOL, "temperature": 1.0}
    differed = record_of(sealed_run.finished(run, sealed_run.whole(run, after_protocol=other)))
    attempt = sealed_run.claim(once)
    sealed_run.ingest(attempt, sealed_run.whole(once)[:107])
    one_side = record_of(sealed_run.finish(attempt, end="failed", code="trainer_died", message="killed"))
    captions = [shown(one).blocks[6].caption for one in (alike, differed, one_side)]
    assert "the same problems with the same seeds" in captions[0]
    assert captions[1] == captions[2] == "Evaluated once, or not alike both times: there is no difference to state."
    notes = [one.behaviour.protocol.note for one in (alike, differed, one_side)]
    assert notes[0] == "The margin was fixed before the run. Same problems and seeds before and after."
    assert notes[1] == notes[2] == "The margin was fixed before the run."


def test_selection_names_what_was_not_trained_on(launch: Launch) -> None:
    said = ", shuffled anew by seed each time all were used; 2 a step"
    run = launch()
    assert record_of(sealed_run.finished(run)).data.selection.text == f"all problems{said}"
    run = launch(name="b", heldout=None, settings=settings(
        eval={"holdout": 4}, data={"limit": 12, "long_prompts": "drop", "max_prompt_tokens": 64}))  # fmt: skip
    # one dropped, by the manifest
    assert record_of(sealed_run.finished(run)).data.selection.text == (
        f"the first 12 of 20 problems without the 4 held out and 1 with a prompt over 64 tokens{said}"
    )
    run = launch(name="c", settings=settings(data={"limit": 900, "long_prompts": "drop"}))
    assert unstarted(run).data.selection.text == f"all problems without those with a prompt over 512 tokens{said}"


def test_overlap_is_told_of_the_problems_that_were_compared(launch: Launch) -> None:
    run = launch()
    text = record_of(sealed_run.finished(run)).data.decontamination.text
    assert text == "1 of 2 (50.0 %) held-out prompts are in the training file"
    run = launch(name="b", settings=settings(data={"limit": 3}))
    text = record_of(sealed_run.finished(run)).data.decontamination.text
    assert text == "1 of 2 (50.0 %) held-out prompts are among the first 3 of the training file"


def test_held_out_problems_are_counted_as_used(launch: Launch) -> None:
    limited = settings(eval={"limit": 1})
    entry = unstarted(launch(settings=limited)).data.heldout
    assert entry.text.startswith("held out: 1 of 2 problems, sha256 ")
    entry = unstarted(launch(name="b", heldout=None, settings=settings(eval={"holdout": 4, "limit": 3}))).data.heldout
    assert entry.text == "3 of 4 problems set apart from the training file by seed, never trained on"
    entry = unstarted(launch(name="c", heldout=None, settings=settings(eval={"holdout": 4}))).data.heldout
    assert entry.text == "4 problems set apart from the training file by seed, never trained on"


def test_without_held_out_problems_there_is_no_protocol(launch: Launch) -> None:
    run = launch(heldout=None, settings=settings(eval={"before": False, "after": False}))
    behaviour = unstarted(run).behaviour
    assert (behaviour.protocol.text, behaviour.performance.note) == ("not applicable", "No such suite was run.")
    assert unstarted(launch(name="b")).behaviour.performance.note == "The run ended before its first evaluation."


# ---------------------------------------------------------------------- traces


def test_traces_are_cut_by_bytes_between_groups(launch: Launch, tmp_path: Path) -> None:
    run = sealed_run.finished(launch())
    facts = collect(run, state="succeeded")
    write_card(facts, tmp_path / "whole.zip")
    with zipfile.ZipFile(tmp_path / "whole.zip") as archive:
        whole = archive.read("traces/steps-000001-000100.jsonl")
    lines = whole.splitlines(keepends=True)
    assert len(lines) == 3

    write_card(facts, tmp_path / "parts.zip", max_trace_file_bytes=len(lines[0]) + 1)
    with zipfile.ZipFile(tmp_path / "parts.zip") as archive:
        parts = {name: archive.read(name) for name in archive.namelist() if name.startswith("traces/")}
    assert list(parts) == ["traces/steps-000001-000100.jsonl", "traces/steps-000001-000100-2.jsonl"]
    assert b"".join(parts.values()) == whole
    assert verify_card(tmp_path / "parts.zip").accepted

    card = write_card(facts, tmp_path / "cut.zip", max_trace_bytes=len(lines[0]) + len(lines[1]))
    entry = card.sealed.record.rejected.traces
    assert entry.text == "3 of 6 (50.0 %) groups with 12 completions; 2 of them in traces/"
    assert entry.note.endswith(" The rest, from step 3 on, is too large for the card and stays on the platform.")
    assert entry.evidence == "reported"
    with zipfile.ZipFile(tmp_path / "cut.zip") as archive:
        assert archive.read("traces/steps-000001-000100.jsonl") == lines[0] + lines[1]
    assert verify_card(tmp_path / "cut.zip").accepted


def test_a_folder_that_is_not_there_is_not_named(launch: Launch, tmp_path: Path) -> None:
    facts = collect(sealed_run.finished(launch()), state="succeeded")
    entry = write_card(facts, tmp_path / "none.zip", max_trace_bytes=0).sealed.record.rejected.traces
    assert entry.text == "3 of 6 (50.0 %) groups with 12 completions; none of them in this card"
    assert not any(name.startswith("traces/") for name in zipfile.ZipFile(tmp_path / "none.zip").namelist())
    assert verify_card(tmp_path / "none.zip").accepted

    run = launch(name="b", settings=settings(traces={"groups_per_step": 0}))
    found = [record for record in sealed_run.whole(run) if record.kind != "group"]
    assert record_of(sealed_run.finished(run, found)).rejected.traces.text == "none of 6 groups"
    assert unstarted(launch(name="c")).rejected.traces.text == "there was no group"


def test_a_block_of_steps_has_its_own_file(launch: Launch, tmp_path: Path) -> None:
    run = launch(settings=settings(optim={"steps": 101}))
    found = sealed_run.whole(run)
    end = next(place for place, record in enumerate(found) if getattr(record, "phase", "") == "evaluating_after")
    more = [record for number in range(4, 102) for record in sealed_run.step(number, 0.8)]
    attempt = sealed_run.claim(run)
    sealed_run.ingest(attempt, [*found[:end], *more, *found[end:]])
    facts = collect(sealed_run.finish(attempt), state="succeeded")
    write_card(facts, tmp_path / "card.zip")
    with zipfile.ZipFile(tmp_path / "card.zip") as archive:
        counts = {name: archive.read(name).count(b"\n") for name in archive.namelist() if name.startswith("traces/")}
    assert counts == {"traces/steps-000001-000100.jsonl": 100, "traces/steps-000101-000200.jsonl": 1}
