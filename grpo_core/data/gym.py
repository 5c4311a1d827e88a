"""Problems made by reasoning-gym's tasks: which there are, and files of them by name, size and seed.

The names are listed here so that forms can offer them where reasoning-gym is not installed; it is imported only to make
problems, and compiles C when it is installed (the extra `tasks`). A problem carries its whole entry, as JSON, because
the task's scorer reads it: the problem as posed is the one scored, by whatever version. Runs in a separate process
(`grpo tasks`): its generators are a third party's and may take long.
"""

import difflib
import json
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from grpo_core.errors import ConfigError, DataError

PACKAGE = "reasoning-gym"
MAX_SIZE = 100_000
META = "task"
"""Field of a problem that holds the task that made it, and all that its scorer needs."""

TASKS: dict[str, tuple[str, ...]] = {
    field: tuple(names.split())
    for field, names in {
        "algebra": "complex_arithmetic intermediate_integration polynomial_equations polynomial_multiplication "
        "simple_equations simple_integration",
        "algorithmic": "base_conversion binary_alternation binary_matrix caesar_cipher count_primes cryptarithm "
        "game_of_life game_of_life_halting group_anagrams isomorphic_strings jugs letter_counting letter_jumble "
        "manipulate_matrix number_filtering number_sorting palindrome_generation palindrome_partitioning pool_matrix "
        "ransom_note rotate_matrix rotten_oranges sentence_reordering spell_backward spiral_matrix string_insertion "
        "string_manipulation string_splitting string_synthesis word_ladder word_sequence_reversal word_sorting",
        "arithmetic": "basic_arithmetic bitwise_arithmetic calendar_arithmetic chain_sum count_bits decimal_arithmetic "
        "decimal_chain_sum dice fraction_simplification gcd gsm_symbolic lcm leg_counting number_format power_function "
        "prime_factorization products time_intervals",
        "code": "bf codeio",
        "cognition": "arc_1d color_cube_rotation figlet_font modulo_grid needle_haystack number_sequence "
        "rectangle_count",
        "games": "countdown emoji_mystery futoshiki kakurasu knight_swap mahjong_puzzle maze mini_sudoku n_queens "
        "puzzle24 sokoban sudoku survo tower_of_hanoi tsumego",
        "geometry and probability": "advanced_geometry coin_flip simple_geometry",
        "graphs": "course_schedule family_relationships largest_island path_star quantum_lock shortest_path",
        "logic and induction": "acre aiw circuit_logic knights_knaves list_functions self_reference syllogism "
        "zebra_puzzles",
    }.items()
}
"""By field of knowledge."""
LEFT_OUT: dict[str, str] = {
    "ab": "some of its right answers are empty",
    "arc_agi": "its scorer compares tuples, which JSON does not keep",
    "boxnet": "it gives no reference answer",
    "composite": "it is made of other tasks; choose those",
    "graph_color": "it gives no reference answer",
    "propositional_logic": "it gives no reference answer",
    "rearc": "its scorer compares tuples, which JSON does not keep",
    "rubiks_cube": "it gives no reference answer",
    "rush_hour": "it gives no reference answer",
}
"""Tasks of reasoning-gym that are not offered, and why."""
NAMES = tuple(sorted(name for names in TASKS.values() for name in names))


def known(name: str) -> str:
    """The name, when there is such a task. Raises ConfigError, with the nearest one, when not."""
    if name in NAMES:
        return name
    if why := LEFT_OUT.get(name):
        raise ConfigError(f"the task {name} cannot be used: {why}")
    raise ConfigError(f"there is no task {name!r}{nearest(name)}; `grpo tasks` lists all {len(NAMES)}")


def nearest(name: str) -> str:
    """`; did you mean …?`, or nothing when no name is near."""
    matches = difflib.get_close_matches(
        name.strip().lower().replace("-", "_").replace(" ", "_"), NAMES, n=1, cutoff=0.5
    )
    return f"; did you mean {matches[0]}?" if matches else ""


def installed() -> str:
    """reasoning-gym's version. Raises DataError with the remedy where it is missing."""
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        raise DataError(
            "reasoning-gym is not installed here, which makes and scores the problems of tasks. Install it, with a C "
            "compiler at hand: pip install 'cohort-grpo[tasks]'"
        ) from None


def problems(name: str, *, size: int, seed: int, params: Mapping[str, Any] | None = None) -> Iterator[bytes]:
    """Lines of JSON in the layout `plain`, one problem each: id, prompt, answer, and `task`.

    The same arguments make the same problems with the same version of reasoning-gym (of list_functions, another choice
    each time). `params` are the task's own, such as {"max_terms": 3}. Raises ConfigError for a name, a size or
    parameters that cannot be, DataError when reasoning-gym is missing or a problem cannot be stored.
    """
    known(name)
    if not 1 <= size <= MAX_SIZE:
        raise ConfigError(f"a task makes 1 to {MAX_SIZE:,} problems, not {size:,}")
    made_with = installed()
    dataset = _dataset(name, size, seed, params or {})
    for index in range(size):
        entry = dataset[index]
        answer = entry["answer"]
        if not isinstance(answer, str):
            raise DataError(f"problem {index + 1} of the task {name} has no answer in words: {answer!r}")
        line = {
            "id": f"{name}-{seed}-{index}",
            "prompt": entry["question"],
            "answer": answer,
            META: {"name": name, "version": made_with, "params": dict(params or {}), "entry": entry},
        }
        try:
            yield json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        except (TypeError, ValueError) as error:
            raise DataError(f"problem {index + 1} of the task {name} cannot be written as JSON: {error}") from None


def _dataset(name: str, size: int, seed: int, params: Mapping[str, Any]) -> Any:
    import reasoning_gym

    if reserved := sorted({"size", "seed"} & params.keys()):
        raise ConfigError(f"{reserved[0]} is given apart from the task's own parameters")
    try:
        return reasoning_gym.create_dataset(name, size=size, seed=seed, **params)
    except (TypeError, AssertionError, ValueError) as error:
        own = ", ".join(sorted(_parameters(name)))
        raise ConfigError(f"the task {name} does not take these parameters: {error}. It has {own}") from None


def _parameters(name: str) -> list[str]:
    import dataclasses

    from reasoning_gym.factory import DATASETS

    return [field.name for field in dataclasses.fields(DATASETS[name][1]) if field.name not in ("size", "seed")]
