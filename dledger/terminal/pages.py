"""HTML pages from templates that lie beside the module that fills them.

Every value is escaped where it is put in, unless it is `Markup`, which only another template
makes: what comes from a log, a file name or a node can't become a tag by being forgotten. A name
that a template doesn't get is an error and no blank. Pages load nothing: what they need is in them.
"""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

__all__ = ["Markup", "rendered"]


def rendered(package: str, name: str, **values: object) -> Markup:
    """The template `name` in the folder `templates` of `package`, filled with `values`.

    Raises:
        jinja2.UndefinedError: the template uses what isn't among them.
    """
    return Markup(_environment(package).get_template(name).render(**values))


@cache
def _environment(package: str) -> Environment:
    environment = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
    )
    environment.filters |= {"number": _number, "ms": _ms, "tenth": _tenth}
    return environment


def _number(value: float) -> str:
    """With a comma for each three digits."""
    return f"{value:,}"


def _ms(value: float | None) -> str:
    """Whole milliseconds; blank where nothing was measured."""
    return "" if value is None else f"{value:,.0f} ms"


def _tenth(value: float) -> str:
    """A coordinate, to a tenth of a pixel."""
    return f"{value:.1f}"
