"""Results of other evaluation tools, read from the files they wrote. Nothing here is executed or trusted: the
files come from anywhere, are bounded before they are parsed, and what is invalid in them is refused by name."""

from cohort.evaluations.imports.bounds import BadImport, ToolResult
from cohort.evaluations.imports.files import Upload, read_uploads

__all__ = ["BadImport", "ToolResult", "Upload", "read_uploads"]
