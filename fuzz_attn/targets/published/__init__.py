"""Targets of packages that are not installed: a published wheel, or a checkout.

``place`` says where a target is, ``wheel`` downloads files of a wheel, ``importing`` makes its modules importable, with
stubs for what is not there, ``gpu_answers`` answers a launcher's questions about the GPU on a machine without one.
"""
