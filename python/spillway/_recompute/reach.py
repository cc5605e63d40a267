# SPDX-License-Identifier: MIT
# spillway/_recompute/reach.py - what a module's code can reach besides its attributes
"""The functions that a forward pass may call, by the names that its code uses: methods of the
classes met so far, and what a module or a closure has under such a name. What they use of modules,
classes and closures is where they could leave something behind. Python, PyTorch, NumPy and SymPy
are taken as known: they leave nothing behind but in what they are given, and in their generators
(SymPy's, which is not put back, changes no result of it). So is huggingface_hub, which the classes
of transformers' configurations can reach: what it fetches are files."""
from __future__ import annotations

import functools
import sys
import types
from typing import Any, Callable, Dict, Iterable, Iterator, List, Set, Tuple

Found = Tuple[str, Any]
Look = Callable[[], Dict[str, Any]]

_KNOWN = sys.stdlib_module_names | {"torch", "numpy", "sympy", "huggingface_hub", "spillway"}
# Of known packages, what does leave something behind when it is called.
_LEAVES = "torch.utils.tensorboard", "torch.utils.data"
# Methods that run without their names being used, beside those with two underscores.
_ALWAYS = {"forward", "setup_context"}
_NEVER = {"__init_subclass__", "__class_getitem__", "__reduce__", "__reduce_ex__", "__getstate__",
          "__setstate__", "__del__", "__repr__", "__dir__", "__sizeof__", "__subclasshook__"}


_WRAPPERS = (staticmethod, classmethod, property, functools.cached_property,
             type(functools.lru_cache(lambda: None)))


def is_known(module: Any) -> bool:
    """Whether a name is that of a module of a known package."""
    name = str(module)
    return name != "__main__" and name.partition(".")[0] in _KNOWN and not name.startswith(_LEAVES)


def _function_in(thing: Any) -> Any:
    """The function behind a class attribute; None: it is not a function."""
    while isinstance(thing, _WRAPPERS):  # of others not even an attribute is asked for
        names = ("__func__", "fget", "func", "__wrapped__")
        thing = next((getattr(thing, name) for name in names if hasattr(thing, name)), None)
    return thing if isinstance(thing, types.FunctionType) else None


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes_in(constant)


@functools.lru_cache(maxsize=10_000)
def _names_in(code: types.CodeType) -> Tuple[str, ...]:
    return tuple(dict.fromkeys(name for each in _codes_in(code) for name in each.co_names))


class Reach:
    """Of one module, while it is looked around. Looks are functions that give values by names."""

    def __init__(self) -> None:
        self._names: Set[str] = set(_ALWAYS)
        self._methods: Dict[str, List[Found]] = {}  # not reached yet, by their names

    def of(self, path: str, thing: Any) -> Tuple[List[Found], List[Tuple[str, Look]]]:
        """(things to go on with, what to look at) from a function, class or bound method on."""
        if isinstance(thing, types.MethodType):
            return [(path, thing.__self__), (path, thing.__func__)], []
        if isinstance(thing, type):
            return self._of_class(thing)
        return self._of_function(path, thing)

    def _of_function(self, path: str, function: types.FunctionType
                     ) -> Tuple[List[Found], List[Tuple[str, Look]]]:
        code, module = function.__code__, function.__globals__.get("__name__", "")
        looks: List[Tuple[str, Look]] = [(
            f"what {function.__qualname__} holds: ",
            lambda: {name: _content_of(cell) for name, cell in zip(
                code.co_freevars, function.__closure__ or ())})]
        default = f"global default of {function.__qualname__}"
        found = [(default, function.__defaults__), (default, function.__kwdefaults__),
                 (path, getattr(function, "__wrapped__", None)), (path, vars(function))]
        if not is_known(module):
            names = _names_in(code)
            found += self._called(names)
            looks += _looks_at(function.__globals__, module, names)
        return found, looks

    def _called(self, names: Iterable[str]) -> List[Found]:
        """Methods that can be meant by names that are new."""
        new = [name for name in names if name not in self._names]
        self._names.update(new)
        return [found for name in new for found in self._methods.pop(name, ())]

    def _of_class(self, thing: type) -> Tuple[List[Found], List[Tuple[str, Look]]]:
        found: List[Found] = []
        looks: List[Tuple[str, Look]] = []
        for each in thing.__mro__:
            if is_known(each.__module__):
                continue
            looks.append((f"class {each.__name__}.", functools.partial(_data_of, each)))
            for name, value in list(vars(each).items()):
                function = _function_in(value)
                if function is None:
                    continue
                if name in self._names or (_is_special(name) and name not in _NEVER):
                    found.append((f"{each.__name__}.{name}", function))
                else:
                    self._methods.setdefault(name, []).append(
                        (f"{each.__name__}.{name}", function))
        return found, looks


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _data_of(kind: type) -> Dict[str, Any]:
    """The attributes of a class that are not methods."""
    return {name: value for name, value in list(vars(kind).items())
            if not _is_special(name) and not name.startswith("_abc_")
            and _function_in(value) is None}


def _content_of(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing yet
        return None


def _look_at(things: Any, names: Iterable[str]) -> Look:
    """Names that are not there yet, too: code may make them."""
    return lambda: {name: things[name] for name in names if name in things}


def _imported(names: Iterable[str]) -> Dict[str, Any]:
    """Modules by these names that are there now."""
    return {name: sys.modules[name] for name in names
            if name in sys.modules and not is_known(name)}


def _looks_at(things: Dict[str, Any], module: str, names: Tuple[str, ...]
              ) -> List[Tuple[str, Look]]:
    """At what code that uses these names finds in its module, in modules that it finds there, and
    in those that it imports when it runs."""
    looks: List[Tuple[str, Look]] = [("what is imported: ", lambda: _imported(names))]
    todo = [(module, things), *((name, vars(each)) for name, each in _imported(names).items())]
    seen: Set[int] = set()
    while todo:
        module, things = todo.pop()
        if id(things) in seen:
            continue
        seen.add(id(things))
        looks.append((f"global {module}.", _look_at(things, names)))
        todo += [(other.__name__, vars(other)) for other in map(things.get, names)
                 if isinstance(other, types.ModuleType) and not is_known(other.__name__)]
    return looks
