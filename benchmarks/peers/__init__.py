"""One module per framework, each offering `make(workload, seed) -> step`: see workloads.py."""
