"""Pictures of machines and of what runs on them.  The files, in reading order: README.md in this folder."""
