"""Prints the share of lines that a run of the tests covered, for each folder of the product, from SlipCover's JSON."""

import json
import sys
from collections import Counter
from pathlib import Path


def main(report: Path) -> None:
    covered, lines = Counter[str](), Counter[str]()
    for name, file in json.loads(report.read_text(encoding="utf-8"))["files"].items():
        for folder in (str(Path(name).parent), "all"):
            covered[folder] += len(file["executed_lines"])
            lines[folder] += len(file["executed_lines"]) + len(file["missing_lines"])
    print("covered   lines  folder")
    for folder in sorted(lines):
        print(f"{covered[folder] / max(1, lines[folder]):7.1%} {lines[folder]:7d}  {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
