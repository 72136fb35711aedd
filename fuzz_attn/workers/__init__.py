"""Workers: processes that survive what a target does to them, and their supervision. Nothing here knows attention.

``worker_process`` is the parent's end of a process, which limits its time and starts it again, and ``worker`` the
child's, which answers from forks (``fork``) and may share a GPU (``sharing``); ``messages`` go between them. Both are
forks of a ``fork_server``.
"""
