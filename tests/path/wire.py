"""A network between NVMe/TCP hosts and a target that is listened to: `wire.py PORT TARGET_PORT MARK LOG`.

Forwards connections to a port of 127.0.0.1. LOG gets a line for each connection that a host begins, `plain` (ICReq), `tls` (a record of a
handshake) or `other`, and a line `mark` for each direction of a connection in which the bytes of MARK went by.
"""

import socket
import sys
import threading

ICREQ = bytes([0, 0, 128, 0, 128, 0, 0, 0])
port, target_port, mark, log = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode(), open(sys.argv[4], "a")
turn = threading.Lock()


def note(what):
    with turn:
        print(what, file=log, flush=True)


def pump(source, sink, is_host):
    begin, tail, is_told = b"", b"", False
    try:
        while piece := source.recv(1 << 18):
            if is_host and len(begin) < 8:
                begin = (begin + piece)[:8]
                if len(begin) == 8:
                    note("plain" if begin == ICREQ else "tls" if begin[:2] == b"\x16\x03" else "other")
            # A mark may lie across pieces.
            seen = tail + piece
            if not is_told and mark in seen:
                is_told = True
                note("mark")
            tail = seen[1 - len(mark):]
            sink.sendall(piece)
    except OSError:
        pass
    for end in (source, sink):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


listener = socket.create_server(("127.0.0.1", port))
while True:
    host, _ = listener.accept()
    try:
        target = socket.create_connection(("127.0.0.1", target_port))
    except OSError:
        host.close()
        continue
    for source, sink, is_host in ((host, target, True), (target, host, False)):
        source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=pump, args=(source, sink, is_host), daemon=True).start()
