"""Register single parts of methods (scorers, allocators, selectors, settlers) for compositions."""

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any, ClassVar, TypeVar, get_type_hints

from pydantic import create_model

from kvlab.core.contract import METHODS, LowestScore, Method, Pipeline
from kvlab.core.errors import UserError
from kvlab.core.methods.scorers.recency import Recency
from kvlab.core.plugins.load import Registry

Part = TypeVar("Part", bound=type)

REGISTERED: dict[str, Registry[type[Method]]] = {
    part: Registry(f"{part} choice") for part in ("score", "allocate", "select", "settle")
}
# Required attributes of each part, and those that are not hyper-parameters.
NEEDED = {
    "score": ("update", "every_step", "needs_hidden_states", "state"),
    "allocate": ("layer_budgets", "head_budgets", "statistic"),
    "select": ("victims",),
    "settle": ("settle", "state"),
}
NO_HYPER_PARAMETERS = ("every_step", "needs_hidden_states", "state")


def register_scorer(name: str, decode: bool = True) -> Callable[[Part], Part]:
    """Class decorator for `compose:score=NAME`; `decode`: scores are updated while decoding."""
    return _registering("score", name, decode)


def register_allocator(name: str) -> Callable[[Part], Part]:
    """Class decorator for `compose:allocate=NAME`."""
    return _registering("allocate", name)


def register_selector(name: str) -> Callable[[Part], Part]:
    """Class decorator for `compose:select=NAME`."""
    return _registering("select", name)


def register_settler(name: str, decode: bool = True) -> Callable[[Part], Part]:
    """Class decorator for `compose:settle=NAME`; `decode`: it also settles slots while decoding."""
    return _registering("settle", name, decode)


def _registering(part: str, name: str, decode: bool = True) -> Callable[[Part], Part]:
    """Decorator for a frozen dataclass that follows the part's protocol; fields with defaults are hyper-parameters.

    Raises UserError if the class does not follow the protocol or the name is taken.
    """

    def register(cls: Part) -> Part:
        if not is_dataclass(cls):
            raise UserError(f"{cls.__name__} cannot be the {part} choice {name!r}: make it a frozen dataclass.")
        hints = get_type_hints(cls)
        settings: dict[str, Any] = {}
        for field in fields(cls):
            if not field.init or field.name in NO_HYPER_PARAMETERS:
                continue
            if field.default is MISSING and field.default_factory is MISSING:
                raise UserError(f"The hyper-parameter {field.name!r} of {name!r} needs a default.")
            default = field.default if field.default_factory is MISSING else field.default_factory()
            settings[field.name] = (hints[field.name], default)
        missing = [needed for needed in NEEDED[part] if not hasattr(cls(), needed)]
        if missing:
            raise UserError(f"{cls.__name__} cannot be the {part} choice {name!r}: it lacks {' and '.join(missing)}.")
        method = create_model(
            cls.__name__, __base__=_OnePart, __module__=cls.__module__, __doc__=cls.__doc__, **settings
        )
        method.name = name
        method.title = name
        method.part = part
        method.cls = cls
        method.decode = decode
        taken = name in METHODS and METHODS.origin(name)
        if taken and taken != (here := REGISTERED[part].origin_of(cls)):
            raise UserError(f"A method named {name!r} from {taken} already exists: rename the {part} choice of {here}.")
        REGISTERED[part].add(name, method)
        return cls

    return register


class _OnePart(Method):
    """A method of one registered part and the simplest other parts, so that compositions can take it from a method."""

    name = ""
    family = "part"
    title = ""
    part: ClassVar[str] = ""
    cls: ClassVar[Callable[..., Any]]
    decode: ClassVar[bool] = True

    def pipeline(self) -> Pipeline:
        """Recency, equal budgets, four sinks and eviction, with the one part replaced."""
        plain = Pipeline(Recency(), select=LowestScore(sinks=4), decode=self.decode)
        settings = {name: value for name, value in self if name not in Method.model_fields}
        return replace(plain, **{self.part: type(self).cls(**settings)})
