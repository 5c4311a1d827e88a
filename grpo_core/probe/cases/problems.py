"""Problems that a probe can do with where there is no dataset: made by hand, small, with answers of every kind.

Only what the probe needs; nothing to train on or to measure a model with.
"""

from typing import Any

from grpo_core.data.problem import Problem
from grpo_core.errors import DataError
from grpo_core.rewards.code.params import CodeParams
from grpo_core.rewards.kinds.choice import ChoiceParams
from grpo_core.rewards.kinds.length import LengthParams
from grpo_core.rewards.rubric import Rubric

_NUMBERS = (
    ("A shelf holds 17 books and 25 more are put on it. How many books does it hold?", "42"),
    ("What is 37 + 45?", "82"),
    ("A train leaves with 310 people; 78 get off. How many stay?", "232"),
    ("What is 8 - 15?", "-7"),
    ("What is 12 times 103?", "1236"),
    ("A field is 250 m long and 96 m wide. What is its area in square metres?", "24000"),
    ("Six friends share 3 cakes equally. How much of a cake does each get?", "1/2"),
    ("What is 3/4 of 5?", "15/4"),
    ("What is 2.5 times 1.5?", "3.75"),
    ("Half of a number is 0.25. What is the number?", "0.5"),
    ("What is 7 squared?", "49"),
    ("How many minutes are there in 3 days?", "4320"),
    ("A price of 80 falls by 15 percent. What is it now?", "68"),
    ("What is 1000000 divided by 8?", "125000"),
    ("What is the remainder of 100 divided by 7?", "2"),
    ("A car drives 135 km in an hour and a half. What is its speed in km per hour?", "90"),
    ("What is -4 times -6?", "24"),
    ("What is -4 times 9?", "-36"),
    ("How many edges does a cube have?", "12"),
    ("What is 2 to the power of 11?", "2048"),
    ("What is the sum of the whole numbers from 1 to 50?", "1275"),
    ("What is 0.1 + 0.02?", "0.12"),
    ("What is 5/6 - 1/3?", "1/2"),
    ("A box holds 24 eggs; 9 boxes are full and one holds 7. How many eggs are there?", "223"),
    ("What is 19 times 21?", "399"),
    ("What is 10.5 divided by 0.5?", "21"),
    ("A square has an area of 144. How long is its side?", "12"),
    ("What is the mean of 3, 8 and 16?", "9"),
    ("How many seconds are there in 2 hours and 5 minutes?", "7500"),
    ("What is 1/3 + 1/4?", "7/12"),
    ("Tickets cost 14 each. What do 13 tickets cost?", "182"),
    ("It is 6 degrees and gets 11 degrees colder. How many degrees is it?", "-5"),
    ("What is the largest two-digit prime?", "97"),
    ("How many diagonals has a hexagon?", "9"),
    ("What is 60 divided by 2.4?", "25"),
    ("A tank loses 3 litres an hour and holds 51. After how many hours is it empty?", "17"),
    ("What is 13 cubed?", "2197"),
    ("What is 9 / 8 as a decimal?", "1.125"),
)
_EXPRESSIONS = (
    ("What is the length of the diagonal of a unit square?", r"\sqrt{2}"),
    ("What is the area of a circle with radius 3?", r"9\pi"),
    ("Simplify 6/8.", r"\frac{3}{4}"),
)
_CHOICES = (
    ("Which planet is nearest to the sun?", ("Venus", "Mercury", "Mars", "Earth"), "B"),
    ("Which of these is a prime number?", ("21", "27", "29", "33"), "C"),
    ("Which gas do plants take in to make sugar?", ("carbon dioxide", "helium", "nitrogen", "neon"), "A"),
    ("Which word is a verb?", ("table", "green", "slowly", "run"), "D"),
    ("How many sides has a pentagon?", ("five", "six", "seven", "eight"), "A"),
    ("Which ocean lies between Africa and Australia?", ("Arctic", "Atlantic", "Indian", "Southern"), "C"),
)
_WORDS = (
    ("What is the capital of Norway?", "Oslo"),
    ("What is the chemical element with the symbol Fe?", "iron"),
    ("Which river flows through Vienna, Budapest and Belgrade?", "Danube"),
    ("Who wrote the novel Emma?", "Jane Austen"),
    ("What do we call a word that means the opposite of another?", "antonym"),
    ("What is the French word for school?", "école"),
    ("What is the longest side of a right-angled triangle called?", "hypotenuse"),
    ("Which force keeps the moon near the earth?", "gravity"),
)
_JSON = (
    ("Write a JSON value as the schema wants it.", ""),
    ("Answer with JSON alone.", ""),
    ("Give an example of such an object as JSON.", ""),
    ("Fill in the form as JSON.", ""),
)
"""Without reference answers: the schema alone says what is right."""
_CODE: tuple[tuple[str, str, str, tuple[tuple[Any, Any], ...]], ...] = (
    (
        "Write a function `largest(numbers)` that gives back the largest number of a list, and None for an empty one.",
        "largest",
        "def largest(numbers):\n    best = None\n    for number in numbers:\n"
        "        if best is None or number > best:\n            best = number\n    return best\n",
        (([3, 9, 2], 9), ([-5, -2, -9], -2), ([7], 7), ([], None)),
    ),
    (
        "Write a function `grade(points)`: 'A' from 90 points on, 'B' from 75 on, else 'C'.",
        "grade",
        "def grade(points):\n    if points >= 90:\n        return 'A'\n    if points >= 75:\n        return 'B'\n"
        "    return 'C'\n",
        ((100, "A"), (90, "A"), (89, "B"), (75, "B"), (74, "C"), (0, "C"), (91, "A"), (76, "B")),
    ),
    (
        "Write a function `vowels(text)` that counts the vowels a, e, i, o, u, small or large.",
        "vowels",
        "def vowels(text):\n    count = 0\n    for char in text.lower():\n        if char in 'aeiou':\n"
        "            count += 1\n    return count\n",
        (("Hello", 2), ("xyz", 0), ("AEIOU", 5), ("", 0), ("education", 5)),
    ),
    (
        "Write a function `fibonacci(n)` with fibonacci(0) = 0 and fibonacci(1) = 1.",
        "fibonacci",
        "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a\n",
        ((0, 0), (1, 1), (2, 1), (3, 2), (10, 55), (20, 6765)),
    ),
    (
        "Write a program that reads whole numbers, one a line, and prints the sum of the even ones.",
        "",
        "import sys\n\ntotal = 0\nfor line in sys.stdin:\n    number = int(line)\n    if number % 2 == 0:\n"
        "        total += number\nprint(total)\n",
        (("1\n2\n3\n4\n", "6\n"), ("7\n", "0\n"), ("-2\n10\n5\n", "8\n")),
    ),
)
"""(prompt, function to call or "" for a program, solution, (argument or input, result or output) of each test)."""


