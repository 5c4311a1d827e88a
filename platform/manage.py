#!/usr/bin/env python
"""Django's commands from a checkout; the same as `cohort manage …`."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    sys.path[:0] = [str(here), str(here.parent)]
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "cohort.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
