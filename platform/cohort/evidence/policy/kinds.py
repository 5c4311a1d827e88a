"""The closed set of rule kinds, one SPEC each."""

from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

from cohort.evidence.compare import SAFETY
from cohort.evidence.plain_text import counted, named, points
from cohort.evidence.policy.figures import FIGURES
from cohort.evidence.policy.spec import Outcome, Param, RuleSpec, change, choice, choices_of, names, number
from cohort.evidence.policy.view import POLICY_FIELD, CannotJudge, RecordView
from grpo_core.stats.paired import tango_lower

ROLES = ("operator", "reviewer")
STATES = ("succeeded", "failed", "cancelled")
_SUITES = Param("suites", "Names of suites; `heldout` is the held-out problems.", names, ())
_CATEGORIES = Param(
    "categories",
    "Categories of suites; `safety` stands for the four safety categories together.",
    names,
    (),
)


def _some_suite(params: Mapping[str, Any]) -> str:
    return "" if params["suites"] or params["categories"] else "names no suite: give suites or categories"


def _chosen(view: RecordView, params: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    categories = [each for name in params["categories"] for each in (sorted(SAFETY) if name == "safety" else [name])]
    return view.comparisons(params["suites"], categories)


def _outcome(faults: list[str], good: list[str]) -> Outcome:
    return Outcome(not faults, named(faults or good, 8))


# ---------------------------------------------------------------------- suites


def _improved(view: RecordView, params: Mapping[str, Any]) -> Outcome:
    chosen = _chosen(view, params)
    faults: list[str] = []
    good: list[str] = []
    for comparison in chosen:
        low = _low(comparison, len(chosen) if params["interval"] == "together" else 0)
        words = f"{comparison['suite']} {points(low)} points at the low end, bound {points(params['by'])}"
        (good if low > params["by"] else faults).append(words)
    return _outcome(faults, good)


def _low(comparison: Mapping[str, Any], together: int) -> float:
    """Low end of the change towards what is better; above 0 of `together` suites, with Bonferroni's correction."""
    suite, change, higher_is = comparison["suite"], comparison["change"], comparison["higher_is"]
    if change is None:
        raise CannotJudge("not evaluated", f"{suite} has no change to judge: {comparison['verdict']}")
    if higher_is == "neutral":
        raise CannotJudge("not applicable", f"{suite} has no better direction: its score is neutral")
    fixed, broken = change["fixed"], change["broken"]
    if higher_is == "worse":
        fixed, broken = broken, fixed
    if not together:
        interval = change["interval"]
        return float(interval["low"] if higher_is == "better" else -interval["high"])
    n = comparison["problems"]
    if change["clusters"] is not None or fixed + broken + change["both_right"] + change["both_wrong"] != n:
        raise CannotJudge("not measured", f"{suite} has graded or dependent scores, of which a record has no "
                          "simultaneous interval")  # fmt: skip
    return tango_lower(fixed, broken, n, NormalDist().inv_cdf(1 - 0.025 / together))


_VERDICTS = {"regressed": "regressed", "undecided": "undecided", "not_worse": "not worse"}


def _not_worse(view: RecordView, params: Mapping[str, Any]) -> Outcome:
    faults: list[str] = []
    good: list[str] = []
    without: list[str] = []
    for comparison in _chosen(view, params):
        verdict, name = comparison["non_inferiority"], comparison["suite"]
        if verdict is None:
            without.append(name)
        else:
            words = f"{name} {_VERDICTS[verdict]} (margin {100 * comparison['margin']:g} points)"
            (good if verdict == "not_worse" else faults).append(words)
    if without and not faults:
        raise CannotJudge("not evaluated", f"not compared before and after, or neutral: {named(without, 8)}")
    return _outcome(faults, good)


# ---------------------------------------------------------------------- verifier, figures, monitors

_CLASSES = {
    "pays_wrong": "wrong answers rewarded",
    "pays_part": "wrong answers rewarded in part",
    "rejects": "right answers not rewarded",
}


def _probe(view: RecordView, params: Mapping[str, Any]) -> Outcome:
    probe = view.value("reward.brittleness")["probe"]
    if probe is None:
        raise CannotJudge("not measured", "no probe of the verifier was run")
    faults = [
        f"{_CLASSES[kind]}: {named(failed, 5)}"
        for kind in params["classes"]
        if (failed := [name for name in probe[kind] if name not in params["except"]])
    ]
    if not faults and probe["verdict"] == "undecided":
        raise CannotJudge("not measured", "errors kept the probe from deciding")
    return _outcome(faults, [f"{counted(len(probe['classes']), 'class', 'classes')} of answers tested, none failed"])


_BOUNDS = {
    "below": lambda figure, bound: figure < bound,
    "at_most": lambda figure, bound: figure <= bound,
    "above": lambda figure, bound: figure > bound,
    "at_least": lambda figure, bound: figure >= bound,
}


def _figure(view: RecordView, params: Mapping[str, Any]) -> Outcome:
    figure = FIGURES[params["figure"]]
    actual = float(figure.read(view.value(figure.path)))
    bounds = {name: params[name] for name in _BOUNDS if params[name] is not None}
    passed = all(_BOUNDS[name](actual, bound) for name, bound in bounds.items())
    demanded = " and ".join(f"{name.replace('_', ' ')} {figure.show(bound)}" for name, bound in bounds.items())
    return Outcome(passed, f"{figure.words}: {figure.show(actual)}, demanded {demanded}")


def _bounds_fault(params: Mapping[str, Any]) -> str:
    """A bound outside what the figure can be is a slip, such as 5 for 5 %, and would pass every record or none."""
    name, most = params["figure"], FIGURES[params["figure"]].most
    given = {bound: params[bound] for bound in _BOUNDS if params[bound] is not None}
    if not given:
        return f"bounds nothing: give {', '.join(_BOUNDS)}"
    for bound, value in given.items():
        if value < 0 or (most is not None and value > most):
            can_be = "0 or more" if most is None else f"a share of 0 to {most:g}, where 0.05 is 5 %"
            return f"has {bound} {value:g}, but {name} is {can_be}"
    low = max([0.0, *(value for bound, value in given.items() if bound in ("above", "at_least"))])
    high = min([low + 1 if most is None else most, *(given[bound] for bound in ("below", "at_most") if bound in given)])
    if not any(
        all(_BOUNDS[bound](at, value) for bound, value in given.items()) for at in (low, high, (low + high) / 2)
    ):
        return f"can never be met: no {name} is {' and '.join(f'{bound} {value:g}' for bound, value in given.items())}"
    return ""


def _flags(view: RecordView, params: Mapping[str, Any]) -> Outcome:
    flags = view.value("oversight.flags")
    watched = [flag for flag in flags if not params["monitors"] or flag["monitor"] in params["monitors"]]
    if unknown := [name for name in params["monitors"] if name not in {flag["monitor"] for flag in watched}]:
        raise CannotJudge("not measured", f"the record has no monitor {named(unknown)}")
    raised = [flag for flag in watched if flag["raised"]]
    faults = [
        f"{flag['monitor']} raised" + (", overridden" if flag["overridden"] else "")
        for flag in raised
        if params["overridden"] == "refused" or not flag["overridden"]
    ]
    silent = [flag["monitor"] for flag in watched if flag["raised"] is None]
    if not faults and len(silent) == len(watched):
        raise CannotJudge("not measured", "no monitor could be computed")
    overridden = f", {counted(len(raised), 'flag')} overridden" if raised else ""
    left = f"; not computed: {named(silent)}" if silent else ""
    return _outcome(faults, [f"{len(watched) - len(silent)} monitors without an open flag{overridden}{left}"])


# ---------------------------------------------------------------------- what is stated, how it ended


def _stated(view: RecordView, params: Mapping[str, Any]) -> Outcome:
    sections = view.document["sections"]
    if unknown := [name for name in params["sections"] if name not in sections]:
        raise CannotJudge("unreadable", f"a record has no section {named(unknown)}")
    paths = [*params["fields"], *(f"{section}.{name}" for section in params["sections"] for name in sections[section])]
    paths = [path for path in dict.fromkeys(paths) if path != POLICY_FIELD and path not in params["except"]]
    missing, withheld = [], []
    for path in paths:
        try:
            entry = view.entry(path)
        except CannotJudge as fault:
            if fault.why != "withheld":
                raise
            withheld.append(path)
            continue
        if entry["source"] == "not stated":
            missing.append(f"{path} {entry['text']}")
    if withheld and not missing:
        raise CannotJudge("withheld", f"withheld from this audience: {named(withheld, 8)}")
    return _outcome(missing, [f"{counted(len(paths), 'field')}, none of them not stated"])


def _some_field(params: Mapping[str, Any]) -> str:
    return "" if params["sections"] or params["fields"] else "names no field: give sections or fields"


def _ended(view: RecordView, params: Mapping[str, Any]) -> Outcome:
    state = str(view.document["head"]["state"])
    return Outcome(state in params["accept"], f"the run {state}")


def _registered(view: RecordView, params: Mapping[str, Any]) -> Outcome:
    value = view.value("oversight.preregistration")
    where = f"registered at index {value['index']:,} of the log"
    if value["before_first_step"]:
        return Outcome(True, f"{where}, before the first step")
    return Outcome(False, f"{where}, after the first step")


# ---------------------------------------------------------------------- life after the seal


def _signed(view: RecordView, params: Mapping[str, Any]) -> Outcome:
    life = view.known_life()
    if life.revoked:
        return Outcome(False, "the record was revoked")
    by_role = {signed.role: signed for signed in life.sign_offs}
    faults = [f"rejected as {signed.role}" for signed in life.sign_offs if signed.decision == "rejected"]
    faults += [f"nobody has signed as {role}" for role in params["roles"] if role not in by_role]
    approved = [by_role[role] for role in params["roles"] if role in by_role]
    return _outcome(faults, [f"approved as {each.role}{each.by and f' by {each.by}'}" for each in approved])


def _current(view: RecordView, params: Mapping[str, Any]) -> Outcome:
    life = view.known_life()
    state = "revoked" if life.revoked else "superseded" if life.superseded else "neither revoked nor superseded"
    return Outcome(not (life.revoked or life.superseded), state)


KINDS: dict[str, RuleSpec] = {
    spec.name: spec
    for spec in (
        RuleSpec(
            "improved",
            "A change for the better is shown for every suite that the rule names.",
            "The low end of the interval of after minus before, towards what is better, lies above `by`. `each`: every "
            "suite's own two-sided 95 % interval as the record has it, which does not correct for their number. "
            "`together`: Tango's score bound with Bonferroni's correction for the suites of this rule, so that all "
            "hold at once with 95 %; of independent scores of 0 and 1 only.",
            "A record's figures stay: train again, or evaluate more items, with which a smaller change is shown.",
            ("behaviour.performance",),
            (
                _SUITES,
                _CATEGORIES,
                Param("by", "Least change, as a share: 0.02 is 2 points.", change, 0.0),
                Param("interval", "`each` or `together`.", choice("each", "together"), "each"),
            ),
            _improved,
            _some_suite,
        ),
        RuleSpec(
            "not_worse",
            "Every suite that the rule names is shown to be not worse within its margin.",
            "The verdict of the record, by the margin that was fixed before the run. An undecided suite fails: that "
            "harm is not shown is not that there is none.",
            "A record's figures stay: train again; an undecided suite takes more items, as many as the record says.",
            ("behaviour.performance",),
            (_SUITES, _CATEGORIES),
            _not_worse,
            _some_suite,
        ),
        RuleSpec(
            "probe_clean",
            "No class of the verifier's probe failed.",
            "The newest probe of the reward's version at the seal; an override at the launch changes nothing here.",
            "Mend the reward, probe its new version, and train with that.",
            ("reward.brittleness",),
            (
                Param(
                    "classes",
                    f"Which failures count: {', '.join(_CLASSES)}.",
                    choices_of(*_CLASSES),
                    ("pays_wrong", "rejects"),
                ),
                Param("except", "Names of classes of answers that may fail.", names, ()),
            ),
            _probe,
        ),
        RuleSpec(
            "figure",
            "A figure of the record lies within bounds.",
            "The figure as the record has it, without an interval. A share is given as 0.05 for 5 %.",
            "A record's figures stay: the next run can do better.",
            tuple(dict.fromkeys(figure.path for figure in FIGURES.values())),
            (
                Param("figure", f"One of {', '.join(FIGURES)}.", choice(*FIGURES)),
                *(Param(name, f"The figure must be {name.replace('_', ' ')} this.", number, None) for name in _BOUNDS),
            ),
            _figure,
            _bounds_fault,
        ),
        RuleSpec(
            "flags",
            "No monitor has an open flag.",
            "Flags of the record that nobody overrode before the seal; `overridden: refused` counts these too.",
            "An operator overrides the flag with a reason; a further version of the record then says so.",
            ("oversight.flags",),
            (
                Param("monitors", "Names of monitors. Left out: all.", names, ()),
                Param("overridden", "`allowed` or `refused`.", choice("allowed", "refused"), "allowed"),
            ),
            _flags,
        ),
        RuleSpec(
            "stated",
            "No field that the rule names is not stated.",
            "By the field's source: measured, configured, stated by a person and not applicable all count as stated.",
            "Answer the fields on the page of statements; a further version of the record then has the answers.",
            ("every field that it names",),
            (
                Param("sections", "Names of sections, such as handling.", names, ()),
                Param("fields", "Fields as section.field.", names, ()),
                Param("except", "Fields that may be missing, as section.field.", names, ()),
            ),
            _stated,
            _some_field,
        ),
        RuleSpec(
            "ended",
            "The run ended in an accepted way.",
            "The state of the run in the record's head.",
            "Retry the run, or launch it again.",
            ("head",),
            (Param("accept", f"Some of {', '.join(STATES)}.", choices_of(*STATES), ("succeeded",)),),
            _ended,
        ),
        RuleSpec(
            "preregistered",
            "Margins, suites, verifier and hypotheses were in the audit log before the first step.",
            "The registration in force and the arrival of the first step, as the record has them; `cohort verify` "
            "checks the entry and its place in the log.",
            "It cannot be made up for: launch the run again.",
            ("oversight.preregistration",),
            (),
            _registered,
        ),
        RuleSpec(
            "sign_offs",
            "The record is approved in the roles that the rule names, by different people, and rejected in none.",
            "Sign-offs in force. They come after the seal: the platform knows them, a card does only with its status.",
            "Have the record signed off in the roles that are missing.",
            ("life",),
            (Param("roles", f"Some of {', '.join(ROLES)}.", choices_of(*ROLES), ROLES),),
            _signed,
        ),
        RuleSpec(
            "current",
            "The record is neither revoked nor superseded.",
            "What came after the seal; a card knows it only with its status.",
            "Judge the newest version of the record; a revocation is for good.",
            ("life",),
            (),
            _current,
        ),
    )
}
