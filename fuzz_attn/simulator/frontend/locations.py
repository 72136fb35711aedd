"""Locations: the source line of an operation, found through the aliases that a module's text defines."""

from __future__ import annotations

import re

from fuzz_attn.simulator.findings import UNKNOWN_LOCATION, Location

_FILE = re.compile(r'^"(.*)":(\d+):\d+(?: to .*)?$')
_NAMED = re.compile(r'^"[^"]*"\((.*)\)$')
_LIBRARY = ("/triton/language/", "<unknown>")


class Locations:
    """The location aliases of a module. A location in Triton's own library counts as that of its caller."""

    def __init__(self, text: str) -> None:
        defined = (line.partition(" = loc(") for line in text.splitlines() if line.startswith("#loc"))
        self._aliases = {name: location[:-1] for name, _, location in defined}
        self._known: dict[str, Location] = {}

    def resolve(self, text: str) -> Location:
        """Return the source line of a location, given what stands between the brackets of `loc(...)`."""
        known = self._known.get(text)
        if known is None:
            known = self._known[text] = self._resolve(text)
        return known

    def chain(self, text: str) -> tuple[Location, ...]:
        """Return the source line of a location and those of the calls around it, the innermost first."""
        if text.startswith("#"):
            target = self._aliases.get(text)
            return () if target is None else self.chain(target)
        if text.startswith("callsite("):
            callee, caller = _split_callsite(text[len("callsite(") : -1])
            return (*self.chain(callee), *self.chain(caller))
        place = self.resolve(text)
        return () if any(part in place.file for part in _LIBRARY) else (place,)

    def _resolve(self, text: str) -> Location:
        if text.startswith("#"):
            target = self._aliases.get(text)
            return UNKNOWN_LOCATION if target is None else self.resolve(target)
        if text.startswith("callsite("):
            callee, caller = _split_callsite(text[len("callsite(") : -1])
            inner = self.resolve(callee)
            return self.resolve(caller) if any(part in inner.file for part in _LIBRARY) else inner
        file = _FILE.match(text)
        if file:
            return Location(file.group(1), int(file.group(2)))
        named = _NAMED.match(text)
        return self.resolve(named.group(1)) if named else UNKNOWN_LOCATION


def _split_callsite(text: str) -> tuple[str, str]:
    if "(" not in text:
        callee, _, caller = text.partition(" at ")
        return callee, caller or "unknown"
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0 and text.startswith(" at ", position):
            return text[:position], text[position + 4 :]
    return text, "unknown"
