"""Problems that ask for a program, each with a right solution, a wrong one and its tests: a bit of everything that
honest solutions do, so that a judge which punishes any of it is found out."""

from dataclasses import dataclass, field
from typing import Any

from grpo_core.data import Problem
from grpo_core.rewards.base import Unscored


@dataclass(frozen=True)
class Asked:
    name: str
    tests: Any
    right: str
    wrong: str
    params: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    prompt: str = "write a program"

    @property
    def problem(self) -> Problem:
        return Problem(self.name, self.prompt, "", {"tests": self.tests, **self.meta})

    def sample(self, code: str) -> Unscored:
        return Unscored(self.problem, f"I think this is it:\n\n```python\n{code.strip()}\n```\n\nHope that helps.")


def asked_program(name: str, program: str, right: str, wrong: str, *more: Any, **named: Any) -> Asked:
    return Asked(name, {"program": program.strip()}, right, wrong, *more, **named)


ASKED = (
    Asked(
        "sum_line_by_line",
        [{"input": "3\n1\n2\n3\n", "output": "6\n"}, {"input": "1\n-5\n", "output": "-5"}],
        "n = int(input())\nprint(sum(int(input()) for _ in range(n)))",
        "n = int(input())\nprint(n * (n + 1) // 2)",
    ),
    Asked(
        "words_all_at_once",
        [
            {"input": "b a\na c\n", "output": "a 2\nb 1\nc 1\n"},
            {"input": "ä ß ä\n", "output": "ß 1  \nä 2\n\n"},
        ],
        """
import sys
from collections import Counter
for word, n in sorted(Counter(sys.stdin.read().split()).items()):
    print(word, n)
""",
        "import sys\nfor word in sorted(set(sys.stdin.read().split())):\n    print(word, 1)",
    ),
    Asked(
        "stdin_buffer_and_open_zero",
        [{"input": "4 5\n", "output": "20"}, {"input": "7 6\n", "output": "42"}],
        """
import os, sys
a, b = map(int, open(0).read().split())
sys.stdout.write(str(a * b) + "\\n")
sys.stdout.flush()
""",
        "import sys\na, b = map(int, sys.stdin.buffer.readline().split())\nprint(a + b)",
    ),
    Asked(
        "main_guard_and_exit",
        [{"input": "2\n", "output": "even"}, {"input": "3\n", "output": "odd"}],
        """
import sys
def main():
    n = int(sys.stdin.readline())
    print("even" if n % 2 == 0 else "odd")
    sys.exit(0)
if __name__ == "__main__":
    main()
""",
        "print('even')",
    ),
    Asked(
        "threads_and_atexit",
        [{"input": "10\n", "output": "45\nbye"}, {"input": "3\n", "output": "3\nbye"}],
        """
import atexit, threading
atexit.register(print, "bye")
def work():
    print(sum(range(int(input()))))
threading.stack_size(16 * 1024 * 1024)
threading.Thread(target=work).start()
""",
        "print(45)\nprint('bye')",
    ),
    Asked(
        "many_lines_of_output",
        [{"input": "20000\n", "output": "\n".join(map(str, range(20000)))}, {"input": "1\n", "output": "0"}],
        "for i in range(int(input())):\n    print(i)",
        "for i in range(int(input()) - 1):\n    print(i)",
    ),
    Asked(
        "much_input",
        [{"input": " ".join(["1"] * 100_000), "output": "100000"}, {"input": "5 6", "output": "11"}],
        "import sys\nprint(sum(map(int, sys.stdin.read().split())))",
        "import sys\nprint(len(sys.stdin.read().split()))",
    ),
    Asked(
        "printed_floats",
        [{"input": "2", "output": "1.41421356"}, {"input": "9", "output": "3.0"}],
        "print(float(input()) ** 0.5)",
        "print(float(input()) / 2)",
        {"compare": "numbers", "tolerance": 1e-6},
    ),
    Asked(
        "tokens",
        [{"input": "", "output": "1 2\n3"}, {"input": "x", "output": "1 2 3"}],
        "print(1, 2, 3)",
        "print(123)",
        {"compare": "tokens"},
    ),
    Asked(
        "recursion",
        [
            {"call": "fib", "args": [n], "returns": v}
            for n, v in ((0, 0), (1, 1), (20, 6765), (90, 2880067194370816120))
        ],
        """
from functools import lru_cache
@lru_cache(None)
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
""",
        "def fib(n):\n    return n",
    ),
    Asked(
        "deep_recursion",
        [{"call": "depth", "args": [5000], "returns": 5000}, {"call": "depth", "args": [1], "returns": 1}],
        "import sys\nsys.setrecursionlimit(100000)\ndef depth(n):\n    return 0 if n == 0 else 1 + depth(n - 1)",
        "def depth(n):\n    return 1",
    ),
    Asked(
        "prints_while_computing",
        [{"call": "double", "args": [4], "returns": 8}, {"call": "double", "args": [0], "returns": 0}],
        "def double(x):\n    print('ALL TESTS PASSED', x)\n    print('x' * 200_000)\n    return 2 * x\nprint('loaded')",
        "def double(x):\n    print(2 * x)",
    ),
    Asked(
        "float_results",
        [{"call": "mean", "args": [[0.1, 0.2]], "returns": 0.15}, {"call": "mean", "args": [[1, 2]], "returns": 1.5}],
        "def mean(xs):\n    return sum(xs) / len(xs)",
        "def mean(xs):\n    return xs[0]",
    ),
    Asked(
        "tuples_sets_dicts",
        [
            {"call": "f", "args": [[1, 2, 2]], "returns": {"1": 1, "2": 2}},
            {"call": "g", "args": [[3, 1]], "returns": [1, 3]},
            {"call": "h", "args": [[3, 1, 3]], "returns": [1, 3]},
        ],
        """
from collections import Counter, namedtuple
Pair = namedtuple("Pair", "low high")
def f(xs):
    return Counter(xs)
def g(xs):
    return Pair(min(xs), max(xs))
def h(xs):
    return set(xs)
""",
        "def f(xs):\n    return {}\ndef g(xs):\n    return (3, 1)\ndef h(xs):\n    return {3}",
    ),
    Asked(
        "python_literals",
        [
            {"call": "flip", "python": True, "args": "[(1, 'a'), {2, 3}]", "returns": "(('a', 1), {2, 3})"},
            {"call": "flip", "python": True, "args": "[(1, 2), set()]", "returns": "((2, 1), set())"},
        ],
        "def flip(pair, s):\n    return (pair[::-1], frozenset(s))",
        "def flip(pair, s):\n    return [list(pair[::-1]), list(s)]",
    ),
    Asked(
        "generator",
        [{"call": "squares", "args": [4], "returns": [0, 1, 4, 9]}, {"call": "squares", "args": [0], "returns": []}],
        "def squares(n):\n    for i in range(n):\n        yield i * i",
        "def squares(n):\n    yield from range(n)",
    ),
    Asked(
        "keywords_and_none",
        [
            {"call": "find", "args": [[1, 2]], "kwargs": {"what": 2}, "returns": 1},
            {"call": "find", "args": [[1]], "kwargs": {"what": 5}, "returns": None},
        ],
        "def find(xs, *, what):\n    return xs.index(what) if what in xs else None",
        "def find(xs, *, what):\n    return None",
    ),
    Asked(
        "big_whole_numbers",
        [
            {"call": "power", "args": [2, 200], "returns": 2**200},
            {"call": "power", "args": [-3, 101], "returns": (-3) ** 101},
            {"call": "power", "args": [10, 3000], "returns": 10**3000},
        ],
        "def power(a, n):\n    return a ** n",
        "def power(a, n):\n    return float(a) ** min(n, 200)",
    ),
    Asked(
        "unicode_text",
        [
            {"call": "rev", "args": ["añ😀ß"], "returns": "ß😀ña"},
            {"call": "rev", "args": ["\u202eab\x00"], "returns": "\x00ba\u202e"},
        ],
        "def rev(s):\n    return s[::-1]",
        "def rev(s):\n    return s",
    ),
    Asked(
        "method_of_a_class_solution",
        [
            {"call": "twoSum", "args": [[2, 7, 11], 9], "returns": [0, 1]},
            {"call": "twoSum", "args": [[3, 3], 6], "returns": [0, 1]},
        ],
        """
from typing import List
class Solution:
    def twoSum(self, nums: List[int], target: int) -> List[int]:
        seen = {}
        for i, x in enumerate(nums):
            if target - x in seen:
                return [seen[target - x], i]
            seen[x] = i
""",
        "class Solution:\n    def twoSum(self, nums, target):\n        return [0, 0]",
    ),
    Asked(
        "global_state_stays_apart",
        [{"call": "tick", "args": [], "returns": 1}, {"call": "tick", "args": [], "returns": 1}],
        "count = 0\ndef tick():\n    global count\n    count += 1\n    return count",
        "def tick():\n    return 2",
    ),
    Asked(
        "mbpp_like",
        [
            "assert similar((3, 4, 5, 6), (5, 7, 4, 10)) == (4, 5)",
            "assert similar((1, 2, 3, 4), (5, 4, 3, 7)) == (3, 4)",
            "assert similar((11, 12), (13,)) == ()",
        ],
        "def similar(a, b):\n    return tuple(sorted(set(a) & set(b)))",
        "def similar(a, b):\n    return sorted(set(a) & set(b))",
    ),
    Asked(
        "mbpp_like_with_sets_and_floats",
        ["assert set(common([1, 2], [2, 3])) == set([2])", "assert abs(area(2.0) - 12.566370614359172) < 1e-6"],
        "import math\ndef common(a, b):\n    return [x for x in a if x in b]\ndef area(r):\n    return math.pi * r * r",
        "def common(a, b):\n    return a\ndef area(r):\n    return 12.566",
    ),
    Asked(
        "mbpp_like_named_as_a_builtin",
        ["assert sum(10, 15) == 6", "assert sum(100, 150) == 93"],
        """
def sum(a, b):
    total = 0
    for i in range(1, min(a, b) + 1):
        if a % i == 0 and b % i == 0:
            total += i
    return total
""",
        "def sum(a, b):\n    return a + b",
    ),
    asked_program(
        "humaneval_like",
        """
METADATA = {'author': 'us'}

def check(candidate):
    assert candidate([1.0, 2.0, 3.9, 4.0, 5.0, 2.2], 0.3) == True
    assert candidate([1.0, 2.0, 3.9, 4.0, 5.0, 2.2], 0.05) == False
    assert candidate([], 1) is False
""",
        """
from typing import List
def close_pair(numbers: List[float], threshold: float) -> bool:
    for i, a in enumerate(numbers):
        for b in numbers[i + 1:]:
            if abs(a - b) < threshold:
                return True
    return False
""",
        "def close_pair(numbers, threshold):\n    return True",
        meta={"entry_point": "close_pair"},
    ),
    asked_program(
        "humaneval_like_with_prelude",
        """
def check(candidate):
    import math
    for xs in ([1, 2], [-6, 11, -6, 1]):
        assert math.fabs(poly(xs, candidate(xs))) < 1e-4
""",
        """
    low, high = -1000.0, 1000.0
    while poly(xs, low) * poly(xs, high) > 0:
        low, high = low * 2, high * 2
    for _ in range(200):
        middle = (low + high) / 2
        if poly(xs, low) * poly(xs, middle) > 0:
            low = middle
        else:
            high = middle
    return low
""".strip("\n"),
        "    return 0.0",
        {"prelude": "prompt", "extract": "whole"},
        {"entry_point": "find_zero"},
        """import math


def poly(xs: list, x: float):
    return sum(coeff * math.pow(x, i) for i, coeff in enumerate(xs))


def find_zero(xs: list):
    \"\"\"x with poly(xs, x) = 0, for lists of even length\"\"\"
""",
    ),
    asked_program(
        "class_of_its_own",
        """
account = Account("Ann", balance=10)
account.deposit(5)
assert account.balance == 15
assert str(account) == "Ann: 15"
try:
    account.withdraw(100)
except InsufficientFunds as error:
    assert "85" in str(error)
else:
    assert False, "no error"
account.balance = 3
assert account.withdraw(3) is None and account.balance == 0
assert isinstance(account, Account)
assert len(account.history) == 2 and account.history[0] == ("deposit", 5)
""",
        """
class InsufficientFunds(ValueError):
    pass
class Account:
    def __init__(self, owner, balance=0):
        self.owner, self.balance, self.history = owner, balance, []
    def deposit(self, amount):
        self.balance += amount
        self.history.append(("deposit", amount))
    def withdraw(self, amount):
        if amount > self.balance:
            raise InsufficientFunds(f"{amount - self.balance} missing")
        self.balance -= amount
        self.history.append(("withdraw", amount))
    def __str__(self):
        return f"{self.owner}: {self.balance}"
""",
        "class Account:\n    def __init__(self, *a, **k):\n        self.balance = 15",
    ),
    asked_program(
        "linked_list_and_operators",
        """
head = build([1, 2, 3])
seen = []
while head:
    seen.append(head.val)
    head = head.next
assert seen == [1, 2, 3]
v = Vector(1, 2) + Vector(3, 4)
assert (v.x, v.y) == (4, 6)
assert 4 in Bag([4]) and 5 not in Bag([4])
assert [x for x in Bag([7, 8])] == [7, 8] and Bag([7, 8])[1] == 8 and len(Bag([1])) == 1
""",
        """
class Node:
    def __init__(self, val, next=None):
        self.val, self.next = val, next
def build(xs):
    head = None
    for x in reversed(xs):
        head = Node(x, head)
    return head
class Vector:
    def __init__(self, x, y):
        self.x, self.y = x, y
    def __add__(self, other):
        return Vector(self.x + other.x, self.y + other.y)
class Bag:
    def __init__(self, xs):
        self.xs = list(xs)
    def __contains__(self, x):
        return x in self.xs
    def __iter__(self):
        return iter(self.xs)
    def __len__(self):
        return len(self.xs)
    def __getitem__(self, i):
        return self.xs[i]
""",
        "class Node:\n    val, next = 1, None\ndef build(xs):\n    return Node()",
    ),
    asked_program(
        "lazy_generator",
        """
from itertools import islice
assert list(islice(primes(), 5)) == [2, 3, 5, 7, 11]
stream = primes()
assert next(stream) == 2 and next(stream) == 3
""",
        """
def primes():
    found = []
    n = 2
    while True:
        if all(n % p for p in found):
            found.append(n)
            yield n
        n += 1
""",
        "def primes():\n    n = 2\n    while True:\n        yield n\n        n += 1",
    ),
    asked_program(
        "functions_as_arguments",
        """
calls = []
def noted(x):
    calls.append(x)
    return x * 10
assert apply(noted, [1, 2]) == [10, 20]
assert calls == [1, 2]
assert apply(len, ["ab", "c"]) == [2, 1]
assert compose(lambda x: x + 1, lambda x: x * 2)(5) == 11
""",
        "def apply(f, xs):\n    return [f(x) for x in xs]\ndef compose(f, g):\n    return lambda x: f(g(x))",
        "def apply(f, xs):\n    return xs\ndef compose(f, g):\n    return f",
    ),
    asked_program(
        "works_in_place",
        """
data = [3, 1, 2]
assert sort_it(data) is None
assert data == [1, 2, 3]
grid = [[1, 2], [3, 4]]
turn(grid)
assert grid == [[3, 1], [4, 2]]
""",
        "def sort_it(xs):\n    xs.sort()\ndef turn(g):\n    g[:] = [list(r) for r in zip(*g[::-1])]",
        "def sort_it(xs):\n    sorted(xs)\ndef turn(g):\n    pass",
    ),
    asked_program(
        "errors_are_asked_for",
        """
import unittest

class TestDivide(unittest.TestCase):
    def test_right(self):
        self.assertEqual(divide(6, 3), 2)
        self.assertAlmostEqual(divide(1, 3), 0.3333333333)

    def test_zero(self):
        with self.assertRaises(ZeroDivisionError):
            divide(1, 0)

if __name__ == "__main__":
    unittest.main()
""",
        "def divide(a, b):\n    return a / b",
        "def divide(a, b):\n    return a // b if b else 0",
    ),
    asked_program(
        "imports_the_solution",
        """
from solution import area, Shape

def test_area():
    assert area(2, 3) == 6

def test_shape():
    assert Shape(4).side == 4
""",
        "def area(a, b):\n    return a * b\nclass Shape:\n    def __init__(self, side):\n        self.side = side",
        "def area(a, b):\n    return a + b\nclass Shape:\n    def __init__(self, side):\n        self.side = 0",
    ),
    asked_program(
        "rich_values",
        """
import datetime
from collections import deque, OrderedDict
from decimal import Decimal
from fractions import Fraction
assert half(3) == Fraction(3, 2)
assert price("1.10") == Decimal("1.10")
assert day(2024, 2, 29) == datetime.date(2024, 2, 29)
assert last([1, 2, 3], 2) == deque([2, 3])
assert counts("aab") == {"a": 2, "b": 1}
assert data() == b"\\x00\\xff" and z() == 1 + 2j
assert nested() == {(1, 2): [{"a": None}, {1, 2}, (True, 0.5)]}
""",
        """
import datetime
from collections import Counter, deque
from decimal import Decimal
from fractions import Fraction
half = lambda n: Fraction(n, 2)
price = Decimal
day = datetime.date
def last(xs, n):
    return deque(xs, maxlen=n)
counts = Counter
def data():
    return bytes([0, 255])
def z():
    return complex(1, 2)
def nested():
    return {(1, 2): [{"a": None}, {1, 2}, (True, 0.5)]}
""",
        "def half(n):\n    return n // 2",
    ),
    asked_program(
        "memory_between_calls",
        """
cache = LRU(2)
cache.put(1, "a")
cache.put(2, "b")
assert cache.get(1) == "a"
cache.put(3, "c")
assert cache.get(2) == -1
assert [cache.get(k) for k in (1, 3)] == ["a", "c"]
""",
        """
from collections import OrderedDict
class LRU:
    def __init__(self, size):
        self.size, self.data = size, OrderedDict()
    def get(self, key):
        if key not in self.data:
            return -1
        self.data.move_to_end(key)
        return self.data[key]
    def put(self, key, value):
        self.data[key] = value
        self.data.move_to_end(key)
        if len(self.data) > self.size:
            self.data.popitem(last=False)
""",
        """
class LRU:
    def __init__(self, size):
        self.data = {}
    def get(self, key):
        return self.data.get(key, -1)
    def put(self, key, value):
        self.data[key] = value
""",
    ),
    Asked(
        "slow_but_in_time",
        [{"call": "slow", "args": [2], "returns": 3_000_000}, {"call": "slow", "args": [1], "returns": 1_500_000}],
        "def slow(n):\n    total = 0\n    for i in range(n * 1_500_000):\n        total += 1\n    return total",
        "def slow(n):\n    return n",
    ),
    Asked(
        "sleeps",
        [{"call": "nap", "args": [], "returns": "rested"}, {"call": "nap", "args": [], "returns": "rested"}],
        "import time\ndef nap():\n    time.sleep(0.3)\n    return 'rested'",
        "def nap():\n    return ''",
        {"case_seconds": 0.2},
    ),
    Asked(
        "dataclass_and_enum_inside",
        [
            {"call": "run", "args": ["red"], "returns": ["RED", 3]},
            {"call": "run", "args": ["blue"], "returns": ["BLUE", 4]},
        ],
        """
import enum
from dataclasses import dataclass, field
class Colour(enum.IntEnum):
    RED = 3
    BLUE = 4
@dataclass
class Shown:
    name: str
    parts: list = field(default_factory=list)
def run(name):
    shown = Shown(name.upper())
    shown.parts.append(Colour[shown.name])
    return shown.name, shown.parts[0]
""",
        "def run(name):\n    return name.upper(), 3",
    ),
    Asked(
        "writes_its_own_files",
        [
            {"call": "through_file", "args": ["x"], "returns": "xx"},
            {"call": "through_file", "args": [""], "returns": ""},
        ],
        """
import os, tempfile
def through_file(text):
    with tempfile.NamedTemporaryFile("w", delete=False) as file:
        file.write(text * 2)
    with open(file.name) as file:
        return file.read()
""",
        "def through_file(text):\n    return text",
    ),
)
