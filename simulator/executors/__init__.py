"""What carries out the programs of ranks: threads of this process, one at a time (`local.py`)."""
