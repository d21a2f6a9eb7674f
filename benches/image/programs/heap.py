# Fills its memory with what Python programs have: syntax trees, words, dictionaries, numbers. Then waits.
import ast
import glob
import os
import sys

kept = []
for path in sorted(glob.glob(os.path.dirname(os.__file__) + "/*.py"))[:90]:
    try:
        with open(path, encoding="utf8") as file:
            text = file.read()
        kept.append((ast.parse(text), text.split()))
    except (OSError, SyntaxError, ValueError):
        pass
by_number = {i: str(i) * 3 for i in range(400000)}
numbers = [i * 1.1 for i in range(500000)]
print("ready", flush=True)
sys.stdin.read()
