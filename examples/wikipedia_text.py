"""Plain text from a MediaWiki dump such as enwik8: one JSON object with the text of an article in each line.

python examples/wikipedia_text.py enwik8 > articles.jsonl
segue prepare articles.jsonl --column text --tokenizer wordpiece --vocab 8192 -o data/wiki
"""

import html
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ARTICLE = re.compile(r'<text xml:space="preserve">(.*?)</text>', re.DOTALL)
INNERMOST = re.compile(r"\{\{[^{}]*\}\}|\{\|[^{}]*\|\}")  # templates and tables stand inside each other
MARKUP = [
    (re.compile(r"<!--.*?-->|<(math|ref|gallery|nowiki|pre|code)\b[^>]*>.*?</\1>", re.DOTALL), " "),
    (re.compile(r"</?[a-zA-Z][^<>]*>"), " "),
    (re.compile(r"\[\[(?:image|file|category|[a-z-]{2,12}):(?:[^\[\]]|\[\[[^\[\]]*\]\])*\]\]", re.I), " "),
    (re.compile(r"\[\[(?:[^|\[\]]*\|)?([^\[\]|]*)\]\]"), r"\1"),  # a link's own words
    (re.compile(r"\[(?:https?|ftp)://\S*\s?([^\]]*)\]"), r"\1"),
    (re.compile(r"'{2,}"), ""),
    (re.compile(r"^(=+.*=+|[|!{}].*|\s*[*#:;]+.*)$", re.MULTILINE), ""),  # titles, tables and lists
    (re.compile(r"[ \t]+"), " "),
    (re.compile(r"\n\s*\n+"), "\n"),
]
FEWEST = 500
"""Characters of an article that is worth reading."""


def plain(text: str) -> str:
    """The running text of an article, without its markup."""
    text = html.unescape(html.unescape(text))
    before = ""
    while before != text:
        before, text = text, INNERMOST.sub(" ", text)
    for pattern, replacement in MARKUP:
        text = pattern.sub(replacement, text)
    return text.strip()


def articles(path: Path) -> Iterator[str]:
    for text in ARTICLE.findall(path.read_text(encoding="utf-8", errors="replace")):
        if not text.lower().startswith("#redirect") and len(written := plain(text)) >= FEWEST:
            yield written


if __name__ == "__main__":
    for article in articles(Path(sys.argv[1])):
        sys.stdout.write(json.dumps({"text": article}, ensure_ascii=False) + "\n")
