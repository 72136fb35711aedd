"""One module for each kind of operation of the IR; `table` lists them all."""
