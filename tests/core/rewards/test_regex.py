"""regex finds a pattern, or that it is not there, and a pattern that runs away is an error, not a reward."""

import pytest

from tests.core.rewards.scoring import refused, taken, told, value


@pytest.mark.parametrize(
    ("pattern", "params", "right", "wrong"),
    [
        (r"\d{4}", {}, "in 2026.", "in 26."),
        (r"\d{4}", {"match": "start"}, "2026 was", "in 2026"),
        (r"\d{4}", {"match": "all"}, " 2026\n", "2026."),
        ("yes", {"ignore_case": True}, "YES", "no"),
        ("^b$", {"multiline": True}, "a\nb\nc", "a b c"),
        ("a.c", {"dot_all": True}, "a\nc", "ac"),
        ("82", {"extract": "answer_tag"}, "<answer>82</answer>", "82"),
        ("82", {"extract": "last_number", "match": "all"}, "82 and 82", "82 and 83"),
        ("sorry", {"absent": True}, "It is 82.", "I am sorry."),
        (r"\p{Han}{2}", {}, "答案", "ab"),
    ],
)
def test_match(pattern: str, params: dict[str, object], right: str, wrong: str) -> None:
    assert value("regex", right, pattern=pattern, **params) == 1  # type: ignore[arg-type]
    assert value("regex", wrong, pattern=pattern, **params) == 0  # type: ignore[arg-type]


def test_details() -> None:
    assert told("regex", "in 2026.", pattern=r"\d+").detail == "2026"
    assert told("regex", "never", pattern=r"\d+").detail == "not found"
    assert told("regex", "82", pattern="8", extract="boxed").detail == r"no \boxed{…}"
    assert len(told("regex", "a" * 5000, pattern="a+").detail) == 200


def test_a_pattern_that_runs_away_is_an_error_of_the_pattern() -> None:
    found = told("regex", "a" * 5000, pattern="(?:(?:a{1,1000}){1,1000}){1,1000}b", seconds=0.2)
    assert (found.value, found.error_class) == (None, "timeout")
    assert "over 0.2 s on 5,000 characters" in (found.error or "")


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [
        ("(a", "is no pattern: missing ) (line 1, column 3)"),
        ("a\n[b", "is no pattern: unterminated character set (line 2, column 3)"),
        ("*", "is no pattern: nothing to repeat (line 1, column 1)"),
        ("(" * 900 + ")" * 900, "is no pattern: RecursionError"),
    ],
)
def test_what_is_no_pattern_is_told_with_its_place(pattern: str, fault: str) -> None:
    assert refused("regex", pattern=pattern)["pattern"].startswith(fault)


def test_parameters() -> None:
    assert "pattern" in refused("regex")
    assert "pattern" in refused("regex", pattern="a" * 2001)
    assert "seconds" in refused("regex", pattern="a", seconds=11)
    assert taken("regex", pattern="a" * 2000)
