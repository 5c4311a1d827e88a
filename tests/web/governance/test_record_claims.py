"""Sentences of the record that hold only under conditions: each is said when it is true, and only then."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cohort.accounts.models import User
from cohort.catalog.models import PromptDataset
from cohort.governance import services
from cohort.governance.cards.first import contents_of
from cohort.governance.models import Record
from cohort.governance.services import record_seal
from cohort.governance.shown import shown
from cohort.runs.models import Run
from cohort.runs.services import run_create, run_submit
from grpo_core import records
from tests import sealed_run
from tests.web.governance.record_reading import accepted, card, document, lines, said

pytestmark = pytest.mark.django_db(transaction=True)
Launch = Callable[..., Run]


def settings(**parts: dict[str, Any]) -> dict[str, Any]:
    return {name: {**sealed_run.SETTINGS.get(name, {}), **parts.get(name, {})} for name in
            ("optim", "sampling", *parts)} | {"preset": "demo"}  # fmt: skip


def record_of(run: Run) -> Any:
    return said(record_seal(run=run))


def unstarted(run: Run) -> Any:
    """The record of a run whose trainer ended before it described its inputs."""
    return record_of(sealed_run.finish(sealed_run.claim(run), end="failed", code="model_error", message="no model"))


def test_who_launched_is_the_one_who_put_it_in_the_queue(
    launch: Launch, alice: User, oscar: User, dataset: PromptDataset, heldout: PromptDataset
) -> None:
    first = launch()
    own = record_of(sealed_run.finished(first))
    assert "; launched by alice; started" in own.subject.run.text
    draft = run_create(
        project=first.project, actor=alice, name="draft", base_model=first.base_model, dataset=dataset,
        eval_dataset=heldout, verifier_version=first.verifier_version, settings=sealed_run.SETTINGS,
    )  # fmt: skip
    run_submit(run=draft, actor=oscar)
    entry = record_of(sealed_run.finished(draft)).subject.run
    assert "; launched by oscar, defined by alice; started" in entry.text
    assert (entry.value["launched_by"], entry.value["created_by"]) == ("oscar", "alice")


@pytest.mark.parametrize(
    ("coef", "told"), [(0.0, "the loss's mean."), (0.04, "the loss's mean and in the KL penalty.")]
)
def test_groups_without_signal_still_count(launch: Launch, coef: float, told: str) -> None:
    run = launch(settings=settings(algorithm={"kl": {"coef": coef}}))
    note = record_of(sealed_run.finished(run)).rejected.groups.note
    assert note == f"Their advantages are 0. What was scored of them still counts in {told}"


def with_totals(run: Run, **totals: float) -> Any:
    found = sealed_run.whole(run)
    outcome = found[-1]
    assert isinstance(outcome, records.Outcome)
    found[-1] = outcome.model_copy(update={"totals": {**outcome.totals, **totals}})
    return record_of(sealed_run.finished(run, found))


def test_what_dynamic_sampling_discarded_is_counted_by_reason(launch: Launch) -> None:
    algorithm = {"dynamic_sampling": {"enabled": True}}
    rejected = with_totals(
        launch(settings=settings(algorithm=algorithm)), groups=8.0, groups_mixed=5.0, groups_all_equal=2.0,
        groups_unscored=1.0, groups_discarded=3.0, discarded_all_right=1.0, discarded_all_wrong=1.0,
        discarded_all_equal=0.0, discarded_unscored=1.0,
    ).rejected  # fmt: skip
    assert rejected.groups.text == "3 of 8 (37.5 %) groups: all rewards equal, or fewer than two scored"
    assert rejected.groups.note == (
        "Dynamic sampling discarded 3 groups (1 all right, 1 all wrong, 0 equal otherwise, 1 not scored) and drew "
        "others."
    ), "none of them is left to count in the loss"
    assert rejected.groups.value["discarded_all_wrong"] == 1
    assert rejected.samples.note.endswith("Those of discarded groups are counted with the groups.")
    assert rejected.traces.text.startswith("3 of 8 ")


def test_completions_left_out_are_told_by_cause(launch: Launch) -> None:
    plain = record_of(sealed_run.finished(launch())).rejected
    assert plain.samples.text == "1 of 24 (4.2 %) completions left out of the update"
    assert plain.samples.note == (
        "Only completions without a reward are left out; wrong ones stay, as training learns from them."
    )
    assert plain.truncated.note == "They are scored and used like the others."
    algorithm = {"overlong": {"mask_truncated": True}, "correction": {"mode": "sequence_mask"}}
    causes = {"masked_reward_error": 1.0, "masked_truncated": 3.0, "masked_importance": 2.0}
    told = with_totals(launch(name="b", settings=settings(algorithm=algorithm)), masked=6.0, **causes).rejected
    assert told.samples.text == (
        "6 of 24 (25.0 %) completions left out of the update: 1 without a reward, 3 cut off at the token limit, "
        "2 sampler and trainer too far apart"
    )
    assert told.samples.note == "Wrong ones stay, as training learns from them."
    assert told.truncated.note == "They are scored, count in their group's mean, and are left out of the update."
    softly = launch(name="c", settings=settings(algorithm={"overlong": {"buffer_tokens": 16, "penalty": 0.5}}))
    record = record_of(sealed_run.finished(softly))
    assert record.rejected.truncated.note == "They lose 0.5 of their reward and are used like the others."
    assert record.reward.source.text.endswith(
        "; up to 0.5 taken off in a straight line over the last 16 tokens before the limit (soft overlong punishment)"
    )


def test_compute_is_counted_for_what_ran(launch: Launch) -> None:
    """1,000 parameters and 900 tokens: 8 × 900,000 plain; a critic doubles it."""
    text = record_of(sealed_run.finished(launch())).budget.compute.text
    assert text == "about 7.2 MFLOP"
    critic = launch(name="b", settings=settings(algorithm={"advantage": "gae", "scale": "batch_std"}))
    entry = record_of(sealed_run.finished(critic)).budget.compute
    assert entry.text == "about 14.4 MFLOP"
    assert "8 for the critic" in entry.note
    old = launch(name="c", settings=settings(algorithm={"kl": {"coef": 0.1, "target": "old"}}))
    assert record_of(sealed_run.finished(old)).budget.compute.text == "about 7.2 MFLOP", "no reference runs"


def test_traces_carry_what_decided_about_a_group(launch: Launch, tmp_path: Path) -> None:
    run = launch(settings=settings(algorithm={"dynamic_sampling": {"enabled": True}}))
    found = sealed_run.whole(run)
    place = next(at for at, record in enumerate(found) if isinstance(record, records.Group))
    group = found[place]
    assert isinstance(group, records.Group)
    shaped = group.samples[0].model_copy(update={"shaped_reward": -0.25, "mask_cause": "truncated"})
    found[place] = group.model_copy(
        update={"discarded": "all_right", "sampled_at": 7, "samples": (shaped, *group.samples[1:])}
    )
    record = record_seal(run=sealed_run.finished(run, found))
    first, second, _ = lines(card(record), "traces/steps-000001-000100.jsonl")
    assert (first["discarded"], first["sampled_at"]) == ("all_right", 7)
    assert (first["samples"][0]["shaped_reward"], first["samples"][0]["mask_cause"]) == (-0.25, "truncated")
    assert (second["discarded"], second["sampled_at"]) == (None, None)
    assert second["samples"][0]["shaped_reward"] is None
    assert accepted(record, tmp_path)


def test_regression_is_explained_as_the_verdict_decides_it(launch: Launch) -> None:
    text = record_of(sealed_run.finished(launch())).behaviour.protocol.text
    assert text.endswith(
        "regressed means that a fall is shown and one of 5 points is not excluded, each one-sided at 95 %"
    )


def test_same_problems_and_seeds_only_where_both_sides_were_alike(launch: Launch) -> None:
    alike, run, once = record_seal(run=sealed_run.finished(launch())), launch(name="b"), launch(name="c")
    other = {**sealed_run.PROTOCOL, "temperature": 1.0}
    differed = record_seal(run=sealed_run.finished(run, sealed_run.whole(run, after_protocol=other)))
    attempt = sealed_run.claim(once)
    sealed_run.ingest(attempt, sealed_run.whole(once)[:108])
    one_side = record_seal(run=sealed_run.finish(attempt, end="failed", code="trainer_died", message="killed"))
    every = (alike, differed, one_side)
    captions = [
        next(block.caption for block in shown(document(one)).blocks if block.key == "behaviour") for one in every
    ]
    assert "the same problems with the same seeds" in captions[0]
    assert captions[1] == captions[2] == "Evaluated once, or not alike both times: there is no difference to state."
    notes = [said(one).behaviour.protocol.note for one in every]
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


def sealed_with(run: Run, monkeypatch: pytest.MonkeyPatch, **bounds: int) -> Record:
    """The record of a run whose card takes fewer bytes of traces."""
    with monkeypatch.context() as patch:
        patch.setattr(services, "contents_of", partial(contents_of, **bounds))
        return record_seal(run=run)


def traces_of(record: Record) -> dict[str, bytes]:
    archive = card(record)
    return {name: archive.read(name) for name in archive.namelist() if name.startswith("traces/")}


def test_traces_are_cut_by_bytes_between_groups(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = record_seal(run=sealed_run.finished(launch()))
    assert said(record).rejected.traces.text.endswith(
        "with 12 completions, in traces/ of the cards for authorities and for the project"
    )
    (whole,) = traces_of(record).values()
    first, second, _ = whole.splitlines(keepends=True)

    parts = sealed_with(sealed_run.finished(launch(name="b")), monkeypatch, max_trace_file_bytes=len(first) + 1)
    assert list(traces_of(parts)) == ["traces/steps-000001-000100-2.jsonl", "traces/steps-000001-000100.jsonl"]
    assert [one.count(b"\n") for one in traces_of(parts).values()] == [1, 2]
    assert accepted(parts, tmp_path)

    cut = sealed_with(sealed_run.finished(launch(name="c")), monkeypatch, max_trace_bytes=len(first) + len(second))
    entry = said(cut).rejected.traces
    assert entry.text == (
        "3 of 6 (50.0 %) groups with 12 completions; 2 of them in traces/ of the cards for authorities and for the "
        "project"
    )
    assert entry.note.endswith(" The rest, from step 3 on, is too large for a card and stays on the platform.")
    assert entry.evidence == "reported"
    assert [one["step"] for one in lines(card(cut), "traces/steps-000001-000100.jsonl")] == [1, 2]
    assert accepted(cut, tmp_path)


def test_a_folder_that_is_not_there_is_not_named(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = sealed_with(sealed_run.finished(launch()), monkeypatch, max_trace_bytes=0)
    assert said(none).rejected.traces.text == "3 of 6 (50.0 %) groups with 12 completions; none of them in any card"
    assert traces_of(none) == {}
    assert accepted(none, tmp_path)

    run = launch(name="b", settings=settings(traces={"groups_per_step": 0}))
    found = [record for record in sealed_run.whole(run) if record.kind != "group"]
    assert record_of(sealed_run.finished(run, found)).rejected.traces.text == "none of 6 groups"
    assert unstarted(launch(name="c")).rejected.traces.text == "there was no group"


def test_a_block_of_steps_has_its_own_file(launch: Launch) -> None:
    run = launch(settings=settings(optim={"steps": 101}))
    found = sealed_run.whole(run)
    end = next(place for place, record in enumerate(found) if getattr(record, "phase", "") == "evaluating_after")
    more = [record for number in range(4, 102) for record in sealed_run.step(number, 0.8)]
    attempt = sealed_run.claim(run)
    sealed_run.ingest(attempt, [*found[:end], *more, *found[end:]])
    counts = {name: one.count(b"\n") for name, one in traces_of(record_seal(run=sealed_run.finish(attempt))).items()}
    assert counts == {"traces/steps-000001-000100.jsonl": 100, "traces/steps-000101-000200.jsonl": 1}
