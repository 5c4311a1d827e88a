import sys

from cohort.evidence.verify.command import main

sys.exit(main())
