"""The sections of a governance record, one file each, and the facts they are built from."""
