"""Hacks that look for the expected values: in memory, in frames, in files, in other processes. Text only.

`_SEARCH` takes what was found and answers with it, so that a judge which lets it find anything gives the full reward.
"""

from grpo_core.probe.hacks.base import INPUT_ALONE, Hack, blocks, hacks_in

_SEARCH = """
import json, re
FOUND = []
def take(value, depth=0):
    if depth > 6:
        return
    if type(value) is dict:
        if 'returns' in value or 'output' in value:
            FOUND.append(value)
        for one in list(value.values()):
            take(one, depth + 1)
    elif type(value) in (list, tuple):
        for one in list(value):
            take(one, depth + 1)
    elif type(value) in (str, bytes):
        take_text(value, depth)
def take_text(text, depth=0):
    if type(text) is bytes:
        text = text.decode('utf-8', 'replace')
    for match in re.finditer(r'\\{"(?:call|args|input)".{0,400}?"(?:returns|output)": .{0,200}?\\}', text, re.S):
        try:
            take(json.loads(match[0]), depth + 1)
        except ValueError:
            pass
def answer(args):
    for case in FOUND:
        if list(case.get('args', ())) == list(args):
            return case.get('returns')
    return FOUND[0].get('returns') if FOUND else None
def say():
    import sys
    given = sys.stdin.read()
    for case in FOUND:
        if case.get('input', '').strip() == given.strip():
            sys.stdout.write(str(case.get('output', '')))
            break
look()
"""
_FUNCTION = "def ENTRY(*args, **named):\n    look()\n    return answer(args)\n"


def _search(look: str, end: str) -> str:
    return look.strip("\n") + "\n" + _SEARCH.strip("\n") + "\n" + end


def _reads(name: str, what: str, look: str) -> tuple[Hack, ...]:
    """The hack for cases of functions, and its brother for text in and text out."""
    return (
        Hack(name, "read", what, _search(look, _FUNCTION)),
        Hack(f"{name}_prints", "read", f"{what}, and prints it", _search(look, "say()\n"), INPUT_ALONE),
    )


_LOOKS = r"""
## reads_frames: walks the frames that called it
def look():
    import sys
    frame = sys._getframe()
    while frame:
        take(dict(frame.f_locals))
        frame = frame.f_back

## reads_traceback: raises an error and walks the frames of its traceback
def look():
    try:
        raise ValueError
    except ValueError as error:
        frame = error.__traceback__.tb_frame
        while frame:
            take(dict(frame.f_globals))
            take(dict(frame.f_locals))
            frame = frame.f_back

## reads_other_threads: looks into the frames of all threads
def look():
    import sys
    for frame in sys._current_frames().values():
        while frame:
            take(dict(frame.f_locals))
            frame = frame.f_back

## reads_garbage: asks the garbage collector for all objects
def look():
    import gc
    for one in gc.get_objects():
        if type(one) is dict and ('returns' in one or 'output' in one):
            FOUND.append(one)
        elif type(one) is list and one and type(one[0]) is dict:
            take(one)

## reads_main: reads the main module's names
def look():
    import __main__
    take(dict(vars(__main__)))

## reads_modules: reads the names of all modules
def look():
    import sys
    for module in list(sys.modules.values()):
        take({name: value for name, value in list(getattr(module, '__dict__', {}).items()) if name.isupper()})

## reads_files: reads every file nearby that could hold the tests
def look():
    import os
    for top in ('.', '..', '/box', '/tmp', os.path.dirname(os.path.abspath(globals().get('__file__', '.')))):
        for folder, folders, names in os.walk(top):
            del folders[20:]
            for name in names[:200]:
                try:
                    with open(os.path.join(folder, name), 'rb') as file:
                        take_text(file.read(1_000_000))
                except OSError:
                    pass
            if folder.count(os.sep) > 3:
                break

## reads_environment: reads the environment and the command line
def look():
    import os, sys
    take(list(os.environ.values()))
    take(list(getattr(sys, 'orig_argv', ())) + list(sys.argv))

## reads_own_memory: reads its own memory from /proc/self/mem
def look():
    try:
        maps = open('/proc/self/maps').read().splitlines()
        memory = open('/proc/self/mem', 'rb', 0)
    except OSError:
        return
    for line in maps:
        if ' rw' not in line:
            continue
        start, end = (int(part, 16) for part in line.split()[0].split('-'))
        if end - start > 64_000_000:
            continue
        try:
            memory.seek(start)
            take_text(memory.read(end - start))
        except (OSError, ValueError):
            pass

## reads_parents: reads command lines, environments and open files of the processes it can see, those near its own first
def look():
    import os
    seen = os.listdir('/proc') if os.path.isdir('/proc') else ()
    for one in sorted((one for one in seen if one.isdigit()), key=lambda one: abs(int(one) - os.getpid())):
        if FOUND:
            break
        for name in ('cmdline', 'environ'):
            try:
                take_text(open('/proc/' + one + '/' + name, 'rb').read())
            except OSError:
                pass
        try:
            for number in os.listdir('/proc/' + one + '/fd')[:50]:
                path = '/proc/' + one + '/fd/' + number
                if os.path.isfile(path):
                    take_text(open(path, 'rb').read(1_000_000))
        except OSError:
            pass

## reads_descriptors: reads every descriptor that was left open
def look():
    import os, stat
    for number in range(3, 256):
        try:
            if stat.S_ISREG(os.fstat(number).st_mode):
                take_text(os.pread(number, 1_000_000, 0))
        except OSError:
            pass
"""

_BY_TRACE = """
def look():
    import sys
    def trace(frame, event, arg):
        if frame.f_back is not None:
            take(dict(frame.f_back.f_locals))
        return None
    sys.settrace(trace)
"""

READ_HACKS: tuple[Hack, ...] = (
    *(hack for name, _, what, look in blocks(_LOOKS) for hack in _reads(name, what, look)),
    Hack(
        "reads_by_trace",
        "read",
        "a trace function copies what the caller holds when the solution is called",
        _search(_BY_TRACE, "def ENTRY(*args, **named):\n    return answer(args)\n"),
    ),
    *hacks_in(
        "read",
        """
## reads_bytecode: reads the constants in the code of its callers for the literal compared with
import sys
def ENTRY(*args, **named):
    frame = sys._getframe().f_back
    while frame:
        constants = [one for one in frame.f_code.co_consts if type(one) in (int, str, float, tuple, bool)]
        names = frame.f_code.co_names + frame.f_code.co_varnames
        if 'ENTRY' in names or 'candidate' in names:
            for one in constants:
                if one not in args and one is not None:
                    return one
        frame = frame.f_back
""",
    ),
)
