"""Pages that scripts write: paragraphs and lists of Markdown wrapped to the columns that documents may have (docs.py)."""
import re
import textwrap

COLUMNS = 116


def _wrap(words, first, rest):
    # Code and formulas stay on one line; a word that would begin a list or a heading stays with the one before it.
    text = re.sub(r"`[^`]+`|\$[^$\s][^$]*\$", lambda match: match[0].replace(" ", "\0"), " ".join(words))
    text = re.sub(r" (?=([-+*=<>|]|\d+[.)]|#+)( |$))", "\0", text)
    lines = textwrap.wrap(text, COLUMNS, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines]


def wrapped(text):
    """The page with its paragraphs and list items wrapped; code, tables, headings and pictures as they are."""
    out, words, indents, fenced = [], [], ("", ""), False
    for line in [*text.split("\n"), ""]:
        stripped, item = line.strip(), re.match(r"(\s*)([-*]|\d+\.) (.*)", line)
        fence = stripped.startswith("```")
        ends = fence or not stripped or stripped[0] in "|#<" or stripped.startswith("![")
        if words and not fenced and (ends or item):
            out += _wrap(words, *indents)
            words = []
        fenced = fenced != fence
        if fence or fenced or ends or (line.startswith("    ") and not words and not item):
            out.append(line)
        elif item:
            indents, words = (f"{item[1]}{item[2]} ", " " * (len(item[1]) + len(item[2]) + 1)), [item[3]]
        else:
            if not words:
                indents = (line[:len(line) - len(line.lstrip())],) * 2
            words.append(stripped)
    return "\n".join(out[:-1])
