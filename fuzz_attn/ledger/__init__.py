"""Ledger: the defects of published kernels, as data, each with the case that shows it.

``defects`` loads the table ``ledger.toml`` and the cases in ``cases/``. ``replaying`` replays them on every pinned
version, and ``summaries`` writes them as text, as Markdown and as JSON, and starts their pages.
"""
