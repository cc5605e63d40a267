#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/check/words.py - what people read is plain English, in the field's terms
"""Usage: tests/check/words.py [ROOT]
       tests/check/words.py --files FILE...

Prints each phrase of REFUSED in the files that COVERED names below ROOT (default: the current
folder), or in the given files, and what to write instead; exit status 1 if there is one. The
glossary of HACKING.md has the terms.

In Markdown, code blocks, backquoted text and link targets are skipped: they quote messages and
identifiers. Of Python, comments and strings are read; of shell scripts, comments and the names of
cases. A line that has to contain such a phrase says `words: quoted` in a comment.
"""
import bisect
import fnmatch
import glob
import io
import os
import re
import sys
import tokenize

# Patterns of glob, relative to the root. To cover a folder, clean it and add it here.
COVERED = ("*.md", "examples/*.md", "docs/*.md", "docs/*.[13]",
           "python/spillway/**/*.py", "python/examples/*.py",
           "python/hooks/*.[ch]", "tools/**/*.[ch]",
           "alloc/*.[ch]", "drives/*.[ch]", "drives/vfio/*.[ch]", "layout/*.[ch]", "state/*.[ch]",
           "plan/*.[ch]", "include/spillway/*.h", "store/*.[ch]",
           "tensor/*.[ch]", "tensor/control/*.[ch]",
           "simstore/*.[ch]", "status/*.[ch]",
           "tests/*.sh", "tests/*/*.sh", "tests/*/*.py", "tests/*/*.[ch]")
# Old releases are not rewritten; generated pages repeat the words of their sources; the test of
# this check has all that is refused.
LEFT_OUT = ("CHANGELOG.md", "docs/generated/*", "tests/check/test_checkers.sh")
QUOTED = "words: quoted"

# What is refused, and what to write instead. A space stands for white space, line ends included.
REFUSED = (
    (r"\bwho(?:m|se)?ever\b", "anyone who, any process that"),
    (r"\bnobody\b", "no one, no process, nothing"),
    (r"\bsomebody\b", "someone, another process"),
    (r"\banybody\b", "anyone"),
    (r"\beverybody\b", "everyone, all processes"),
    (r"\b(?:for|to|by|from|with|than) who\b", "for users of, to those who"),
    (r"(?:^|[.;:] )Who [^?.;:]+[.;:]", "a user who, a process that"),
    (r"\banew\b", "again; or a verb: replan, rewrite, reformat"),
    (r"\bso many\b(?! that\b)", "that many; or the number itself"),
    (r"\bso much (?:of|has|is|further|later)\b", "that much; or the amount itself"),
    (r"(?<!there )\b(?:is|are|was|were) no (?!(?:more|less|long|fast|slow|larg|small|high|low|lat|"
     r"bett|oth|few|earli|furth)(?:er)?\b|(?:one|such|different|exception|guarantee|worse)\b)\w+",
     "is not a"),
    (r"(?<!there )\b(?:is|are) (?-i:none)\b(?! of\b)", "is not one; or name what is missing"),
    (r"\bbesides(?=[.,;:)]|$)", "also, in addition, as well"),
    (r"(?:^|[.;:] )of which\b", "a sentence of its own"),
    (r"\bcomput(?:e|es|ed|ing) (?:\w+ ){0,2}(?:again|a second time)\b", "recompute"),
    (r"\bread(?:s|ing)? ahead\b", "prefetch"),
    (r"\b(?:is|are|was|were|be|been) given up\b", "discarded, dropped, abandoned"),
    (r"\bg(?:ives?|iven|iving|ave) back\b", "returns, releases"),
    (r"\bpass(?:es|ed|ing)? by(?=[.,;:)]|$)", "is not offloaded, is skipped"),
    (r"\bat the least\b", "at least"),
    (r"\bin the place of\b", "instead of"),
    (r"\b(?:go|goes|take|takes) the same way\b", "take the same path"),
    (r"\bshall\b", "must, should, will"),
    (r"\b(?:is|are) had\b", "is available, comes from"),
    (r"\bon the way of\b", "in the path of, during"),
    (r"\b(?:refus\w+|errors?|fails?|said|reported|ends?) (?:in|with) words\b", "with a message"),
    (r"\bfrom (?:[A-Za-z]+ )?\d[\d.]*(?: [KMG]iB)? on(?=[.,;:)]|$)", "or later, and up"),
)
PATTERNS = tuple((re.compile(pattern, re.I if pattern.islower() else 0), instead)
                 for pattern, instead in REFUSED)


