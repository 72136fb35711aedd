"""Merging of attention states: several partial outputs of each row, with the logarithms of their sums, become one.

- ``state_case`` has the case, the domain and all aspects; ``state_draws`` draws cases.
- ``state_experiment`` has the tensors, what is called with them, the launches, the relations and the reference.
- ``state_explain`` says what a kernel did wrong. ``merging_states`` is the operation itself.
"""
