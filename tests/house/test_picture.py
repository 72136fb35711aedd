"""The picture in the README shows what `fuzz-attn show` prints."""

import html
import re
from pathlib import Path

from click.testing import CliRunner

from fuzz_attn.cli.main import main

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "failure.svg"
FAILURE = "tests/counterexamples/unified/window_too_long.json"
COMMAND = f"fuzz-attn show {FAILURE} --svg {PICTURE.relative_to(ROOT)}"


def words_of(picture: str) -> list[str]:
    """Return the words of the terminal in a picture, without its title."""
    texts = re.findall(r'<text class="[^"]*-r\d+".*?>(.*?)</text>', picture, flags=re.DOTALL)
    return html.unescape(" ".join(texts)).split()


def test_picture_is_up_to_date() -> None:
    result = CliRunner().invoke(main, ["show", str(ROOT / FAILURE)])
    expected = [word for word in result.stdout.split() if "fuzz-attn" not in word and FAILURE not in word]
    shown = [word for word in words_of(PICTURE.read_text()) if "fuzz-attn" not in word and FAILURE not in word]
    assert shown == expected, f"make it again at the root: {COMMAND}"
