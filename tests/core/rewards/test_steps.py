"""From steps in a completion's text to rewards at its tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.records.types import ComponentScore, StepScore
from grpo_core.rewards.steps import completion_step_rewards, step_ends


class Pieces:
    """A tokenizer whose tokens are pieces of UTF-8; as with byte-level ones, half a character is decoded to �."""

    def __init__(self, *pieces):
        self.pieces = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        self.decoded = 0

    def decode(self, tokens, **_):
        self.decoded += 1
        return b"".join(self.pieces[token] for token in tokens).decode(errors="replace")

    def all(self):
        return list(range(len(self.pieces)))


def ends(tokenizer, *characters):
    return step_ends(tokenizer.all(), characters, tokenizer.decode)


def test_a_step_ends_at_the_token_that_completes_it():
    text = Pieces("2 ", "+ 3", " = ", "5", ", ", "1+1", "=2")
    assert (ends(text, 9), ends(text, 9, 16), ends(text, 1), ends(text)) == ([3], [3, 6], [0], [])
    text = Pieces("2+3=", "5. So 4", "+4=8 and", " more")  # a token that straddles the end belongs to the step
    assert (ends(text, 5), ends(text, 4), ends(text, 15, 16)) == ([1], [0], [2, 2])
    assert ends(Pieces("", "1+1=2", "", ""), 5) == [1]  # tokens without text
    for end in (0, 4):
        with pytest.raises(ValueError, match=f"steps end at characters {end} to {end} of a text of 3"):
            ends(Pieces("ab", "c"), end)


def test_a_character_in_several_tokens_ends_with_the_last_of_them():
    face = "😀".encode()
    text = Pieces("a", face[:1], face[1:3], face[3:], "b")
    assert ends(text, 1, 2, 3) == [0, 3, 4]
    # Bytes that never become a character are covered by what comes after, or by the last token.
    assert ends(Pieces("a", b"\xff", "b"), 1, 2, 3) == [0, 2, 2]
    assert ends(Pieces("a", b"\xff"), 2) == [1]


@given(st.lists(st.text(max_size=4), min_size=1, max_size=12), st.data())
def test_it_is_the_first_prefix_that_covers_the_end(pieces, data):
    pieces = [piece.encode(errors="replace").decode().replace("\ufffd", "?") for piece in pieces]
    text = "".join(pieces)
    if not text:
        return
    characters = sorted(data.draw(st.sets(st.integers(1, len(text)), min_size=1)))
    expected = [
        next(n for n in range(len(pieces)) if len("".join(pieces[: n + 1])) >= character) for character in characters
    ]
    assert ends(Pieces(*pieces), *characters) == expected


def test_prefixes_are_decoded_a_few_times_for_each_step():
    text = Pieces(*["x"] * 4096)
    assert ends(text, 100, 2000, 4000) == [99, 1999, 3999]
    assert text.decoded <= 1 + 3 * 12


# ---------------------------------------------------------------------- components together

END = Pieces("2+3", "=5", " 1", "+1=3", "<eos>")  # the last is the end token
TWO = ComponentScore(value=0.5, steps=(StepScore(end=5, value=1.0), StepScore(end=11, value=0.0)))


def rewards(weights, tokenizer=END, **components):
    eos = frozenset({len(tokenizer.pieces) - 1}) if tokenizer is END else frozenset[int]()
    return completion_step_rewards(components, weights, tokenizer.all(), tokenizer, eos)


def of(value):
    return ComponentScore(value=value)


def test_steps_are_paid_where_they_end_and_the_rest_at_the_last_token():
    weights = {"steps": 0.5, "right": 2.0, "form": 1.0}
    assert rewards(weights, steps=TWO, right=of(1.0), form=of(0.25)) == [(1, 0.5), (3, 0.0), (4, 2.25)]
    text = Pieces("2+3=5 1+1", "=3")  # what falls on one token is added
    assert rewards({"steps": 1.0, "right": -3.0}, text, steps=TWO, right=of(0.5)) == [(0, 1.0), (1, -1.5)]
    assert rewards({"steps": 0.0, "right": 1.0}, steps=TWO, right=of(1.0)) == [(4, 1.0)]  # no weight, no step
    assert rewards({"steps": 1.0}, steps=ComponentScore(value=0.0, steps=())) == []
    failed = ComponentScore(value=None, error="ZeroDivisionError: division by zero")
    assert rewards({"steps": 1.0, "right": 1.0}, steps=TWO, right=failed) == [(4, 0.0)]
