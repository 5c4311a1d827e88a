"""Programs that these tests run, by name."""

import yaml

from tests.tables import FOLDER

PROGRAMS: dict[str, str] = yaml.safe_load((FOLDER / "code_rewards/programs.yaml").read_text(encoding="utf-8"))
