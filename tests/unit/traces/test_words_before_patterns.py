"""Words that are looked for before a pattern is: none of them hides a name that the pattern fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.words import holds_any
from stepscope.traces import blocking_calls, kernel_names

TABLES = {
    "communication": [(words, pattern) for words, pattern, _ in kernel_names.COMMUNICATION_NAMES],
    "product": [(kernel_names._PRODUCT_WORDS, kernel_names._PRODUCT)],
    "blocking": [(words, pattern) for _, words, pattern in blocking_calls._CALLS],
}


@pytest.mark.parametrize("table", TABLES)
@given(data=st.data())
def test_a_name_that_a_pattern_fits_holds_one_of_its_words(table: str, data: st.DataObject) -> None:
    words, pattern = data.draw(st.sampled_from(TABLES[table]))
    name = data.draw(st.from_regex(pattern, alphabet=st.characters(codec="ascii")))
    assert holds_any(name.lower(), words)


def test_words_keep_most_names_from_the_patterns() -> None:
    name = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, at::detail::Array<char*, 1>>"
    )
    assert not any(holds_any(name.lower(), words) for words, _ in TABLES["communication"] + TABLES["product"])
