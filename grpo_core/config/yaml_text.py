"""YAML as configs use it: safe, without surprises, and back again without loss."""

import math
import re
from collections.abc import Hashable, Sequence
from typing import Any

import yaml

_LARGEST_BITS = 1024  # as far as a float reaches; a message could not even show a much longer one


def parse_yaml(text: str) -> Any:
    """The plain data of YAML or JSON. Raises yaml.YAMLError."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.reader.ReaderError as error:
        code = ord(error.character) if isinstance(error.character, str) else error.character
        raise yaml.YAMLError(f"the character U+{code:04X} at position {error.position} cannot be in it") from None
    except RecursionError:
        raise yaml.YAMLError("nested too deeply") from None
    except (ValueError, OverflowError) as error:  # such as the date 2026-13-45
        raise yaml.YAMLError(f"a value cannot be read: {error}") from None
    except (LookupError, AttributeError, TypeError):  # PyYAML's own, for a value that does not fit its tag: !!bool x
        raise yaml.YAMLError("a value cannot be read as what its !!tag says; leave the tag out") from None


def line_of(text: str, path: Sequence[Hashable]) -> int:
    """Line, from 1, of the key or item at `path` of a text that `parse_yaml` reads; of the nearest one above it where
    there is none. 0 for an empty text."""
    node = yaml.compose(text, Loader=_Loader)
    line = 0 if node is None else node.start_mark.line + 1
    for piece in path:
        if isinstance(node, yaml.MappingNode):
            pairs = [(key, value) for key, value in node.value if key.value == str(piece)]
            if not pairs:
                return line
            key, node = pairs[0]
            line = key.start_mark.line + 1
        elif isinstance(node, yaml.SequenceNode) and isinstance(piece, int) and piece < len(node.value):
            node = node.value[piece]
            line = node.start_mark.line + 1
        else:
            return line
    return line


def dump_yaml(data: Any) -> str:
    """`parse_yaml` reads it back equal."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


class _Loader(yaml.SafeLoader):
    """Safe YAML that also reads `3e-4` as a number, and refuses a key given twice and aliases, whose few lines can
    expand to gigabytes."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.name = "the text"  # in messages

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not taken; write the value out", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key must be plain text", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        too_long = yaml.constructor.ConstructorError(None, None, "this whole number is too long", node.start_mark)
        if len(node.value) > 2 * _LARGEST_BITS:
            raise too_long
        value = int(super().construct_yaml_int(node))
        if value.bit_length() > _LARGEST_BITS:
            raise too_long
        return value

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        value = float(super().construct_yaml_float(node))
        if not math.isfinite(value):
            raise yaml.constructor.ConstructorError(None, None, "a number must be finite", node.start_mark)
        return value


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)


class _Dumper(yaml.SafeDumper):
    """Knows the same numbers as the loader, so that a text such as `3e4` is written in quotes."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Text with a Unicode line end goes in double quotes, which escape it; elsewhere YAML would fold it."""
        style = '"' if any(char in data for char in "\x85\u2028\u2029") else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)

for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
        list("-+0123456789"),
    )
