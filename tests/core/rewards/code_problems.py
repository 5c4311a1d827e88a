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
