"""Mutants of modules for tests/mutate.py, which tests one at a time."""

from __future__ import annotations

import gc
import hashlib
import inspect
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, kw_only=True)
class Row:
    """The tests of a module, and its equivalent mutants, each with the reason.

    `imports` are modules that would take long to import in every mutant. With `processes`, the
    tests run the module in processes that they start, so every mutant runs every test.
    """

    module: str
    tests: list[str]
    imports: list[str] = field(default_factory=list)
    processes: bool = False
    equivalent: dict[str, str] = field(default_factory=dict)

    def files(self) -> list[Path]:
        path = ROOT / self.module
        found = [path] if path.is_file() else sorted(path.rglob("*"))
        return [file for file in found if file.suffix in (".py", ".js")]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A change of a file."""

    file: Path
    number: int  # among those of the file
    change: str  # "old -> new"
    text: Callable[[], str] = field(repr=False)  # of the changed file

    @property
    def name(self) -> str:
        return f"{self.file.relative_to(ROOT)}: {self.change}"

    def key(self) -> str:
        """Identify the mutant as long as its file does not change."""
        source = hashlib.sha256(self.file.read_bytes()).hexdigest()[:16]
        return f"{self.file.relative_to(ROOT)}:{source}:{self.number}"


def choose(row: Row, sample: int) -> list[Mutant]:
    """Draw mutants of a row, always the same; those of a smaller sample are among them."""
    every = [
        mutant
        for file in row.files()
        for mutant in (python_mutants if file.suffix == ".py" else script_mutants)(file)
    ]
    random.Random(0).shuffle(every)
    chosen: list[Mutant] = []
    for mutant in every:
        if len(chosen) == sample:
            break
        if mutant.name in row.equivalent:
            continue
        if mutant.file.suffix == ".js" or paired_codes(mutant):
            chosen.append(mutant)
    return chosen


def python_mutants(file: Path) -> Iterator[Mutant]:
    """Give mutmut's mutants, but those of texts."""
    from libcst import BaseString, Module, parse_module
    from libcst.metadata import MetadataWrapper
    from mutmut.mutation.file_mutation import MutationVisitor
    from mutmut.mutation.mutators import mutation_operators
    from mutmut.mutation.pragma_handling import IgnoredCode

    visitor = MutationVisitor(mutation_operators, IgnoredCode(set(), set(), set()))
    module = MetadataWrapper(parse_module(file.read_text())).visit(visitor)
    code = Module(body=[]).code_for_node
    for number, mutation in enumerate(visitor.mutations):
        old, new = mutation.original_node, mutation.mutated_node
        if isinstance(old, BaseString):
            continue

        def text(old: object = old, new: object = new) -> str:
            changed = module.deep_replace(old, new)
            return str(changed.code)

        change = " -> ".join(" ".join(code(node).split()) for node in (old, new))
        yield Mutant(file=file, number=number, change=change, text=text)


def paired_codes(mutant: Mutant) -> dict[CodeType, CodeType]:
    """Pair the code of each function that differs with the mutant's.

    Empty where the mutant changes what is run by an import, such as a constant: that is left out.
    """
    name = str(mutant.file)
    pairs: dict[CodeType, CodeType] = {}

    def pair(old: CodeType, new: CodeType) -> bool:
        """Note the functions within; False: the code differs outside of them."""
        parts: tuple[defaultdict[str, list[CodeType]], ...] = defaultdict(list), defaultdict(list)
        for code, inside in zip((old, new), parts, strict=True):
            for constant in code.co_consts:
                if isinstance(constant, CodeType):
                    inside[constant.co_qualname].append(constant)
        for qualname, codes in parts[0].items():
            for one, other in zip(codes, parts[1][qualname], strict=False):
                if one.co_flags & inspect.CO_OPTIMIZED:
                    if one != other:
                        pairs[one] = other
                        pair(one, other)
                elif not pair(one, other):
                    return False
        return _own(old) == _own(new)

    old, new = (compile(text, name, "exec") for text in (mutant.file.read_text(), mutant.text()))
    return pairs if pair(old, new) else {}


def loaded_functions() -> list[FunctionType]:
    """List the functions of this process."""
    gc.unfreeze()
    functions = [thing for thing in gc.get_objects() if type(thing) is FunctionType]
    gc.freeze()
    return functions


def replace_code(functions: list[FunctionType], pairs: dict[CodeType, CodeType]) -> None:
    """Give functions the code of a mutant."""
    files = {code.co_filename for code in pairs}
    for function in functions:
        if function.__code__.co_filename in files and function.__code__ in pairs:
            function.__code__ = pairs[function.__code__]


def mutate_this_process(file: str, changed: str) -> None:
    """Give the functions of a file the code of a changed copy of it."""
    text = Path(changed).read_text
    mutant = Mutant(file=Path(file), number=0, change="", text=text)
    replace_code(loaded_functions(), paired_codes(mutant))


def _own(code: CodeType) -> tuple[object, ...]:
    constants = [one for one in code.co_consts if not isinstance(one, CodeType)]
    return code.co_code, code.co_names, constants


# Comments, strings, templates and regular expressions stay.
_LITERALS = re.compile(
    r"""//[^\n]*|/\*.*?\*/|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|`(?:\\.|[^`\\])*`"""
    r"""|(?<=[=(,:] )/(?:\\.|[^/\\\n])+/|(?<=[(])/(?:\\.|[^/\\\n])+/""",
    re.DOTALL,
)
_SWAPS = {
    "===": "!==", "!==": "===", "<=": "<", ">=": ">", "<": "<=", ">": ">=", "&&": "||",
    "||": "&&", "??": "&&", "+": "-", "-": "+", "*": "/", "/": "*", "+=": "-=", "-=": "+=",
    "true": "false", "false": "true", "min": "max", "max": "min", "!": "",
}  # fmt: skip
_TOKENS = re.compile(
    r"(?<= )(?:===|!==|<=|>=|&&|\|\||\?\?|\+=|-=|[<>+*/-])(?= )"
    r"|\b(?:true|false)\b|(?<=Math\.)(?:min|max)\b|!(?=[\w(])|(?<![\w.#])\d+(?![\w.])"
)


def script_mutants(file: Path) -> Iterator[Mutant]:
    """Give mutants of operators, conditions and constants of a script."""
    source = file.read_text()
    code = _LITERALS.sub(lambda literal: re.sub(r"[^\n]", " ", literal[0]), source)
    for number, token in enumerate(_TOKENS.finditer(code)):
        old = token[0]
        new = str(int(old) + 1) if old.isdigit() else _SWAPS[old]
        start, end = token.span()
        before = source[source.rfind("\n", 0, start) + 1 : start].lstrip()
        after = source[end:].split("\n", 1)[0]
        yield Mutant(
            file=file,
            number=number,
            change=f"{before}{old}{after} -> {before}{new}{after}",
            text=lambda start=start, end=end, new=new: source[:start] + new + source[end:],
        )
