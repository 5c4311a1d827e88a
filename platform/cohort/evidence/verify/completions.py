"""Are the completions shown those that were committed to when they were sampled?"""

from typing import Any

from cohort.evidence.card_reader import Cannot, Rejected
from cohort.evidence.plain_text import counted
from cohort.evidence.samples import Commitments, SampleFault, check_sample_proof, check_trace
from cohort.evidence.verify.opened import COMMITMENTS, LOG_ENTRY, OpenCard

_TRACES = "traces/"


def commitments(card: OpenCard) -> tuple[str, ...]:
    """The run's root in the log is that of commitments.jsonl, and every trace shown has its leaf there."""
    if COMMITMENTS not in card.reader.entries:
        raise Rejected(f"there is no {COMMITMENTS}")
    try:
        card.commitments = Commitments(card.reader.lines(COMMITMENTS))
    except SampleFault as fault:
        raise Rejected(f"{COMMITMENTS}, {fault}") from None
    if not card.entry:
        raise Cannot(f"there is no {LOG_ENTRY} that checked, to compare the run's root with")
    root = card.commitments.root().hex()
    if card.entry["data"].get("run_root") != root:
        raise Rejected(f"{COMMITMENTS}: has the root {root}, and the log says {card.entry['data'].get('run_root')!a}")
    fitting = redacted = free = 0
    files = sorted(name for name in card.reader.entries if name.startswith(_TRACES))
    for name in files:
        for number, line in enumerate(card.reader.lines(name), start=1):
            try:
                checked = check_trace(line, card.commitments)
            except SampleFault as fault:
                raise Rejected(f"{name}, line {number}: {fault}") from None
            fitting, redacted, free = fitting + checked.fitting, redacted + checked.redacted, free + checked.uncommitted
    lines = [f"{counted(card.commitments.count, 'completion')} have the root that the log names"]
    if files:
        lines.append(f"{counted(fitting, 'completion')} shown as committed to; {redacted:,} redacted since")
    else:
        lines.append("no completion is shown to this audience")
    if free:
        lines.append(f"{counted(free, 'completion')} of steps whose trainer made no commitments: nothing binds them")
    return tuple(lines)


def one_sample(card: OpenCard, proof: Any) -> str:
    """One sample shown alone, against the card's commitments."""
    if card.commitments is None:
        raise Cannot(f"there is no {COMMITMENTS} that checked, to look for the sample in")
    try:
        content = check_sample_proof(proof, card.commitments.root(), card.commitments.count)
    except SampleFault as fault:
        raise Rejected(f"the sample {fault}") from None
    position = f"step {content['step']}, group {content['group']}, sample {content['sample']}"
    return f"{position} is in this run's tree: {len(content['completion']):,} characters, reward {content['reward']}"
