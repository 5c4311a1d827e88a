"""Function calls: how they are read out of a completion, and when they are those wanted."""

import pytest

from grpo_core.evaluate.item import SuiteItem
from grpo_core.evaluate.scorers import scorer
from grpo_core.evaluate.scorers.calls import Call, calls_in

WEATHER = {"name": "weather.get", "parameters": {"properties": {"city": {}, "unit": {}}}}
PARIS = Call("weather.get", {"city": "Paris"})


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('weather.get(city="Paris")', [PARIS]),
        ('[weather.get(city="Paris")]', [PARIS]),
        ('[weather.get("Paris")]', [PARIS]),
        ('```python\nweather.get(city="Paris")\n```', [PARIS]),
        ('I look it up.\nweather.get(city="Paris")', [PARIS]),
        ('Here: [weather.get(city="Paris")] as asked', [PARIS]),
        ('{"name": "weather.get", "arguments": {"city": "Paris"}}', [PARIS]),
        ('{"name": "weather.get", "parameters": {"city": "Paris"}}', [PARIS]),
        ('{"weather.get": {"city": "Paris"}}', [PARIS]),
        ('{"function": {"name": "weather.get", "arguments": "{\\"city\\": \\"Paris\\"}"}}', [PARIS]),
        ('<tool_call>{"name": "weather.get", "arguments": {"city": "Paris"}}</tool_call>' * 2, [PARIS, PARIS]),
        (
            "[f(x=-1, y=[1, 2.5], z={'a': None}, w=true)]",
            [Call("f", {"x": -1, "y": [1, 2.5], "z": {"a": None}, "w": True})],
        ),
        ("[f(), g()]", [Call("f", {}), Call("g", {})]),
        ("I would call nothing.", []),
        ("f(x=1", []),
        ("f(x=y)", []),
        ("f(**x)", []),
        ("f(x=1, x=2)", []),
        ('__import__("os").system("true")', []),
        ('f(x=__import__("os"))', []),
        ("f(lambda: 1)", []),
        ("[1, 2]", []),
        ("", []),
        ("f(" * 3000 + ")" * 3000, []),
        ("f(x=" + "-" * 5000 + "1)", []),
        ("f(x=" + "1" * 30_000 + ")", []),
    ],
)
def test_calls_are_read(text, calls):
    assert calls_in(text, [WEATHER]) == calls


TWO = [
    {"name": "weather.get", "arguments": {"city": ["Paris"], "unit": ["", "celsius"]}},
    {"name": "weather.get", "arguments": {"city": ["Oslo"], "unit": ["", "celsius"]}},
]


def scored(target, completion, **params):
    item = SuiteItem("a", "p", target, functions=(WEATHER,))
    return scorer("function_call", params).score(item, completion)


@pytest.mark.parametrize(
    ("target", "completion", "right"),
    [
        (TWO[:1], 'weather.get(city="Paris")', 1),
        (TWO[:1], 'weather_get(city="paris")', 1),
        (TWO[:1], 'weather.get(city="Paris", unit="Celsius")', 1),
        (TWO[:1], 'weather.get(city="Paris", unit="kelvin")', 0),
        (TWO[:1], 'weather.get(city="Paris", day="today")', 0),
        (TWO[:1], 'weather.get(unit="celsius")', 0),
        (TWO[:1], 'weather.set(city="Paris")', 0),
        (TWO[:1], 'weather.get(city="Paris"), weather.get(city="Paris")', 0),
        (TWO[:1], "It is sunny in Paris", 0),
        (TWO, '[weather.get(city="Oslo"), weather.get(city="Paris")]', 1),
        (TWO, '[weather.get(city="Oslo"), weather.get(city="Oslo")]', 0),
        (TWO, 'weather.get(city="Oslo")', 0),
        ([], "The sky is blue because light is scattered.", 1),
        ([], 'weather.get(city="Paris")', 0),
        ([{"name": "f", "arguments": {"x": [5]}}], "f(x=5.0)", 1),
        ([{"name": "f", "arguments": {"x": [1]}}], "f(x=True)", 0),
        ([{"name": "f", "arguments": {"x": [True]}}], "f(x=1)", 0),
        ([{"name": "f", "arguments": {"x": [True]}}], "f(x=true)", 1),
        ([{"name": "f", "arguments": {"x": [[1, 2]]}}], "f(x=[1, 2])", 1),
        ([{"name": "f", "arguments": {"x": [[1, 2]]}}], "f(x=[2, 1])", 0),
        ([{"name": "f", "arguments": {"x": [{"a": ["b", "c"]}]}}], "f(x={'a': 'c'})", 1),
        ([{"name": "f", "arguments": {"x": [{"a": ["b", "c"]}]}}], "f(x={'a': 'd'})", 0),
        ([{"name": "f", "arguments": {"x": ["New York, NY"]}}], 'f(x="new-york ny")', 1),
    ],
)
def test_calls_are_compared(target, completion, right):
    assert scored(target, completion).score == right


def test_a_share_of_the_calls():
    assert scored(TWO, 'weather.get(city="Oslo")', partial=True).score == 0.5
    assert scored(TWO, 'weather.get(city="Rome")', partial=True).score == 0
    assert scored(TWO, '[weather.get(city="Oslo"), weather.get(city="Rome")]', partial=True).score == 0


def test_which_call_fits_which_is_looked_for():
    """The first call fits both wanted ones, the second only the first."""
    target = [{"name": "f", "arguments": {"x": [1, 2]}}, {"name": "f", "arguments": {"x": [1]}}]
    assert scored(target, "[f(x=1), f(x=2)]").score == 1


def test_the_detail_says_what_is_wrong():
    assert "city='Rome'" in scored(TWO[:1], 'weather.get(city="Rome")').detail
    assert "g was not wanted" in scored(TWO[:1], "g()").detail
