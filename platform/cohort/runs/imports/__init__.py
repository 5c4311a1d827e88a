"""Results of other evaluation tools, read from the files they wrote. Nothing here is run and nothing is believed: the
files come from anywhere, are bounded before they are parsed, and what is odd in them is refused by name."""

from cohort.runs.imports.bounds import BadImport
from cohort.runs.imports.files import Upload, read_uploads
from cohort.runs.imports.found import Found

__all__ = ["BadImport", "Found", "Upload", "read_uploads"]
