"""Wrong slots: which arithmetic puts tokens where they are found."""

from fuzz_attn.operations.cache_write.write_explain import Place, mistakes_of_slots

BEHIND = [Place(token, slot, slot + 1, 16) for token, slot in enumerate((3, 9, 20))]


def test_an_arithmetic_is_told_by_three_tokens() -> None:
    assert mistakes_of_slots(BEHIND) == ["each token is written to the slot behind its own"]


def test_fewer_tokens_tell_none() -> None:
    assert mistakes_of_slots(BEHIND[:2]) == []


def test_a_token_elsewhere_contradicts_it() -> None:
    assert mistakes_of_slots([*BEHIND, Place(3, 30, 30, 16)]) == []
