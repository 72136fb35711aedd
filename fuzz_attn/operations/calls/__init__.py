"""Sequences of calls of one target, as cases of any operation: a bug may need what an earlier call left behind.

- ``call_case`` has the case and its aspects, which are those of the single calls and some of its own, and makes
  sequences of drawn cases.
- ``call_experiment`` hands a call the memory of the call before, as the case says, and runs and judges all.
- ``second_call`` lets a call run in the middle of another one.
- ``call_sequences`` is the operation itself.
"""
