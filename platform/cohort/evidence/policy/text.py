"""A policy's file, `cohort-policy/1`: YAML or JSON, read with the line of each fault.

schema: cohort-policy/1
name: Release of a model
rules:
  - name: held-out accuracy rises
    rule: improved
    suites: [heldout]
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from cohort.evidence.canonical import CanonicalError, canonical, sha256
from cohort.evidence.policy.kinds import KINDS
from cohort.evidence.policy.spec import REQUIRED, RuleSpec
from grpo_core.config.yaml_text import line_of, parse_yaml
from grpo_core.text import UNSEEN

SCHEMA = "cohort-policy/1"
MOST_BYTES, MOST_RULES, NAME_CHARS = 64 * 1024, 100, 120
_OWN = ("name", "rule")


@dataclass(frozen=True)
class Problem:
    line: int
    """From 1; 0 where the text has no line for it."""
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}" if self.line else self.message


class PolicyFault(ValueError):
    """A text that is no policy."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


@dataclass(frozen=True)
class Rule:
    name: str
    spec: RuleSpec
    params: Mapping[str, Any]
    """Checked, with the defaults."""

    @property
    def bounds(self) -> str:
        """Its parameters in one line, without those that are empty."""
        given = {name: value for name, value in self.params.items() if value not in (None, ())}
        texts = {name: ", ".join(value) if isinstance(value, tuple) else f"{value}" for name, value in given.items()}
        return "; ".join(f"{name}: {text}" for name, text in texts.items())


@dataclass(frozen=True)
class Policy:
    name: str
    rules: tuple[Rule, ...]
    content: Mapping[str, Any] = field(repr=False)
    """As given."""
    digest: str
    """SHA-256 of the content's canonical JSON: comments and layout do not change it."""


def parse_policy(text: str) -> Policy:
    """Raises PolicyFault with every problem, each with its line."""
    if len(text.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        raise PolicyFault([Problem(0, f"a policy has at most {MOST_BYTES:,} bytes; this is longer")])
    try:
        content = parse_yaml(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise PolicyFault([Problem(mark.line + 1 if mark else 0, f"not YAML: {error.problem}")]) from None
    except yaml.YAMLError as error:
        raise PolicyFault([Problem(0, f"not YAML: {error}")]) from None
    problems: list[tuple[tuple[Any, ...], str]] = []
    policy = _policy(content, problems)
    if policy is None:
        raise PolicyFault(sorted((Problem(line_of(text, path), words) for path, words in problems), key=_by_line))
    return policy


def policy_of(content: Any) -> Policy:
    """The same of content that was parsed before, as a record holds it."""
    problems: list[tuple[tuple[Any, ...], str]] = []
    policy = _policy(content, problems)
    if policy is None:
        raise PolicyFault([Problem(0, words) for _, words in problems])
    return policy


def _by_line(problem: Problem) -> int:
    return problem.line


def _policy(content: Any, problems: list[tuple[tuple[Any, ...], str]]) -> Policy | None:
    if not isinstance(content, dict):
        problems.append(((), f"a policy is a mapping with schema: {SCHEMA}, name and rules"))
        return None
    for key in content:
        if key not in ("schema", "name", "rules"):
            problems.append(((key,), f"{key!a} is not known here; there are schema, name and rules"))
    if content.get("schema") != SCHEMA:
        problems.append((("schema",), f"schema must be {SCHEMA}"))
    problems += [(("name",), words) for words in _name_faults(content.get("name"))]
    given = content.get("rules")
    rules: list[Rule] = []
    if not isinstance(given, list) or not given:
        problems.append((("rules",), "rules must be a list of at least one rule"))
    elif len(given) > MOST_RULES:
        problems.append((("rules",), f"there are {len(given):,} rules; {MOST_RULES} at most are taken"))
    else:
        for at, each in enumerate(given):
            rule = _rule(each, at, problems)
            if rule is not None and any(rule.name == earlier.name for earlier in rules):
                problems.append((("rules", at), f"the name {rule.name!a} is taken by an earlier rule"))
            rules += [rule] if rule is not None else []
    if problems:
        return None
    try:
        digest = sha256(canonical(content))
    except CanonicalError as error:
        problems.append(((), str(error)))
        return None
    return Policy(content["name"], tuple(rules), content, digest)


def _name_faults(name: Any) -> Iterator[str]:
    if not isinstance(name, str) or not name.strip():
        yield "name is missing: a text that people know it by"
    elif len(name) > NAME_CHARS:
        yield f"the name has {len(name):,} characters; {NAME_CHARS} at most are taken"
    elif UNSEEN.search(name):
        yield "the name holds a character that cannot be seen"


def _rule(given: Any, at: int, problems: list[tuple[tuple[Any, ...], str]]) -> Rule | None:
    where = ("rules", at)
    if not isinstance(given, dict):
        problems.append((where, "a rule is a mapping with rule, name and its parameters"))
        return None
    before = len(problems)
    problems += [((*where, "name"), words) for words in _name_faults(given.get("name"))]
    kind = given.get("rule")
    spec = KINDS.get(kind) if isinstance(kind, str) else None
    if spec is None:
        problems.append(((*where, "rule"), f"rule must be one of {', '.join(KINDS)}, not {kind!a}"))
        return None
    known = {param.name: param for param in spec.params}
    for key in given:
        if key not in known and key not in _OWN:
            listed = ", ".join(known) or "none"
            problems.append(((*where, key), f"{key!a} is no parameter of {spec.name}; there are {listed}"))
    params: dict[str, Any] = {}
    for name, param in known.items():
        if name not in given:
            params[name] = param.default
            if param.default is REQUIRED:
                problems.append((where, f"{spec.name} needs {name}: {param.words}"))
            continue
        try:
            params[name] = param.read(given[name])
        except ValueError as error:
            problems.append(((*where, name), f"{name} {error}"))
    if len(problems) == before and (words := spec.together(params)):
        problems.append((where, f"{spec.name} {words}"))
    return Rule(given["name"], spec, params) if len(problems) == before else None
