"""Shards read what others have found from a file: in parts, twice, or damaged, it does no harm."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import Sequence
from fuzz_attn.counterexamples import signed
from fuzz_attn.engine.events import FailureChanged, FailureFound, ignore
from fuzz_attn.engine.failures.life import FailureLives
from fuzz_attn.engine.shards import NEWS_NAME, NewsFile, NewsReader, is_news
from fuzz_attn.oracle.verdict import Verdict


def changed(number: int, *, done: bool = True, same_as: str = "") -> FailureChanged:
    found = signed("t", "unified", None, AttentionCase(sequences=(Sequence(1, 3),)), Verdict("oracle", "nan", "wrong"))
    found = msgspec.structs.replace(found, confirmation="confirmed")
    return FailureChanged(0, number, found, f"{number}.json", done=done, same_as=same_as)


def found(number: int, *, saved: bool = False, followed: bool = True) -> FailureFound:
    return FailureFound(0, number, changed(number).counterexample, f"{number}.json", 1.0, saved, followed)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / NEWS_NAME


def line(number: int) -> bytes:
    return msgspec.json.encode(changed(number))


def test_each_call_returns_what_is_new(path: Path) -> None:
    read, late = NewsReader(path), NewsReader(path)
    assert read() == []
    news = NewsFile(path)
    assert read() == []
    news.append(line(0))
    assert read() == [changed(0)]
    news.append(line(1))
    news.append(msgspec.json.encode(found(2)))
    assert read() == [changed(1), found(2)]
    assert read() == []
    assert late() == [changed(0), changed(1), found(2)]
    news.remove()
    news.append(line(3))
    assert not path.exists()


def test_a_line_that_is_not_complete_is_read_when_it_is(path: Path) -> None:
    read, whole = NewsReader(path), line(0) + b"\n"
    path.write_bytes(whole[:100])
    assert read() == []
    with path.open("ab") as file:
        file.write(whole[100:] + line(1)[:7])
    assert read() == [changed(0)]


@pytest.mark.parametrize("damaged", [b"", b"{", b"\xff\xfe", b"[1]", b'{"event":"failure_changed"}', line(0)[:50]])
def test_a_damaged_line_is_skipped(damaged: bytes, path: Path) -> None:
    path.write_bytes(damaged + b"\n" + line(1) + b"\n")
    assert NewsReader(path)() == [changed(1)]


def test_a_line_after_one_that_was_cut_off_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that was full for a moment has cut the first one off."""
    news = NewsFile(path)
    write = "fuzz_attn.engine.shards.os.write"
    with monkeypatch.context() as patched:
        real = os.write
        patched.setattr(write, lambda file, text: real(file, text[:30]))
        news.append(line(0))
    news.append(line(1))
    assert NewsReader(path)() == [changed(1)]


def test_a_full_disk_is_no_error() -> None:
    news = NewsFile(Path("/dev/full"))
    news.append(line(0))


def test_only_complete_failures_are_news() -> None:
    assert is_news(changed(0))
    assert not is_news(changed(0, done=False))
    assert is_news(changed(0, same_as="other.json")), "nobody follows it any more"
    assert is_news(found(0))
    assert not is_news(found(0, saved=True))
    assert not is_news(found(0, followed=False))
    assert not is_news("else")


def test_news_that_comes_twice_changes_nothing_and_later_news_replaces_it(tmp_path: Path) -> None:
    shard: Any = SimpleNamespace(emit=ignore)
    lives = FailureLives(shard, 1, lambda: tmp_path, None, lambda: 0.0)
    for _ in range(3):
        lives.learn([changed(0), changed(1)])
    assert [(known.shard, known.number) for known in lives.known] == [(0, 0), (0, 1)]
    later = msgspec.structs.replace(
        changed(0), counterexample=msgspec.structs.replace(changed(0).counterexample, tries=3)
    )
    lives.learn([later])
    assert {known.number: known.found.tries for known in lives.known} == {0: 3, 1: 0}
