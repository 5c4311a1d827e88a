"""tags takes a sequence of blocks exactly when the pattern of their letters does."""

import re

from hypothesis import given
from hypothesis import strategies as st

from grpo_core.rewards.tags import TagsParams, _entries, _in_order


@given(
    st.text("ab", max_size=8),
    st.lists(st.sampled_from(["a", "b", "a?", "b*", "a+", "b{2}", "a{1,2}"]), min_size=1, max_size=5),
)
def test_a_sequence_is_what_the_same_pattern_of_letters_is(names, sequence):
    entries = _entries(TagsParams(sequence=tuple(sequence)))
    assert _in_order(list(names), entries) == (re.fullmatch("".join(sequence), names) is not None)
