"""Where data that is not Python lies: in the wheel next to this package, in a checkout at its root."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
_DATA = PACKAGE / "_data"
ROOT = _DATA if _DATA.is_dir() else PACKAGE.parent.parent

TEMPLATES = ROOT / "templates"
STATIC = PACKAGE / "web" / "static"
