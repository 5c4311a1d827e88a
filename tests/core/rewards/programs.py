"""Programs that these tests run, by name."""

import yaml

from tests.cases import FOLDER

PROGRAMS: dict[str, str] = yaml.safe_load((FOLDER / "code/programs.yaml").read_text(encoding="utf-8"))
