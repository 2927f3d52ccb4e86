"""The growing row of token ids of one request."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.history import MEDIA_TOKEN, TokenHistory
from forerun.core.prompt import PromptLayout
from tests.core.strategies import layouts, token_ids, units_of


@given(layouts, st.lists(token_ids, max_size=20), st.integers(0, 3))
def test_a_history_is_the_prompt_and_what_was_appended(layout: PromptLayout, output: list[int], spare: int) -> None:
    history = TokenHistory(layout, spare)
    expected: list[int] = []
    for unit in units_of(layout.segments):
        expected += [unit] if isinstance(unit, int) else [MEDIA_TOKEN] * unit.logical_tokens
    views = []
    for token in output:
        views.append((history.tokens, [*expected]))
        history.append(token)
        expected.append(token)
        assert history.last == token
    assert history.tokens.tolist() == expected
    assert (history.size, history.output_tokens) == (len(expected), len(output))
    for view, content in views:
        assert view.tolist() == content, "a view stays what it was when more is appended"


def test_a_view_cannot_be_written() -> None:
    history = TokenHistory(PromptLayout.of_text([1, 2]))
    with pytest.raises(ValueError, match="read-only"):
        history.tokens[0] = 5
    assert history.tokens.dtype == np.int32
