"""Rules of prose that a script can count: `python -m tests.prose` prints each count beside its limit.

`python -m tests.prose --list` prints every finding with its place. The pages are README, CHANGELOG and the site, whose
pages `zensical.toml` lists; `--help` is one of them, `docs/reference/commands.md`. The words of messages count, too.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

CHECKOUT = Path(__file__).resolve().parent.parent
DOCS = CHECKOUT / "docs"

LIMITS: dict[str, float] = {
    "pronoun that of, those of": 0,
    "phrases nobody says": 0,
    "spelling": 0,
    "links named after a file": 0,
    "long sentences, percent": 7.5,
    "passive sentences, percent": 6,
    "options described twice": 1,
    "words of the site": 27_000,
    "longest page of the site, words": 2_650,
}
"""What each count may be at most; lower one whenever it can be lowered."""

_PHRASES = (
    r"(?:can(?:not)?|could not) be had|(?:is|are) proven|at hand|alike|comes? back|go(?:es)? on|t(?:ells?|old) apart|"
    r"(?:a|each|every|late) look|(?:its|their) looks|never (?:ran|tried)|(?:was|were) (?:not|never) (?:tried|run)|"
    r"is left to you|a makeshift"
)
_SPELLING = (
    r"\w*colour\w*|\w*(?:normal|optim|initial|serial|recogn|organ|summar|minim|maxim)is(?:e[sd]?|ing|ation)|"
    r"\w*(?:label|cancel|model|travel|signal)l(?:ed|ing)|licence\w*|time-outs?|cent(?:re|red)|grey\w*|behaviour\w*|"
    r"favour\w*|analyse[sd]?|judgement\w*|catalogue\w*|data sets?|\d %"
)
_WORDS = {
    "pronoun that of, those of": re.compile(r"\b(?:that|those) of\b", re.IGNORECASE),
    "phrases nobody says": re.compile(rf"\b(?:{_PHRASES})\b", re.IGNORECASE),
    "spelling": re.compile(rf"\b(?:{_SPELLING})(?!\w)", re.IGNORECASE),
}
_IRREGULAR = (
    "done|made|kept|found|read|sent|taken|given|shown|written|chosen|drawn|known|left|lost|held|told|built|begun|broken|"
    "brought|caught|cut|driven|felt|forgotten|gone|hidden|laid|let|meant|met|paid|put|rebuilt|run|said|seen|set|shut|"
    "spent|split|thrown|understood|withdrawn|won"
)
_PASSIVE = re.compile(
    rf"\b(?:is|are|was|were|be|been|being|gets?|got)\s+(?:(?:not|also|never|only|then|always|still|again|all|both|"
    rf"\w+ly)\s+)*(?:\w{{2,}}ed|{_IRREGULAR})\b",
    re.IGNORECASE,
)
_LINK = re.compile(r"!?\[([^\]]*)\]\(([^)\s]+)\)")
_DESCRIBED = re.compile(
    r"^(?:- |\| )`(--[a-z-]+|[A-Z][A-Z0-9_]{5,}|[a-z]+(?:_[a-z]+)+)[^`]*`(?: \(| \||:)", re.MULTILINE
)


class Finding(NamedTuple):
    """One thing that a rule counts, and where it is."""

    rule: str
    place: str
    text: str


@cache
def site() -> list[Path]:
    """Return the pages in the navigation of the site."""
    return [DOCS / page for page in _leaves(tomllib.loads((CHECKOUT / "zensical.toml").read_text())["project"]["nav"])]


def _leaves(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for each in entry.values() if isinstance(entry, dict) else entry:
            yield from _leaves(each)


def pages() -> list[Path]:
    """Return the pages whose prose is checked."""
    return [CHECKOUT / "README.md", CHECKOUT / "CHANGELOG.md", *site()]


def name(page: Path) -> str:
    """Return the path of a page in the repository."""
    return str(page.relative_to(CHECKOUT))


def num_words(page: Path) -> int:
    """Return how many words a page has, with its code and tables, without front matter and what only draws tables."""
    return sum(any(map(str.isalnum, word)) for word in _body(page).split())


def _body(page: Path) -> str:
    return re.sub(r"\A---\n.*?\n---\n", "", page.read_text(), flags=re.DOTALL)


def _plain(text: str) -> str:
    """Return the text of a page without code, comments and the addresses of links."""
    text = re.sub(r"^ *```.*?^ *```$|<!--.*?-->", "", text, flags=re.MULTILINE | re.DOTALL)
    return _LINK.sub(r"\1", re.sub(r"`[^`]*`", "CODE", text))


def sentences(page: Path) -> list[str]:
    """Return the sentences of the paragraphs and list items of a page, without headings and tables."""
    lines = [line.strip() for line in _plain(_body(page)).splitlines()]
    lines = [
        "" if re.match(r"#|\||!!!|\?\?\?|===", line) else re.sub(r"^(?:[-*>]|\d+\.) ", "\n", line) for line in lines
    ]
    paragraphs = re.split(r"\n\s*\n", "\n".join(lines))
    joined = [" ".join(paragraph.split()).replace("**", "") for paragraph in paragraphs]
    parts = [part for each in joined for part in re.split(r"(?<=[.!?])\)? (?=[A-Z(])", each)]
    return [part for part in parts if len(part.split()) >= 3]


def _messages() -> Iterator[tuple[str, str]]:
    """Yield what the program prints or raises, with the file that does: strings of several words, not docstrings."""
    for folder in ("flows", "tasks", "storage"):
        for file in sorted((CHECKOUT / folder).rglob("*.py")):
            tree = ast.parse(file.read_text())
            docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            for node in ast.walk(tree):
                if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in docstrings:
                    continue
                if len(node.value.split()) >= 4:
                    yield f"{name(file)}:{node.lineno}", node.value


def findings() -> list[Finding]:
    """Return all that is counted one by one."""
    texts = [(name(page), _plain(_body(page))) for page in pages()] + list(_messages())
    found = [
        Finding(count, place, " ".join(text[max(0, hit.start() - 40) : hit.end() + 20].split()))
        for place, text in texts
        for count, pattern in _WORDS.items()
        for hit in pattern.finditer(text)
    ]
    for page in pages():
        links = [text for text, _ in _LINK.findall(page.read_text()) if re.fullmatch(r"`?[\w./-]+\.md`?", text)]
        found += [Finding("links named after a file", name(page), text) for text in links]
        for sentence in sentences(page):
            if len(sentence.split()) > 20:
                found.append(Finding("long sentences, percent", name(page), sentence))
            if _PASSIVE.search(sentence):
                found.append(Finding("passive sentences, percent", name(page), sentence))
    return found + _described_twice()


def _described_twice() -> list[Finding]:
    places: dict[str, set[str]] = {}
    for page in site():
        for option in _DESCRIBED.findall(_body(page)):
            places.setdefault(option, set()).add(name(page))
    return [
        Finding("options described twice", " ".join(sorted(where)), option)
        for option, where in sorted(places.items())
        if len(where) > 1
    ]


def counts() -> dict[str, float]:
    """Return each count of `LIMITS`."""
    num_sentences = sum(len(sentences(page)) for page in pages())
    result: dict[str, float] = dict.fromkeys(LIMITS, 0)
    for finding in findings():
        result[finding.rule] += 100 / num_sentences if finding.rule.endswith("percent") else 1
    words = [num_words(page) for page in site()]
    result["words of the site"], result["longest page of the site, words"] = sum(words), max(words)
    return {count: round(number, 1) for count, number in result.items()}


if __name__ == "__main__":
    if "--list" in sys.argv:
        print(*(f"{each.rule} | {each.place} | {each.text}" for each in findings()), sep="\n")
    for page in site():
        print(f"{num_words(page):7,}  {name(page)}")
    print(f"{len(site()):7}  pages, {num_words(CHECKOUT / 'README.md'):,} words in README")
    over = [count for count, number in counts().items() if number > LIMITS[count]]
    for count, number in counts().items():
        print(f"{number:>8,g}  of at most {LIMITS[count]:>8,g}: {count}{'   <-- too many' if count in over else ''}")
    sys.exit(bool(over))
