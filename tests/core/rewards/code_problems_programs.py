"""Those of the problems of `code_problems` whose tests are programs."""

from tests.core.rewards.code_problems import Asked, asked_program

ASKED_PROGRAMS: tuple[Asked, ...] = (
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
)
