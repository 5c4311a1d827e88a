"""Runs a solution in a child process inside the sandbox: as a program, for one call, or held open for test code.

Part of the text of a program inside the sandbox: imports the standard library only, and little of it, since each
import costs at every launch. Nothing here knows an expected value, so nothing a solution does to it can earn.
"""

from __future__ import annotations

import os
import sys

from grpo_core.rewards.code.inside_values import Unsendable, as_text, decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, NoReturn

    from grpo_core.rewards.code.inside_talk import Talk

FILE = "solution.py"
MAX_ERROR_CHARS = 300


def load(source: str, name: str) -> ModuleType:
    """The solution's module, executed. Raises whatever it raises."""
    module = type(sys)(name)
    module.__file__ = FILE
    sys.modules[name] = module
    sys.argv = [FILE]
    exec(compile(source, FILE, "exec"), module.__dict__)
    return module


def run_program(source: str) -> NoReturn:
    """As `python solution.py`; stdin, stdout and stderr are descriptors 0 to 2 already."""
    status = 0
    try:
        load(source, "__main__")
        _wait_for_threads()
    except SystemExit as ended:
        status = _status(ended)
    except BaseException as error:  # noqa: BLE001 - whatever a solution raises is written to its stderr
        os.write(2, error_text(error).encode("utf-8", "replace"))
        status = 1
    finish(status)


def run_call(source: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: int) -> NoReturn:
    """Writes ["ok", value], ["raised", what] or ["odd", why it is no plain value] to the descriptor `out`."""
    try:
        function = _lookup(load(source, "solution").__dict__, name)
        reply: list[Any] = ["ok", encode(function(*args, **kwargs), _listed)]
        text = as_text(reply)
    except Unsendable as error:
        text = as_text(["odd", str(error)[:MAX_ERROR_CHARS]])
    except RecursionError:
        text = as_text(["raised", "RecursionError"])
    except SystemExit as ended:
        text = as_text(["raised", f"it ended the process with status {_status(ended)}"])
    except BaseException as error:  # noqa: BLE001 - as above
        text = as_text(["raised", error_text(error)])
    while text:
        text = text[os.write(out, text) :]
    os._exit(0)


