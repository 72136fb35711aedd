"""Targets: what can be fuzzed, how it is found and how it is called.

``target`` holds the class, ``built_in`` this project's own kernels, ``loading`` finds a target by its specification.
:mod:`fuzz_attn.binding` says how it is called. ``process_state`` keeps a target's changes to torch's defaults, and to
others of Python, away from the rest of the process.

Of packages that are not installed, a published wheel or a checkout: ``wheel`` downloads files of a wheel, ``importing``
makes its modules importable, with stubs for what is not there, and ``gpu_answers`` answers a launcher's questions about
the GPU on a machine without one.
"""

from fuzz_attn.case.domain import Domain
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.targets.target import Target

__all__ = ["Domain", "RoundingModel", "Target"]
