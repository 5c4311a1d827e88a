"""Runs test code in a child process inside the sandbox, in another box than the solution's.

The tests see stand-ins for the solution's names. A stand-in passes arguments and results as plain data; of an object of
the solution's own it passes attributes, calls and iteration, never what compares it with a value of the tests, so that
nothing a solution returns can decide what equals what, nor see what is expected. Only on objects of a class, and only
the tests decide what is one, operators are the solution's own. Part of the text of a program inside the sandbox:
standard library only.
"""

from __future__ import annotations

from grpo_core.rewards.code.inside_values import Unsendable, decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from grpo_core.rewards.code.inside_talk import Talk

TESTS = "tests.py"
MOST = 500
SHOWN = 300


class Failed(BaseException):
    """The solution failed in a way that test code may not catch: `all` holds it even where `except:` did."""

    all: list[str] = []  # noqa: RUF012 - of this process, which runs one program of tests

    def __init__(self, why: str) -> None:
        super().__init__(why)
        Failed.all.append(why)


class Fault(Exception):
    """The tests themselves cannot be run; said before they could ask anything of the solution."""


class Link:
    """What the tests ask of the solution, and what they handed over to it."""

    def __init__(self, talk: Talk) -> None:
        import threading

        self._talk = talk
        self._lock = threading.RLock()
        self._callbacks: list[Any] = []
        self._errors: dict[int, type[Exception]] = {}
        self.classes: frozenset[str] = frozenset()
        """Names of the solution's that the tests use as classes."""
        self.takes_ends = False
        """Whether the tests name StopIteration, and so may wait for one from a call."""
        self.calls = 0
        self.last = ""
        self.fault = ""
        """Why the tests cannot be judged: the first that failed is what they hand over, whatever the solution is."""

    def request(self, what: str, *rest: Any, made: str = "") -> tuple[Any, Any]:
        """(value, changed arguments). Raises what the solution raised; Failed when it can be no test's business."""
        with self._lock:
            try:
                reply = self._talk.request([what, *rest], self._called_back)
                if reply[0] == "x":
                    raised = self._error(str(reply[1]), list(reply[2]), str(reply[3]), str(reply[4])[:SHOWN])
                else:
                    return self._value(reply[1], made), reply[2] and [self._value(wire, "") for wire in reply[2]]
            except (ValueError, TypeError, LookupError, OverflowError, RecursionError, AttributeError) as error:
                raise Failed("it gave something that is no value") from error
        iterates = (what, *rest[1:2]) == ("op", "next")
        if isinstance(raised, StopIteration | StopAsyncIteration) and not (iterates or self.takes_ends):
            # Within `map`, `filter` or `iter` it would end a loop of the tests before they compare anything.
            raise Failed(f"it raised {type(raised).__name__} where nothing is iterated")
        raise raised

    def name(self, name: str) -> Any:
        """The solution's `name`. Raises NameError."""
        try:
            value, _ = self.request("name", name)
        except NameError:
            raise NameError(f"name {name!r} is not defined") from None
        if isinstance(value, Thing):
            object.__setattr__(value, "_makes", name if name[:1].isupper() else "")
            object.__setattr__(value, "_called", name)
        return value

    def call(self, thing: Thing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.calls += 1
        wired = [self._argument(argument) for argument in args]
        named = [[name, self._argument(argument)] for name, argument in kwargs.items()]
        shown = ", ".join(
            [_shown(argument) for argument in args]
            + [f"{name}={_shown(argument)}" for name, argument in kwargs.items()]
        )
        self.last = f"{thing._called}({shown})"[:MOST]
        try:
            value, changed = self.request("call", thing._number, wired, named, made=thing._makes)
        except Exception as error:
            self.last = f"{self.last} raised {type(error).__name__}"
            raise
        if value is None:  # else `f(data) == sorted(data)` would compare with what the solution made of data
            for original, new in zip(args, changed or (), strict=False):
                _take_over(original, new)
        self.last = f"{self.last} gave {_shown(value)}"
        return value

    def _argument(self, value: Any) -> Any:
        try:
            return self.wire(value)
        except Failed as failed:
            # An error may be one that the solution raised, and that only a wrong one raises.
            if Failed.all == [str(failed)] and not isinstance(value, BaseException):
                self.fault = f"{failed}; hand over plain values, such as a list of them"
            raise

    def wire(self, value: Any) -> Any:
        def other(value: Any) -> Any:
            if isinstance(value, Thing):
                return ["h", value._number]
            if callable(value):
                self._callbacks.append(value)
                return ["k", len(self._callbacks) - 1]
            raise Unsendable(f"an object of the class {type(value).__name__}")

        try:
            return encode(value, other)
        except (Unsendable, RecursionError) as error:
            raise Failed(f"the tests hand over what cannot be sent: {error}") from error

    def _value(self, wire: Any, made: str) -> Any:
        if made and (type(wire) is not list or wire[:1] != ["h"]):
            made = _items_of(made)  # an object in a list is not what the name makes

        def other(tag: str, rest: list[Any]) -> Any:
            if tag == "g":
                return [decode(item, other) for item in rest[0]]
            number, kind, name, chain = rest
            if tag != "h" or type(number) is not int:
                raise ValueError("no handle")
            if kind == "exception":
                return self._error_class(str(name), chain)
            return Thing(self, number, str(name)[:100], made)

        return decode(wire, other)

    def _error_class(self, builtin: str, chain: list[Any]) -> type[Exception]:
        """A class of errors that stands for one of the solution's: the same each time it comes, below those that it is
        made from, so that `except` in the tests tells them apart."""
        base = _builtin_error(builtin)
        for number, name in reversed(chain):
            if int(number) not in self._errors:
                self._errors[int(number)] = type(str(name), (base,), {})
            base = self._errors[int(number)]
        return base

    def _error(self, builtin: str, chain: list[Any], text: str, description: str) -> BaseException:
        if _builtin_error(builtin) is Exception and builtin != "Exception":
            return Failed(description)  # one that is no Exception, such as KeyboardInterrupt
        return self._error_class(builtin, chain)(text)

    def _called_back(self, request: list[Any]) -> list[Any]:
        if request[0] != "callback":
            raise ValueError("no question")
        function = self._callbacks[request[1]]
        args = [self._value(wire, "") for wire in request[2]]
        kwargs = {name: self._value(wire, "") for name, wire in request[3]}
        try:
            return ["v", self.wire(function(*args, **kwargs)), None]
        except Exception as error:  # noqa: BLE001 - what a function of the tests raises is the solution's to handle
            return ["x", _builtin_error(type(error).__name__).__name__, None, str(error)[:SHOWN], type(error).__name__]


class Thing:
    """Stand-in for an object of the solution's own. `_makes`: its name, if that begins with a capital letter; `_made`:
    that of what made it, if it has such a name."""

    __slots__ = ("_called", "_link", "_made", "_makes", "_number")

    def __init__(self, link: Link, number: int, called: str, made: str) -> None:
        for name, value in (
            ("_link", link),
            ("_number", number),
            ("_called", called),
            ("_made", made),
            ("_makes", ""),
        ):
            object.__setattr__(self, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._link.call(self, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value, _ = self._link.request("get", self._number, name)
        if isinstance(value, Thing):
            object.__setattr__(value, "_called", f"{self._called}.{name}")
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        self._link.request("set", self._number, name, self._link.wire(value))

    def __eq__(self, other: object) -> Any:
        if isinstance(other, Thing):
            if other._number == self._number:
                return True
            raise Failed("the tests compare two objects of the solution's own; only plain values can be compared")
        return NotImplemented

    def __hash__(self) -> int:
        return hash(("Thing", self._number))

    def __bool__(self) -> bool:
        return True

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, Thing) and self._link.request("is", instance._number, self._number)[0] is True

    def __deepcopy__(self, memo: Any) -> Thing:
        return self

    def __copy__(self) -> Thing:
        return self

    def __len__(self) -> int:
        return _whole(self._operate("len"))

    def __iter__(self) -> Any:
        return self._operate("iter")

    def __next__(self) -> Any:
        return self._operate("next")

    def __getitem__(self, at: Any) -> Any:
        return self._operate("getitem", at)

    def __setitem__(self, at: Any, value: Any) -> None:
        self._operate("setitem", at, value)

    def __delitem__(self, at: Any) -> None:
        self._operate("delitem", at)

    def __str__(self) -> str:
        return _words(self._operate("str"))

    def __repr__(self) -> str:
        return _words(self._operate("repr"))

    def __contains__(self, value: Any) -> bool:
        """By the values that it gives, compared here; for a class, what the solution says."""
        if self._made in self._link.classes:
            return self._operate("contains", value) is True
        try:
            values = iter(self)
        except TypeError:
            raise Failed(f"it gave an object of its own ({self._called}) where the tests look for a value") from None
        return any(value is each or value == each for each in values)

    def __enter__(self) -> Any:
        return self._operate("enter")

    def __exit__(self, *_: object) -> None:
        self._operate("exit", None, None, None)

    def _operate(self, name: str, *args: Any) -> Any:
        value, _ = self._link.request(
            "op",
            self._number,
            name,
            [self._link.wire(argument) for argument in args],
            made=_items_of(self._made) if name in ("next", "getitem") else self._made,
        )
        if isinstance(value, Thing) and name in ("iter", "enter"):
            object.__setattr__(value, "_called", self._called)
        return value


def _items_of(made: str) -> str:
    """What objects within those of a class are of: none that the tests use as one."""
    return made if not made or made.endswith("[]") else f"{made}[]"


def _own_operator(name: str) -> Any:
    """Operators that could decide a test are the solution's only on objects of a class: on those that a function
    returned, `abs(f(2) - 1.5) < 0.01` would be whatever the solution likes. `F(2)` may be of either; where the tests do
    not show that F is a class, operators on it see no value of the tests, since it may be the expected one."""

    def operate(self: Thing, *args: Any) -> Any:
        if not self._made:
            raise Failed(f"it gave an object of its own ({self._called}) where the tests compute or compare")
        sees_value = name != "round" and not all(isinstance(argument, Thing) for argument in args)
        if sees_value and self._made not in self._link.classes:
            raise Failed(
                f"it gave an object of its own ({self._called}) where the tests compute or compare with a value, and "
                f"they do not use {self._made} as a class"
            )
        return self._operate(name, *args)

    return operate


for _name in """add sub mul truediv floordiv mod pow matmul and or xor neg pos abs invert lt le gt ge int float
    round reversed radd rmul rsub""".split():  # noqa: SIM905 - a list of words reads better as words
    setattr(Thing, f"__{_name}__", _own_operator({"and": "and_", "or": "or_"}.get(_name, _name)))


def _builtin_error(name: str) -> type[Exception]:
    error_class = getattr(__import__("builtins"), name, None)
    return error_class if isinstance(error_class, type) and issubclass(error_class, Exception) else Exception


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise Failed("its len() is no whole number")
    return value


def _words(value: Any) -> str:
    if type(value) is not str:
        raise Failed("its str() is no text")
    return value


def _shown(value: Any) -> str:
    if isinstance(value, Thing):
        return f"<{value._called}>"
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"<{type(value).__name__}>"
    return text if len(text) <= 120 else text[:119] + "…"


def _take_over(original: Any, new: Any) -> None:
    """What the solution did to a container that it was given, when it returned nothing, as functions that work in place
    do."""
    if type(original) is not type(new):
        return
    if type(original) in (list, bytearray):
        original[:] = new
    elif type(original) in (dict, set):
        original.clear()
        original.update(new)