def _plain(name: str, rows: tuple[tuple[str, str], ...]) -> list[Problem]:
    return [Problem(f"{name}-{index}", prompt, answer) for index, (prompt, answer) in enumerate(rows, start=1)]


def _choices(params: ChoiceParams) -> list[Problem]:
    made = []
    for index, (prompt, options, answer) in enumerate(_CHOICES, start=1):
        listed = "\n".join(f"{letter}. {text}" for letter, text in zip("ABCD", options, strict=True))
        number = "ABCD".index(answer)
        answers = {"text": options[number], "from_0": str(number), "from_1": str(number + 1)}
        meta = {params.column or "choices": list(options)}
        made.append(Problem(f"choice-{index}", f"{prompt}\n{listed}", answers.get(params.reference, answer), meta))
    return made


def _code(column: str) -> list[Problem]:
    made = []
    for index, (prompt, entry, solution, pairs) in enumerate(_CODE, start=1):
        tests = [
            {"call": entry, "args": [given], "returns": result} if entry else {"input": given, "output": result}
            for given, result in pairs
        ]
        meta: dict[str, Any] = {column: tests, "solution": solution}
        made.append(Problem(f"code-{index}", prompt, solution, meta | ({"entry_point": entry} if entry else {})))
    return made


_MATHS = frozenset({"numeric", "equations", "math"})


def _by_numbers(params: object) -> bool:
    """Asks the kind numeric whether an answer is right."""
    return isinstance(params, LengthParams) and params.shape == "cosine" and params.right_by == "numeric"


def problems_builtin(rubric: Rubric) -> list[Problem]:
    """Problems with answers of the kind that the rubric reads. Raises DataError where it reads a field that they do not
    have."""
    kinds = {part.component.kind for part in rubric.parts}
    code = next((part.params for part in rubric.parts if isinstance(part.params, CodeParams)), None)
    choice = next((part.params for part in rubric.parts if isinstance(part.params, ChoiceParams)), None)
    if code is not None:
        problems = _code(code.tests)
    elif choice is not None:
        problems = _choices(choice)
    elif "json_schema" in kinds:
        problems = _plain("json", _JSON)
    elif kinds & _MATHS or any(_by_numbers(part.params) for part in rubric.parts):
        problems = [*_plain("number", _NUMBERS), *_plain("expression", _EXPRESSIONS)]
    else:
        problems = [*_plain("number", _NUMBERS), *_plain("words", _WORDS)]
    columns = rubric.columns
    if missing := sorted(columns.keys() - problems[0].fields):
        raise DataError(
            f"the reward component {columns[missing[0]]!r} reads the field {missing[0]!r}, which the built-in "
            "problems do not have; probe it on a dataset that has it"
        )
    return problems
