"""The child's end of a worker process: ``worker`` serves messages, ``fork`` runs and watches the forks that answer."""
