"""Configurations and optional arguments are axes of compile keys: each value with each feature and each type."""

from __future__ import annotations

import pytest
from hypothesis.errors import InvalidArgument
from msgspec.structs import replace

from fuzz_attn.case.attention_case import CompileKey
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import LaunchHints
from fuzz_attn.engine.schedule import FIRST_ON_CPU, ON_CPU, play_round
from fuzz_attn.strategies.compile_keys import check_key, key_pool
from fuzz_attn.strategies.launches import optional_arguments

PLAIN = Domain(family="paged")
DOMAIN = replace(PLAIN, configurations=12, arguments=(("fast", (True,)), ("order", ("b", "c"))))
ARGUMENTS = optional_arguments(domain=DOMAIN)


def test_arguments_are_drawn_alone_and_in_pairs() -> None:
    fast, b, c = ("fast", True), ("order", "b"), ("order", "c")
    assert ((), (fast,), (b,), (c,), (fast, b), (fast, c)) == ARGUMENTS
    assert optional_arguments(domain=PLAIN) == ((),)


def test_each_configuration_and_each_argument_meets_each_feature_and_each_type() -> None:
    pool = key_pool(DOMAIN)
    features = {name for key in pool for name in key.compiled}
    assert len(features) > 3
    for name in features:
        having = [key.launch for key in pool if key.has(name)]
        assert {launch.configuration for launch in having} == {*range(12)}
        assert {launch.arguments for launch in having} == {*ARGUMENTS}
    for dtypes in {key.dtypes for key in key_pool(PLAIN) if key.dtypes.q == key.dtypes.kv == key.dtypes.out}:
        assert {key.launch.configuration for key in pool if key.dtypes == dtypes} == {*range(12)}
    assert len({(key.launch.configuration, key.launch.arguments) for key in pool}) == 12 * len(ARGUMENTS)


def test_a_target_without_them_has_the_keys_that_it_had() -> None:
    assert {key.launch.configuration for key in key_pool(PLAIN)} == {0}
    assert {key.launch.arguments for key in key_pool(PLAIN)} == {()}
    assert CompileKey().number == CompileKey(launch=LaunchHints(configuration=0, arguments=())).number
    assert CompileKey().number != CompileKey(launch=LaunchHints(configuration=1)).number


@pytest.mark.parametrize("launch", [LaunchHints(configuration=12), LaunchHints(arguments=(("fast", False),))])
def test_keys_outside_of_a_domain_are_refused(launch: LaunchHints) -> None:
    key = key_pool(DOMAIN)[0]
    check_key(key, domain=DOMAIN)
    with pytest.raises(InvalidArgument, match=r"key\.launch="):
        check_key(replace(key, launch=launch), domain=DOMAIN)


def test_few_rounds_have_all_configurations() -> None:
    drawn: set[int] = set()
    for number in range(4):
        size = ON_CPU if number else FIRST_ON_CPU
        play_round(DOMAIN, 7 + number, 60, lambda case, relation: drawn.add(case.launch.configuration), size)
    assert drawn == {*range(12)}
