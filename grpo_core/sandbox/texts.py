"""What is run inside boxes, compiled once here: compiling it at each launch would cost more than a tenth of it."""

import marshal
from importlib import resources
from types import CodeType


def _compiled(name: str) -> CodeType:
    text = resources.files("grpo_core.sandbox").joinpath(f"{name}.py").read_text(encoding="utf-8")
    return compile(text, f"<{name}>", "exec", dont_inherit=True, optimize=0)


BOOT = """import marshal,os
n=int.from_bytes(os.read(3,4),"big")
b=b""
while len(b)<n:b+=os.read(3,n-len(b)) or os._exit(0)
exec(marshal.loads(b))"""
"""What `python -c` is given: it takes the launcher from the channel. Nothing runs when nobody is out there."""
FLAGS = ("-P", "-s", "-S", "-X", "utf8", "-c", BOOT)
"""As -I, which would ignore the variable below; the environment holds nothing else of Python's."""
HASHES = ("PYTHONHASHSEED", "0")
"""Sets and dictionaries of a program come in the same order in every box: what it says must not depend on that."""
LAUNCHER = marshal.dumps(_compiled("launcher"))
CHANNEL_TEXT, LANDLOCK_CHILD = _compiled("channel"), _compiled("landlock_child")
