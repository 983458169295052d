#!/usr/bin/python3
"""The service manager's side of sd_notify(3): starts a daemon, and keeps its sockets while it is restarted.

    service_manager.py NOTIFY-SOCKET LOG -- PROGRAM ARGUMENTS...

Reads orders from stdin, one a line, and writes what it did and what the daemon said to LOG, one line each:

    restart SECONDS     ends the daemon by SIGTERM, waits, starts it with the sockets that it has
    crash SECONDS       the same by SIGKILL
    give NAME PORT      puts a socket that listens on 127.0.0.1:PORT (any, for 0) into the store, under a name
    store               writes the names of the store

SIGTERM ends it, with the daemon.
"""

import array
import os
import select
import signal
import socket
import sys
import time

notify_path, log_path = sys.argv[1:3]
line = sys.argv[4:]
log = open(log_path, "a", buffering=1)
store = []
child = None


def say(what):
    print(what, file=log)


def same(one, other):
    one, other = os.fstat(one), os.fstat(other)
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def start():
    global child
    child = os.fork()
    if child:
        say(f"started with {len(store)}")
        return
    environment = dict(os.environ, NOTIFY_SOCKET=notify_path)
    # Out of the way of the numbers that they get.
    lifted = [(name, os.dup2(fd, 200 + index)) for index, (name, fd) in enumerate(store)]
    for index, (_, fd) in enumerate(lifted):
        os.dup2(fd, 3 + index, inheritable=True)
    os.closerange(3 + len(lifted), 300)
    if lifted:
        environment.update(
            LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(lifted)), LISTEN_FDNAMES=":".join(name for name, _ in lifted)
        )
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.execvpe(line[0], line, environment)


def end(how):
    os.kill(child, how)
    os.waitpid(child, 0)
    hear()
    say("ended")


def hear():
    """Takes all messages that have come."""
    while select.select([notify], [], [], 0)[0]:
        message, control, _, _ = notify.recvmsg(4096, socket.CMSG_SPACE(4 * 8))
        fds = array.array("i")
        for level, kind, data in control:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(data)
        fields = dict(assignment.split("=", 1) for assignment in message.decode().splitlines())
        if "FDSTORE" in fields:
            for fd in fds:
                if any(same(fd, known) for _, known in store):
                    os.close(fd)
                else:
                    store.append((fields["FDNAME"], fd))
            say(f"stored {fields['FDNAME']}")
        elif "FDSTOREREMOVE" in fields:
            for entry in [entry for entry in store if entry[0] == fields["FDNAME"]]:
                store.remove(entry)
                os.close(entry[1])
            say(f"removed {fields['FDNAME']}")
        else:
            say(" ".join(message.decode().split()))


def obey(order):
    word, *rest = order.split()
    if word in ("restart", "crash"):
        end(signal.SIGTERM if word == "restart" else signal.SIGKILL)
        time.sleep(float(rest[0]))
        start()
    elif word == "give":
        listening = socket.create_server(("127.0.0.1", int(rest[1])))
        store.append((rest[0], listening.detach()))
        say(f"given {rest[0]}")
    elif word == "store":
        say("store: " + " ".join(sorted(name.split("@")[0] for name, _ in store)))


def stop(*_):
    end(signal.SIGTERM)
    sys.exit(0)


notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
notify.bind(notify_path)
signal.signal(signal.SIGTERM, stop)
start()
orders = ""
while True:
    readable = select.select([notify, sys.stdin], [], [])[0]
    hear()
    if sys.stdin in readable:
        orders += os.read(sys.stdin.fileno(), 4096).decode()
        while "\n" in orders:
            order, orders = orders.split("\n", 1)
            obey(order)
