"""Looking at a run: where its time went, rank by rank, and why.  The files, in reading order: README.md in this
folder."""
