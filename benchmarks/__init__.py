"""Interleaved comparison of minigrad with its peers; README.md says how to run and read it."""
