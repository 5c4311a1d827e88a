"""Right answers as they stand, and with marks or text around them that change nothing: for every subject but code."""

from collections.abc import Callable, Iterator

from grpo_core.probe.cases.case import THOUGHT, Case, ProbeClass, Subject

_LONG = " ".join(["I read the problem again, write down what is known, and check each step before I go on."] * 25)


def _around(name: str, title: str, change: Callable[[Case], str | None]) -> ProbeClass:
    """A class that leaves the answer as it is, and changes what stands around it."""

    def make(case: Case) -> Iterator[str]:
        if case.gold and (text := change(case)) is not None:
            yield text

    return ProbeClass(name, title, "any", "false_negative", "told", make)


def _inside(name: str, title: str, template: str, *, but: frozenset[Subject] = frozenset()) -> ProbeClass:
    """A class that puts something around the answer itself; `@` stands for it."""

    def change(case: Case) -> str | None:
        return None if case.subject in but | {"code"} else case.write(template.replace("@", case.gold))

    return _around(name, title, change)


_NOT_MATHS: frozenset[Subject] = frozenset({"json", "words"})
_JSON: frozenset[Subject] = frozenset({"json"})

AS_GIVEN = _around("as_given", "the reference answer as it stands", lambda case: case.write(case.gold))

RIGHT_ANY = (
    AS_GIVEN,
    _inside("spaces", "spaces around the answer", "  @  "),
    _inside("line_ends", "line ends around the answer", "\n@\n"),
    _inside("no_break_space", "no-break spaces around the answer", "\u00a0@\u00a0"),
    _inside("full_stop", "a full stop after the answer", "@.", but=_JSON),
    _inside("bold", "bold", "**@**", but=_JSON),
    _inside("backticks", "backticks", "`@`", but=_JSON),
    _inside("quotes", "quotation marks", '"@"', but=_JSON),
    _inside("boxed_inside", "a LaTeX box around the answer", "\\boxed{@}", but=_JSON),
    _inside("dollars", "dollar signs of LaTeX ($42$)", "$@$", but=_NOT_MATHS),
    _inside("inline_latex", r"LaTeX brackets (\(42\))", "\\(@\\)", but=_NOT_MATHS),
    _inside("latex_text", r"LaTeX text (\text{42})", "\\text{@}", but=_JSON),
    _inside("sentence_inside", "a sentence around the answer", "The answer is @.", but=_JSON),
    _inside("colon_inside", "“Answer:” before the answer", "Answer: @", but=_JSON),
    _inside("equals_inside", "an equals sign before the answer", "= @", but=_NOT_MATHS),
    _around("text_after", "a sentence after all", lambda case: case.write(case.gold) + "\n\nI hope this helps!"),
    _around(
        "text_before", "a sentence before all", lambda case: "Sure, here is my answer.\n\n" + case.write(case.gold)
    ),
    _around("line_ends_around", "line ends around all", lambda case: f"\n\n{case.write(case.gold)}\n\n"),
    _around(
        "long_thought",
        "a long thought",
        lambda case: case.write(case.gold, _LONG) if case.has_thought else f"{_LONG}\n{case.write(case.gold)}",
    ),
    _around(
        "wrong_thought_mended",
        "a thought that first goes wrong",
        lambda case: (
            case.write(case.gold, f"{THOUGHT} At first I get {case.wrong}. That is not right, so I start again.")
            if case.has_thought and case.subject != "code"
            else None
        ),
    ),
    _around(
        "windows_line_ends",
        "Windows line ends",
        lambda case: text.replace("\n", "\r\n") if "\n" in (text := case.write(case.gold)) else None,
    ),
)
