"""Other ways to judge a case: ``in_process`` without a worker process, ``explanation`` with more about the cause."""
