"""Workers: processes that survive what a target does to them, and their supervision. Nothing here knows attention.

``worker_process`` is the parent's end of a process and ``worker`` the child's, which answers from forks (``fork``) and
may share a GPU (``sharing``); ``messages`` go between them, and a ``launch_clock`` says when one is late.
``fork_service`` starts a ``fork_server``, whose forks these processes are.
"""
