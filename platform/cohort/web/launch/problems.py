"""From a ConfigError to words beside the field that caused it."""

import re
from collections.abc import Iterable

from cohort.web.launch import suites
from cohort.web.launch.schema import FROM_VARIANT, fields
from grpo_core.errors import FieldProblem

SUBJECTS = {
    "sampling.group_size": "G",
    "algorithm.kl.coef": "β",
    "algorithm.clip_low": "ε low",
    "algorithm.clip_high": "ε high",
    "algorithm.inner_iterations": "μ",
}
"""What a message calls a field whose label is too long to begin a sentence."""

CHOICES = {
    "base_model": "Base model",
    "dataset": "Dataset",
    "eval_dataset": "Held-out dataset",
    "verifier_version": "Reward source",
    "variant": "Normalization",
    "preset": "Preset",
    "name": "Name",
    "priority": "Priority",
    "node_label": "Node label",
    "probe_override": "Reward",
}

_FROM_ROWS = (
    ("model.", "base_model"),
    ("data.path", "dataset"),
    ("data.format", "dataset"),
    ("eval.path", "eval_dataset"),
    ("eval.format", "eval_dataset"),
    ("reward", "verifier_version"),
)

_PLAIN = (
    (r"Input should be greater than or equal to ([^;]+)", r"must be \1 or more"),
    (r"Input should be greater than ([^;]+)", r"must be more than \1"),
    (r"Input should be less than or equal to ([^;]+)", r"must be at most \1"),
    (r"Input should be less than ([^;]+)", r"must be less than \1"),
    (r"Input should be a valid integer[^;]*|Unable to parse input string as an integer[^;]*", "must be a whole number"),
    (r"Input should be a valid number[^;]*", "must be a number"),
    (r"Input should be a finite number", "must be a finite number"),
    (r"Input should be a valid boolean[^;]*", "must be yes or no"),
    (r"Input should be a valid string", "must be text"),
    (r"String should have at least 1 character", "must not be empty"),
    (r"String should have at most (\d+) characters?", r"must have at most \1 characters"),
)


def by_field(problems: Iterable[FieldProblem]) -> tuple[dict[str, list[str]], list[str]]:
    """(messages by form field, messages that belong to no single field)."""
    beside: dict[str, list[str]] = {}
    general: list[str] = []
    for problem in problems:
        field = field_of(problem)
        if field is None:
            general.append(str(problem))
        else:
            beside.setdefault(field, []).append(in_words(field, problem))
    return beside, general


def field_of(problem: FieldProblem) -> str | None:
    """Name of the form field that the fault belongs to; None when it is the whole config's."""
    path = problem.path
    if path in fields() or path in CHOICES:
        return path
    if path in FROM_VARIANT:
        return "variant"
    for prefix, field in _FROM_ROWS:
        if path.startswith(prefix):
            return field
    # A rule over several fields is reported at their part; it names the field to change.
    part = f"{path}." if path else ""
    inside = [(field, field.removeprefix(part)) for field in fields() if field.startswith(part)]
    subject = next((field for field, name in inside if _is_about(name, problem.message, whole=not part)), None)
    if subject is not None:
        return subject
    named = [(field, name) for field, name in inside if _named(name, problem.message)]
    if named:
        return max(named, key=lambda pair: len(pair[1]))[0]
    # It may name a part, such as dynamic_sampling, or what one choice of the form decides.
    whole = next((field for field, name in inside if "." in name and _named(name.split(".")[0], problem.message)), None)
    decided = any(_named(field.removeprefix(part), problem.message) for field in sorted(FROM_VARIANT))
    return whole or ("variant" if decided else None)


def _is_about(name: str, message: str, *, whole: bool) -> bool:
    """Whether the message begins with the field and says what is wrong with it, and not what goes with it."""
    return re.match(re.escape(name) + (r"\b" if whole else r" (has a meaning only|must be)"), message) is not None


def _named(name: str, message: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(name)}\b", message) is not None


def suite_words(field: str, problem: FieldProblem) -> str:
    """The same for an input of a suite, such as suite.3.margin."""
    part = field.removeprefix(suites.PREFIX).partition(".")[2]
    return in_words(field, problem, subject=suites.LABELS.get(part, "Suite"))


def in_words(field: str, problem: FieldProblem, *, subject: str | None = None) -> str:
    """A sentence: "G must be 2 or more; given 1."."""
    message = problem.message
    if message.endswith(("; given null", '; given ""')):
        message = "must not be empty"
    for pattern, plain in _PLAIN:
        message = re.sub(pattern, plain, message)
    message = re.sub(r"(?<=must be at most )\d+", lambda bound: f"{int(bound[0]):,}", message)
    message = re.sub(r'given "(.*)"$', r"given \1", message).replace("given -", "given \N{MINUS SIGN}")
    subject = subject or SUBJECTS.get(field) or CHOICES.get(field) or fields()[field].label
    if message.startswith(("must ", "is ", "holds ", "does ")):
        message = f"{subject} {message}"
    elif " is not one of " in message:
        message = f"{subject}: {message}"
    else:
        first, space, rest = message.partition(" ")
        if "." not in first:  # a sentence; a dotted path stays as it is written in a config
            message = first[:1].upper() + first[1:].replace("_", " ") + space + rest
    return message if message.endswith((".", ")")) else message + "."
