"""The fork server: one process imports torch, and the other processes of a run are forks of it.

Importing torch costs more than two CPU seconds, and a fork a few milliseconds. `server` is that process, `service`
starts and ends it, and `fork` asks it for a process. `request` is what it is asked, and by which processes: they find
it by an environment variable. Where none serves, processes are started as usual.
"""
