#!/usr/bin/python3
"""Writes over NBD and knows afterwards what every block may hold.

    stamps.py load URI MODEL SEED      writes, zeroes, flushes and reads until the server is gone
    stamps.py check URI MODEL [--errors]   reads everything; `--errors`: blocks under way may be unreadable, and are written again

Every block of 4 KiB is stamped with its place and a version, so that a mixture, another block's content or an old version
is known at once. MODEL keeps, for every block, the versions it may hold: the last one that a completed FUA or flush
covers, and all that were begun after it. Ends with 1 and a sentence at the first block that holds anything else.
"""

import errno
import json
import os
import random
import struct
import sys

import nbd

BLOCK = 4096
REPEATS = BLOCK // 16
IN_FLIGHT_MAX = 16
BLOCKS_MAX = 48
# A version with this bit is zeroes, like version 0: a block that was never written.
ZEROES = 1 << 40


def content(block, version):
    if version == 0 or version & ZEROES:
        return bytes(BLOCK)
    return struct.pack("<QQ", block, version) * REPEATS


def found(block, data):
    """What a block's bytes are, in words."""
    stamps = {struct.unpack_from("<QQ", data, 16 * index) for index in range(REPEATS)}
    words = ["zeroes" if stamp == (0, 0) else f"block {stamp[0]} version {stamp[1]}" for stamp in sorted(stamps)]
    return ", ".join(words[:4]) + (f" and {len(words) - 4} more" if len(words) > 4 else "")


def fail(sentence):
    print(f"stamps: {sentence}", file=sys.stderr)
    sys.exit(1)


class Model:
    def __init__(self, path, blocks):
        self.path = path
        self.next, self.may = 1, [[0] for _ in range(blocks)]
        if os.path.exists(path):
            with open(path) as file:
                kept = json.load(file)
            self.next, self.may = kept["next"], kept["may"]
        if len(self.may) != blocks:
            fail(f"the volume has {blocks} blocks, the model {len(self.may)}")

    def version(self):
        self.next += 1
        return self.next - 1

    def durable(self, block, version):
        """The block will never again be older than this version."""
        may = self.may[block]
        if version in may:
            del may[: may.index(version)]

    def save(self):
        with open(self.path + ".new", "w") as file:
            json.dump({"next": self.next, "may": self.may}, file)
        os.replace(self.path + ".new", self.path)


def connect(uri):
    client = nbd.NBD()
    client.connect_uri(uri)
    return client


