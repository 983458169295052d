#!/usr/bin/python3
"""A client that comes again and again, and must never be turned away.

    comers.py nbd ADDRESS EXPORT SLOT      connects, writes and reads a block of its own part of the export, disconnects
    comers.py api ADDRESS [CA TOKEN-FILE]  asks the API for the status, over TLS where CA is named

ADDRESS is the path of a Unix socket, or PORT of 127.0.0.1. It goes on until SIGTERM, then reads back all that was acknowledged, and
prints one line: how often it came, how often an established connection ended under it, and the longest time that it had to wait for
what it wanted. To connect must always work. An NBD connection may end, and is then made again; the API must answer everything.
Ends with 1 and a sentence at the first thing that is wrong.
"""

import random
import signal
import socket
import ssl
import sys
import time

BLOCK = 4096
BLOCKS = 512

stopped = False


def stop(*_):
    global stopped
    stopped = True


def fail(sentence):
    print(f"comers: {sentence}", file=sys.stderr)
    sys.exit(1)


def connected(address):
    """A connection; what refuses it is a failure of the test."""
    try:
        if address.isdigit():
            connection = socket.create_connection(("127.0.0.1", int(address)))
            # libnbd does that for connections that it makes itself.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
        return connection
    except OSError as error:
        fail(f"{address} is not to be reached: {error}")


class Nbd:
    def __init__(self, address, export, slot):
        import nbd

        self.nbd, self.address, self.export = nbd, address, export
        self.first = int(slot) * BLOCKS
        self.rng, self.want, self.version, self.ended = random.Random(slot), {}, 0, 0

    def served(self, act):
        """Does something on a new connection, again if the connection ends in the middle."""
        while True:
            handle = self.nbd.NBD()
            handle.set_export_name(self.export)
            try:
                handle.connect_socket(connected(self.address).detach())
                result = act(handle)
                handle.shutdown()
                return result
            except self.nbd.Error as error:
                # What ends with its connection says nothing of the export; this would.
                if "unknown" in str(error).lower() and "export" in str(error).lower():
                    fail(f"the export was denied: {error}")
                self.ended += 1
                if self.ended > 1000:
                    fail(f"connections end again and again: {error}")
                time.sleep(0.001)

    def content(self, block, version):
        return f"{block:08d} {version:08d}\n".encode().ljust(BLOCK, b"%d" % (version % 10))

    def come(self):
        block = self.rng.randrange(BLOCKS)
        self.version += 1
        at, data = (self.first + block) * BLOCK, self.content(block, self.version)
        self.served(lambda handle: handle.pwrite(data, at))
        self.want[block] = self.version
        self.check(self.rng.choice(list(self.want)))

    def check(self, block):
        at = (self.first + block) * BLOCK
        got = bytes(self.served(lambda handle: handle.pread(BLOCK, at)))
        if got != self.content(block, self.want[block]):
            fail(f"block {block} is {got[:18]!r}, not version {self.want[block]}")

    def finish(self):
        for block in self.want:
            self.check(block)


class Api:
    def __init__(self, address, authority=None, tokens=None):
        self.address, self.ended = address, 0
        self.context = ssl.create_default_context(cafile=authority) if authority else None
        self.token = open(tokens).read().strip() if tokens else ""

    def come(self):
        connection = connected(self.address)
        try:
            if self.context:
                connection = self.context.wrap_socket(connection, server_hostname="localhost")
            head = f"GET /v1/status HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {self.token}\r\n\r\n"
            connection.sendall(head.encode())
            answer = b""
            while part := connection.recv(65536):
                answer += part
        except OSError as error:
            fail(f"the API broke off: {error}")
        if not answer.startswith(b"HTTP/1.1 200 "):
            fail(f"the API answered {answer[:200]!r}")
        connection.close()

    def finish(self):
        pass


def main():
    signal.signal(signal.SIGTERM, stop)
    comer = {"nbd": Nbd, "api": Api}[sys.argv[1]](*sys.argv[2:])
    came, longest_s = 0, 0.0
    while not stopped:
        began = time.monotonic()
        comer.come()
        came, longest_s = came + 1, max(longest_s, time.monotonic() - began)
    comer.finish()
    print(f"{came} {comer.ended} {longest_s * 1000:.0f}")


main()