def error_text(error: BaseException) -> str:
    """`line 3: ValueError: no such thing`, with the last line of the solution's own."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == FILE:
            line = trace.tb_lineno
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename == FILE:
        line = error.lineno or 0
    try:
        text = str(error.msg if isinstance(error, SyntaxError) else error)
    except BaseException:  # noqa: BLE001 - the text of an error is the solution's code too
        text = ""
    where = f"line {line}: " if line else ""
    return f"{where}{type(error).__name__}" + (f": {text[:MAX_ERROR_CHARS]}" if text else "")


def finish(status: int) -> NoReturn:
    if "atexit" in sys.modules:
        sys.modules["atexit"]._run_exitfuncs()
    try:
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):
        status = status or 120
    os._exit(status & 255)


def _wait_for_threads() -> None:
    threading = sys.modules.get("threading")
    for thread in threading.enumerate() if threading else ():
        if thread is not threading.main_thread() and not thread.daemon:  # type: ignore[union-attr]
            thread.join()


def _status(ended: SystemExit) -> int:
    if ended.code is None or isinstance(ended.code, int):
        return int(ended.code or 0)
    os.write(2, str(ended.code)[:MAX_ERROR_CHARS].encode("utf-8", "replace"))
    return 1


def _lookup(space: dict[str, Any], name: str) -> Any:
    """The function `name`, a dotted name, or a method of a class `Solution`, as such problems often ask for."""
    first, *rest = name.split(".")
    if first in space:
        target = space[first]
    elif "Solution" in space and hasattr(space["Solution"], first):
        target = getattr(space["Solution"](), first)
    else:
        raise NameError(f"there is no {first!r} in the solution")
    for part in rest:
        target = getattr(target, part)
    return target


def _listed(value: Any) -> Any:
    """The values of an iterator (a generator, map, zip) or of a view of a dict count as a list."""
    kind = type(value)
    if hasattr(kind, "__next__") or kind in (type({}.keys()), type({}.values()), type({}.items())):
        return ["g", [encode(item, _listed) for item in value]]
    raise Unsendable(f"an object of the class {kind.__name__}")


class Server:
    """Answers what test code asks of the solution. Objects that are no plain data stay here; the tests hold numbers."""

    def __init__(self, talk: Talk, space: dict[str, Any]) -> None:
        self._talk = talk
        self._space = space
        self._kept: list[Any] = []

    def answer(self, request: list[Any]) -> list[Any]:
        """["v", value, changed arguments or null] or ["x", built-in class, its own classes, text, where]."""
        try:
            return self._do(*request)
        except SystemExit as ended:
            os._exit(_status(ended) & 255)
        except BaseException as error:  # noqa: BLE001 - whatever a solution raises is sent to the tests
            return self._raised(error)

    def _do(self, what: str, *rest: Any) -> list[Any]:
        if what == "name":
            return ["v", self._wire(_lookup(self._space, rest[0])), None]
        target = self._kept[rest[0]]
        if what == "call":
            args = [self._value(wire) for wire in rest[1]]
            kwargs = {name: self._value(wire) for name, wire in rest[2]}
            result = target(*args, **kwargs)
            changed = [self._wire(argument) for argument in args] if result is None else None
            return ["v", self._wire(result), changed if changed != rest[1] else None]
        if what == "get":
            return ["v", self._wire(getattr(target, rest[1])), None]
        if what == "set":
            setattr(target, rest[1], self._value(rest[2]))
            return ["v", None, None]
        if what == "is":
            return ["v", isinstance(target, self._kept[rest[1]]), None]
        return ["v", self._wire(_OPERATIONS[rest[1]](target, *[self._value(wire) for wire in rest[2]])), None]

    def _wire(self, value: Any) -> Any:
        return encode(value, self._held)

    def _held(self, value: Any) -> Any:
        if isinstance(value, type):
            number = self._number(value)
        else:
            self._kept.append(value)
            number = len(self._kept) - 1
        if isinstance(value, type) and issubclass(value, Exception):
            return ["h", number, "exception", _builtin(value), self._chain(value)]
        return ["h", number, "class" if isinstance(value, type) else "object", type(value).__name__, None]

    def _number(self, kind: type) -> int:
        for at, held in enumerate(self._kept):
            if held is kind:
                return at
        self._kept.append(kind)
        return len(self._kept) - 1

    def _chain(self, kind: type) -> list[Any]:
        """[number, name] of the class and of those that it is made from, up to the first of Python's own."""
        return [[self._number(base), base.__name__] for base in kind.__mro__ if base.__module__ != "builtins"]

    def _value(self, wire: Any) -> Any:
        def other(tag: str, rest: list[Any]) -> Any:
            if tag == "h":
                return self._kept[rest[0]]
            number = rest[0]

            def callback(*args: Any, **kwargs: Any) -> Any:
                named = [[name, self._wire(value)] for name, value in kwargs.items()]
                reply = self._talk.request(
                    ["callback", number, [self._wire(argument) for argument in args], named], self.answer
                )
                if reply[0] == "x":
                    raise getattr(__import__("builtins"), reply[1])(reply[3])
                return self._value(reply[1])

            return callback

        return decode(wire, other)

    def _raised(self, error: BaseException) -> list[Any]:
        try:
            text = str(error.args[0]) if len(error.args) == 1 else str(error)
        except BaseException:  # noqa: BLE001 - the text of an error is the solution's code too
            text = ""
        return ["x", _builtin(type(error)), self._chain(type(error)), text[:MAX_ERROR_CHARS], error_text(error)]


def _builtin(kind: type) -> str:
    """Name of the nearest built-in class of errors."""
    return next((base.__name__ for base in kind.__mro__ if base.__module__ == "builtins"), "Exception")


def serve(source: str, talk: Talk) -> NoReturn:
    """Loads the solution, says so, and answers until nobody asks."""
    try:
        module = load(source, "solution")
    except SystemExit as ended:
        os._exit(_status(ended) & 255)
    except BaseException as error:  # noqa: BLE001 - as above
        talk.send(["broken", error_text(error)])
        os._exit(1)
    server = Server(talk, module.__dict__)
    talk.send(["loaded"])
    while True:
        request = talk.receive()
        answer = server.answer(request)
        try:
            talk.send(answer)
        except (Unsendable, RecursionError) as error:
            talk.send(["v", ["?", f"{error}"[:MAX_ERROR_CHARS]], None])


def _contains(container: Any, other: Any) -> bool:
    return other in container


def _operations() -> dict[str, Any]:
    import operator

    names = """add sub mul truediv floordiv mod pow matmul and_ or_ xor neg pos abs invert lt le gt ge getitem setitem
        delitem""".split()  # noqa: SIM905 - a list of words reads better as words
    operations: dict[str, Any] = {name: getattr(operator, name) for name in names}
    operations |= {
        "len": len,
        "iter": iter,
        "next": next,
        "str": str,
        "repr": repr,
        "contains": _contains,
        "bool": bool,
    }
    operations |= {"int": int, "float": float, "round": round, "reversed": reversed}
    operations["radd"] = lambda operand, other: other + operand
    operations["rmul"] = lambda operand, other: other * operand
    operations["rsub"] = lambda operand, other: other - operand
    operations["enter"] = lambda manager: type(manager).__enter__(manager)
    operations["exit"] = lambda manager, *rest: type(manager).__exit__(manager, *rest)
    return operations


class _Lazily(dict):  # type: ignore[type-arg]
    def __missing__(self, name: str) -> Any:
        self.update(_operations())
        return dict.__getitem__(self, name)


_OPERATIONS = _Lazily()