def blanked(found):
    """As many lines, which match nothing."""
    return re.sub(r"[^\n]+", "\0", found[0])


def python_prose_of(text):
    """The comments and strings, on their lines. Code between two of them keeps them apart; the
    quotes of a string that goes on in the next line do not."""
    lines, ended = [""] * (text.count("\n") + 1), True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = tokenize.tok_name[token.type]
        if kind not in ("COMMENT", "STRING", "FSTRING_MIDDLE"):
            ended = ended or kind not in ("NL", "FSTRING_START", "FSTRING_END")
            continue
        words = token.string.lstrip("#:") if kind == "COMMENT" else \
            re.sub(r"^[A-Za-z]*(\"{3}|'{3}|[\"'])|(\"{3}|'{3}|[\"'])$", "", token.string)
        for number, line in enumerate(words.split("\n"), token.start[0] - 1):
            lines[number] += ("\0" if ended else "") + line
            ended = False
    return "\n".join(lines)


def shell_prose_of(text):
    """Comments, and what tests say that they begin. The rest is code."""
    said = re.compile(r"^(?:begin (?P<case>.*)|(?:.*\s)?#(?P<comment>\s.*))$")
    found = map(said.match, text.split("\n"))
    return "\n".join((match["case"] or match["comment"]) if match else "\0" for match in found)


def prose_of(path, text):
    """The text without what is skipped, with as many lines."""
    text = re.sub(rf"^.*{QUOTED}.*$", blanked, text, flags=re.M)
    if path.endswith(".py"):
        text = python_prose_of(text)
    if path.endswith(".sh"):
        text = shell_prose_of(text)
    if path.endswith(".md"):
        text = re.sub(r"^```.*?^```$|<!--.*?-->", blanked, text, flags=re.M | re.S)
        text = re.sub(r"^    .*$", blanked, text, flags=re.M)
        text = re.sub(r"`[^`]*`|\]\([^)]*\)", blanked, text)
    return text


def found_in(path, text):
    """(line, phrase, what to write) of each, in order."""
    flat, begins = "", []
    for line in prose_of(path, text).split("\n"):
        begins.append(len(flat))
        flat += " ".join(line.split()) + " "
    flat = flat.rstrip()
    return sorted((bisect.bisect(begins, each.start() + len(each[0]) - len(each[0].lstrip(" .;:"))),
                   each[0].strip(" .;:"), instead)
                  for pattern, instead in PATTERNS for each in pattern.finditer(flat))


def covered_below(root):
    """The files that COVERED names; each of its patterns must name one."""
    files = []
    for pattern in COVERED:
        named = sorted(glob.glob(pattern, root_dir=root, recursive=True))
        if not named:
            sys.exit(f"words: no file matches {pattern}")
        files += [name for name in named
                  if not any(fnmatch.fnmatch(name, left) for left in LEFT_OUT)]
    return files


def main(arguments):
    root, files = (arguments or ["."])[0], []
    if root == "--files":
        root, files = "", arguments[1:]
    else:
        files = covered_below(root)
    found = 0
    for name in files:
        with open(os.path.join(root, name), encoding="utf-8") as file:
            text = file.read()
        for line, phrase, instead in found_in(name, text):
            print(f"{name}:{line}: \"{phrase}\": write: {instead}")
            found += 1
    if not files:
        print("no files")
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
