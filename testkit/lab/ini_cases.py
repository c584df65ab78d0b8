"""Writes tests/data/parallelcluster/ini-cases.json: texts, and what Python's own ConfigParser makes of them.

    python3 testkit/lab/ini_cases.py > tests/data/parallelcluster/ini-cases.json
"""
import configparser
import itertools
import json
import sys

BY_HAND = [
    "", "\n\n", "# only a comment\n", "[a]", "[a]\n", "[a]\nk=v", "[a]\r\nk = v\r\n", "[a]\rk = v\rl = w",
    "k = v\n", "  k = v\n[a]\n", "\ufeff[a]\nk = v\n",
    "[a]\nk = v # no comment\n", "[a]\nk = v ; no comment\n", "[a]\n  # indented comment\nk = v\n", "[a]\nk = v\n  ; comment\n  more\n",
    "[a]\nk: v\n", "[a]\nk : a = b\n", "[a]\nk = a : b\n", "[a]\nKEY = v\nOther_Key: w\n", "[a]\nKEY = v\nkey = w\n",
    "[a]\nk =\n", "[a]\nk:\n", "[a]\nk\n", "[a]\n= v\n", "[a]\n : v\n", "[a]\nk =   \n  more\n",
    "[a]\nk = v\n  more\n\tmore still\n", "[a]\nk = v\n\n  more\n\n\nl = w\n", "[a]\nk = v\n\n\n", "[a]\nk = v\n[b]\n  l = w\n",
    "[a]\n  k = v\n  l = w\n", "[a]\n  k = v\n    more\n  l = w\n", "[a]\n    k = v\n  l = w\n   m = x\n", "  [a]\n  k = v\n",
    "  [a]\nk = v\n", "[a]\nk = v\n  [b]\nl = w\n", "[a]\n  k = v\n [b]\n  l = w\n", "[a]\nk = v\n  l = w\n",
    "[a]\n  k = v\n", "[a]\n\n  k = v\n", "[a] # behind\nk = v\n", "[a]b]\nk = v\n", "[a][b]\nk = v\n", "[]\nk = v\n", "[ a ]\nk = v\n",
    "[a\nk = v\n", "[a=b\n", "[a]\n[x = 1\n", "a]\nk = v\n", "[a]\nk = v\n[a]\nl = w\n", "[a]\n[b]\n[A]\n",
    "[DEFAULT]\nk = v\n[a]\n", "[DEFAULT]\nk = v\n[a]\nk = w\n[b]\nl = x\n", "[a]\nl = %(k)s\n[DEFAULT]\nk = v\n",
    "[DEFAULT]\nk = v\n[DEFAULT]\nl = w\n[a]\n", "[DEFAULT]\nk = v\n[a]\n[DEFAULT]\nk = w\n", "[default]\nk = v\n[a]\n",
    "[DEFAULT]\nhome = /opt/%(name)s\n[a]\nname = x\npath = %(home)s/bin\n[b]\nname = y\npath = %(home)s/bin\n[c]\npath = %(home)s\n",
    "[a]\nk = 100%\n", "[a]\nk = 100%%\n", "[a]\nk = %%(l)s\n", "[a]\nk = %(l)s\nl = v\n", "[a]\nk = %(L)s\nl = v\n",
    "[a]\nk = %(l)s-%(l)s%%\nl = v\n", "[a]\nk = %(l)\nl = v\n", "[a]\nk = %(l)d\nl = v\n", "[a]\nk = %()s\n", "[a]\nk = %(l\n",
    "[a]\nk = %(none)s\n", "[a]\nk = %(k)s\n", "[a]\nk = %(l)s\nl = %(k)s\n", "[a]\nk = %(l)s\nl = %%\n", "[a]\nk = %(l)s\nl = %x\n",
    "[a]\nk = % (l)s\nl = v\n", "[a]\nk = %(l m)s\nl m = v\n", "[a]\nk = %\n", "[a]\nk = v\n  %(l)s\nl = w\n",
    "[a]\nk = %(l)s\nl = v\n  w\n", "[a]\nk = x%(l)s%(m)sy\nl =\nm = 1\n", "[a]\nk = %(b:l)s\n[b]\nl = v\n", "[a]\nk = ${l}\nl = v\n",
    "[a]\nl m = v\n", "[a]\nk = v\nk2 = w\nno delimiter\nk3 = x\n", "[a]\nk == v\n", "[a]\nk =: v\n", "[a]\nk := v\n", "[a]\nk=\"v\"\n",
    "[a]\n;k = v\n#l = w\n", "[a]\nk = #v\n", "[a]\nk = ;\n", "[a]\nk = v\n # c\n\n x\n", "[a]\nk = v\n; c\n x\n", "[a]\nk = v\n; c\n\n x\n",
    "[a]\nk = \u00a0v\u00a0\n", "[a]\nk = v\u2003\n \u2003more\n", "[a]\n\u00a0k = v\nl = w\n", "[a]\nÉTÉ = v\nk = %(été)s\n", "[é]\nk = ü\n",
    "[a]\nk = a\x1cb\x1c\n", "[a]\nk = a\x0bb\n", "[a]\nk = a\x85b\n", "[a]\nk = a\u2028b\n", "[a]\nk = v\x00\n", "[a]\x1fk = v\n",
    "[a]\nrem = x\nREM y\n", "[a]\nk = v\\\nl = w\n", "[a]\nk = [b]\n", "[a]\nk = v\n [b] = c\n", "[a]\n[b] = c\n", "[a]\n%(k)s = v\nk = w\n",
]
# The depth limit: a chain of n references.
CHAINS = ["[a]\n" + "".join(f"k{i} = %(k{i + 1})s\n" for i in range(n)) + f"k{n} = end\n" for n in (8, 9, 10, 11)]
CHAINS += ["[a]\n" + "".join(f"k{i} = %(k{i + 1})s\n" for i in range(n)) + f"k{n} = 100%%\n" for n in (8, 9, 10)]
# Every order of four lines out of these.
PIECES = ["[a]", "k = v", "  l: w", "", " # c", "m", "[DEFAULT]"]
ORDERS = ["\n".join(order) + "\n" for order in itertools.permutations(PIECES, 4) if order[0] in ("[a]", "[DEFAULT]", "k = v", " # c")]


def case(text):
    parser = configparser.ConfigParser()
    try:
        # As a file opened for reading: every kind of line end is one.
        parser.read_string(text.replace("\r\n", "\n").replace("\r", "\n"))
    except configparser.Error as error:
        return {"text": text, "error": type(error).__name__}
    return {"text": text, "sections": {name: {key: value(parser, name, key) for key in sorted(parser[name])} for name in sorted(parser.sections())}}


def value(parser, section, key):
    try:
        return parser.get(section, key)
    except configparser.Error as error:
        return {"error": type(error).__name__}


texts = list(dict.fromkeys(BY_HAND + CHAINS + ORDERS))
print('{"python": %s, "cases": [' % json.dumps(sys.version.split()[0]))
print(",\n".join(json.dumps(case(text), sort_keys=True) for text in texts))
print("]}")
