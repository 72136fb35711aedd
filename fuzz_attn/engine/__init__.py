"""The engine: campaigns, the processes that run targets, shrinking, replay and statistics."""
