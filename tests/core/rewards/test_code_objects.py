"""Objects of a solution's own that reach test programs of the kind `code`: none decides a test, except by the operators
of a class that the tests use as one."""

import textwrap

import pytest

from grpo_core.rewards.base import ScoreRequest
from tests.tables import cases

from .scoring import code_problem, code_sample

LIES = """
def lie(self, *a, **k):
    return True
__eq__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = lie
def __hash__(self):
    return 0
def zero(self, *a):
    return 0.0
__sub__ = __rsub__ = __abs__ = __neg__ = __mod__ = __rmod__ = zero
def __ne__(self, other):
    return False
def __round__(self, *a):
    return type("Odd", (float,), {"__eq__": lambda self, other: True, "__hash__": lambda self: 0})(9.87e77)
def __add__(self, other):
    return self
__radd__ = __mul__ = __rmul__ = __add__
"""
CASE = "import unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n        self."
COMPUTED = [
    *("assert abs(NAME(2) - 1.5) < 0.01", "assert not abs(1.5 - NAME(2)) > 0.01", "assert 1.49 < NAME(2) < 1.51"),
    *("assert NAME(2) == 1.5", "assert not NAME(2) != 1.5", "assert NAME(2) in (1.5, 2.5)", "assert 7 in NAME(7)"),
    *("assert round(NAME(2), 3) == 1.5", "assert {1.5: True}[NAME(2)]", "assert sum([NAME(2), 0.5]) == 2.0"),
    *("assert sorted([NAME(2), 9.0])[0] == 1.5", "assert max(1.0, NAME(2)) == 1.5", "assert NAME(2) * 2 == 3.0"),
    *("import math\nassert math.isclose(NAME(2), 1.5)", "import operator\nassert operator.eq(NAME(2), 1.5)"),
    *(CASE + "assertAlmostEqual(NAME(2), 1.5, places=3)", CASE + "assertIn(7, NAME(7))"),
    *(CASE + "assertLess(NAME(2), 1.6)", "value = NAME(2)\nassert value.real == value and abs(value - 1.5) < 0.01"),
]


@pytest.mark.parametrize(
    ("name", "every"),
    [("Solve", 3), *(pytest.param(name, 1, marks=pytest.mark.slow) for name in ("solve", "Solve"))],
)
@pytest.mark.parametrize("code", cases("code_rewards/lying_objects", "code"))
def test_what_tests_compute_with_is_of_their_own_types(code_scorer, code, name, every):
    """No object of a solution's decides a test, whatever its function is called."""
    body = textwrap.indent(LIES, "    ").strip()
    programs = [{"program": text.replace("NAME", name)} for text in COMPUTED[::every]]
    problem = code_problem(programs, entry_point=name)
    lying = code.replace("OPERATORS", body).replace("NAME", name)
    right = f"def {name}(x):\n    return 1.5 if x == 2 else [x]"
    samples = [ScoreRequest(problem, f"```python\n{text}\n```") for text in (lying, right)]
    unpaid, paid = code_scorer(pay="share", case_seconds=2).score(samples, lambda: None)
    assert (unpaid.value, unpaid.error) == (0.0, None), unpaid
    assert (paid.value, paid.error) == (1.0, None), paid


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("span = Span(1, 9)\nassert span.first == 1\nassert 5 in span and 10 not in span and span < 10", "Span"),
        ("from solution import Span as S\nassert 5 in S(1, 9)\nassert isinstance(S(1, 2), S)", "Span"),
        ("import solution\nspans = [solution.Span(1, n) for n in (5, 9)]\nassert spans[0].first == 1\n"
         "assert 5 in spans[1]", "Span"),
        ("def check(candidate):\n    made = candidate(1, 9) * 2\n    assert made.last == 18", "Span"),
        ("assert Span(1, 3) < Span(5, 6) and not Span(5, 6) < Span(1, 3)", "Span"),
        ("assert len(Span(1, 3)) == 3 and -Span(1, 3) < Span(1, 3)", "Span"),
    ],
)  # fmt: skip
def test_operators_of_a_class_are_its_own(judged, program, code):
    right = """
class Span:
    def __init__(self, first, last):
        self.first, self.last = first, last
    def __contains__(self, x):
        return self.first <= x <= self.last
    def __lt__(self, other):
        return self.last < (other.first if isinstance(other, Span) else other)
    def __mul__(self, by):
        return Span(self.first * by, self.last * by)
    def __neg__(self):
        return Span(-self.last, -self.first)
    def __len__(self):
        return self.last - self.first + 1
"""
    score = judged({"program": program}, right, meta={"entry_point": code})
    assert (score.value, score.error) == (1.0, None), score


HOLDS = """
class Bag:
    def __init__(self, *a):
        self.size = 2
    def __getitem__(self, at):
        if at > 1:
            raise IndexError
        return Liar()
"""


def test_operators_of_what_an_object_holds_are_not_asked(judged):
    """Also where it is of a class. Two that it holds may be compared, which sees no value of the tests."""
    lying = "class Liar:\n" + textwrap.indent(LIES.strip(), "    ") + HOLDS
    begun = "bag = Bag(1.5, 2.5)\nassert bag.size == 2\n"
    ends = ["assert abs(bag[0] - 1.5) < 0.01", "assert [b for b in bag][1] > 2", "assert all(1 < b < 3 for b in bag)"]
    tests = [{"program": begun + end} for end in ends]
    score = judged(tests, lying, pay="share", meta={"entry_point": "Bag"})
    assert (score.value, score.error) == (0.0, None), score
    assert judged({"program": f"{begun}assert bag[0] < bag[1]"}, lying, meta={"entry_point": "Bag"}).value == 1.0


@pytest.mark.parametrize("error", ["StopIteration", "StopAsyncIteration"])
def test_what_a_call_raises_ends_no_loop_of_the_tests(judged, error):
    """Python's own `map`, `filter` and `iter` would take it for their end, before anything is compared."""
    tests = ["assert all(map(lambda x: f(x) == 1.5, [2, 3]))", "for each in map(f, [2, 3]):\n    assert each == 1.5"]
    programs = [{"program": text} for text in (*tests, "for each in iter(lambda: f(2), 0):\n    assert each == 1.5")]
    score = judged(programs, f"def f(x):\n    raise {error}", pay="share")
    assert (score.value, score.error) == (0.0, None), score


def test_the_end_of_an_iteration_is_the_solution_s_where_tests_wait_for_it(judged):
    right = """
class Walk:
    def __iter__(self):
        return self
    def __next__(self):
        raise StopIteration
    def step(self):
        raise StopIteration
"""
    tests = ["walk = Walk()\nassert list(walk) == [] and next(walk, 7) == 7"]
    tests.append("try:\n    Walk().step()\nexcept StopIteration:\n    ended = True\nassert ended")
    score = judged([{"program": text} for text in tests], right, pay="share", meta={"entry_point": "Walk"})
    assert (score.value, score.error) == (1.0, None), score


def test_a_type_of_plain_data_is_itself_on_the_other_side(code_scorer):
    tests = "assert of_type([1, 'a', 2.5, None], int) == [1]\nassert of_type([None, 1], type(None)) == [None]"
    by_type = "def of_type(items, kind):\n    return [item for item in items if type(item) is kind]"
    wrong = by_type.replace("is kind", "is str")
    scores = code_scorer().score([code_sample(tests, code) for code in (by_type, wrong)], lambda: None)
    assert [score.value for score in scores] == [1, 0]
    named = code_sample("assert name(ValueError) == 'ValueError'", "def name(kind):\n    return kind.__name__")
    assert code_scorer().score([named], lambda: None)[0].value == 1
