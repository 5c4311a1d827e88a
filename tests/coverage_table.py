"""Prints the share of lines that the last run of the tests covered, for each folder of the product."""

from collections import Counter
from pathlib import Path

from coverage import Coverage

ROOT = Path(__file__).parents[1]


def main() -> None:
    coverage = Coverage(data_file=ROOT / ".coverage")
    coverage.load()
    lines, missed = Counter[str](), Counter[str]()
    for name in coverage.get_data().measured_files():
        _, statements, _, missing, _ = coverage.analysis2(name)
        folder = str(Path(name).relative_to(ROOT).parent)
        for key in (folder, "all"):
            lines[key] += len(statements)
            missed[key] += len(missing)
    print("covered   lines  folder")
    for folder in sorted(lines):
        print(f"{1 - missed[folder] / max(1, lines[folder]):7.1%} {lines[folder]:7d}  {folder}")


if __name__ == "__main__":
    main()