class Load:
    def __init__(self, client, model, seed):
        self.client, self.model, self.random = client, model, random.Random(seed)
        self.busy = set()
        self.in_flight = 0
        # Block to version: completed, but not flushed so far.
        self.completed = {}
        self.counts = {"writes": 0, "flushes": 0, "reads": 0}

    def pick(self):
        """Some blocks in a row that no other request is touching."""
        blocks = len(self.model.may)
        length = self.random.choice((1, 1, 1, 2, 4, 16, BLOCKS_MAX))
        # Half of the requests crowd together, so that stripes are written again and again.
        span = blocks // 16 if self.random.random() < 0.5 else blocks
        start = self.random.randrange(max(1, span - length))
        wanted = range(start, min(start + length, blocks))
        return None if any(block in self.busy for block in wanted) else wanted

    def ended(self, blocks, finish):
        def completion(error):
            self.in_flight -= 1
            self.busy.difference_update(blocks)
            if error.value == 0:
                finish()
            elif error.value != errno.ENOTCONN:
                fail(f"a request for blocks {list(blocks)} was answered with {os.strerror(error.value)}")
            # The server is gone: whether it was done is open, and the model has it as open.
            return 1

        self.in_flight += 1
        self.busy.update(blocks)
        return completion

    def write(self, blocks, zeroes):
        version = self.model.version() | (ZEROES if zeroes else 0)
        fua = self.random.random() < 0.2
        for block in blocks:
            self.model.may[block].append(version)

        def finish():
            self.counts["writes"] += 1
            for block in blocks:
                if fua:
                    self.model.durable(block, version)
                    self.completed.pop(block, None)
                else:
                    self.completed[block] = version

        flags = nbd.CMD_FLAG_FUA if fua else 0
        offset, completion = blocks[0] * BLOCK, self.ended(blocks, finish)
        if zeroes:
            self.client.aio_zero(len(blocks) * BLOCK, offset, completion=completion, flags=flags)
        else:
            data = bytearray(b"".join(content(block, version) for block in blocks))
            self.client.aio_pwrite(nbd.Buffer.from_bytearray(data), offset, completion=completion, flags=flags)

    def flush(self):
        covered = dict(self.completed)

        def finish():
            self.counts["flushes"] += 1
            for block, version in covered.items():
                self.model.durable(block, version)
                if self.completed.get(block) == version:
                    del self.completed[block]

        self.client.aio_flush(completion=self.ended((), finish))

    def read(self, blocks):
        buffer = nbd.Buffer(len(blocks) * BLOCK)

        def finish():
            self.counts["reads"] += 1
            data = buffer.to_bytearray()
            for index, block in enumerate(blocks):
                have, version = data[index * BLOCK : (index + 1) * BLOCK], self.model.may[block][-1]
                if have != content(block, version):
                    fail(f"under load, block {block} is {found(block, have)}; written was version {version}")

        self.client.aio_pread(buffer, blocks[0] * BLOCK, completion=self.ended(blocks, finish))

    def run(self):
        try:
            while not self.client.aio_is_dead():
                while self.in_flight < IN_FLIGHT_MAX and (blocks := self.pick()) is not None:
                    kind = self.random.random()
                    if kind < 0.05:
                        self.flush()
                    elif kind < 0.15:
                        self.write(blocks, True)
                    elif kind < 0.30:
                        self.read(blocks)
                    else:
                        self.write(blocks, False)
                self.client.poll(1000)
        except nbd.Error:
            pass  # The server is gone: that is the end of the load.


def load(uri, path, seed):
    try:
        client = connect(uri)
    except nbd.Error:
        return  # The server was gone before the load began.
    model = Model(path, client.get_size() // BLOCK)
    run = Load(client, model, seed)
    try:
        run.run()
    finally:
        model.save()
    print("stamps:", ", ".join(f"{count} {what}" for what, count in run.counts.items()))


def read_or_none(client, offset, length):
    try:
        return client.pread(length, offset)
    except nbd.Error:
        return None


def check(uri, path, errors_allowed):
    client = connect(uri)
    size = client.get_size()
    model = Model(path, size // BLOCK)
    open_blocks = unreadable = 0
    step = 256 * BLOCK
    for offset in range(0, size, step):
        length = min(step, size - offset)
        chunk = read_or_none(client, offset, length)
        for block in range(offset // BLOCK, (offset + length) // BLOCK):
            at = block * BLOCK - offset
            data = chunk[at : at + BLOCK] if chunk is not None else read_or_none(client, block * BLOCK, BLOCK)
            may = model.may[block]
            open_blocks += len(may) > 1
            if data is None:
                if not errors_allowed or len(may) == 1:
                    fail(f"block {block} cannot be read; it may be any of the versions {may}")
                unreadable += 1
                may.append(model.version())
                client.pwrite(content(block, may[-1]), block * BLOCK, flags=nbd.CMD_FLAG_FUA)
                del may[:-1]
                continue
            is_version = [version for version in may if data == content(block, version)]
            if not is_version:
                fail(f"block {block} is {found(block, data)}; it may be any of the versions {may}")
            may[:] = is_version[-1:]
    model.save()
    print(f"stamps: {size // BLOCK} blocks, {open_blocks} were under way, {unreadable} cannot be read")


def main():
    match sys.argv[1:]:
        case ["load", uri, path, seed]:
            load(uri, path, int(seed))
        case ["check", uri, path, *rest] if rest in ([], ["--errors"]):
            check(uri, path, bool(rest))
        case _:
            sys.exit(__doc__)


main()
