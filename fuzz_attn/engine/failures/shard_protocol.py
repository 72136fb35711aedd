"""What the life of a failure needs of the campaign that found it."""

from __future__ import annotations

from typing import Protocol

from fuzz_attn.counterexamples.counterexample import Counterexample
from fuzz_attn.engine.events import Emit, News
from fuzz_attn.engine.explainer import Explainer
from fuzz_attn.engine.failures.confirmation import Launches
from fuzz_attn.engine.orders import Order, Ready
from fuzz_attn.oracle.verdict import Verdict


class Shard(Launches, Protocol):
    """What a failure's life needs of the campaign."""

    emit: Emit
    news: News
    """Returns what other shards have found since the last call."""

    @property
    def launch_seconds(self) -> float:
        """After how many seconds a launch counts as a hang."""

    @property
    def ready(self) -> Ready:
        """What the worker said when it was ready."""

    @property
    def explainer(self) -> Explainer | None:
        """What explains failures on another backend; None where the shard's own does."""

    @property
    def keeps(self) -> bool:
        """Whether the target is seen to keep something between calls."""

    def signed(self, order: Order, verdict: Verdict) -> Counterexample:
        """Return a new counterexample of an order."""

    def digest(self, order: Order) -> str:
        """Return the digest of an order's tensors, empty where it cannot be computed."""
