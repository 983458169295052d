#!/usr/bin/env python3
"""Writes files into a folder and knows afterwards which of them must be there.

    files.py write FOLDER LIST SEED   writes, renames and removes files until the file system fails
    files.py check FOLDER LIST        compares every file that was fsynced with what was written

A file's content follows from its name. LIST gets a line `+name` once the file and its folder were fsynced, and `-name`
before it is removed.
"""

import hashlib
import os
import random
import sys

FILES_MAX = 40


def content(name):
    length = int(name.split("-")[1])
    seed = hashlib.sha256(name.encode()).digest()
    return (seed * (length // len(seed) + 1))[:length]


def kept(path):
    names = {}
    if os.path.exists(path):
        with open(path) as lines:
            for line in lines:
                if line.startswith("+"):
                    names[line[1:].strip()] = None
                else:
                    names.pop(line[1:].strip(), None)
    return list(names)


def sync_folder(folder):
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(folder, path, seed):
    choose = random.Random(seed)
    names = kept(path)
    written = 0
    with open(path, "a") as listed:
        try:
            while True:
                if len(names) >= FILES_MAX:
                    name = names.pop(choose.randrange(len(names)))
                    listed.write(f"-{name}\n")
                    listed.flush()
                    os.remove(os.path.join(folder, name))
                name = f"{seed}.{written}-{choose.choice((100, 5000, 70000, 600000))}"
                temporary = os.path.join(folder, "new")
                with open(temporary, "wb") as file:
                    file.write(content(name))
                    file.flush()
                    os.fsync(file.fileno())
                os.rename(temporary, os.path.join(folder, name))
                sync_folder(folder)
                listed.write(f"+{name}\n")
                listed.flush()
                names.append(name)
                written += 1
        except OSError:
            pass  # What is under the file system is gone.
    print(f"files: {written} written")


def check(folder, path):
    names = kept(path)
    for name in names:
        try:
            with open(os.path.join(folder, name), "rb") as file:
                have = file.read()
        except OSError as error:
            sys.exit(f"files: {name} was fsynced: {error}")
        if have != content(name):
            sys.exit(f"files: {name} was fsynced, and holds something else")
    print(f"files: {len(names)} compared")


def main():
    match sys.argv[1:]:
        case ["write", folder, path, seed]:
            write(folder, path, int(seed))
        case ["check", folder, path]:
            check(folder, path)
        case _:
            sys.exit(__doc__)


main()
